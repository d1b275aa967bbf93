"""Containers and files of crawls, and the containers that they need of each other, on both stores."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import CrawlStateError
from scrapy_dedupe.stores.base import Counts, Need, Original
from scrapy_dedupe.stores.index_values import (
    container_json,
    need_order,
    need_text,
    read_container,
    read_need,
    read_source,
    read_stats,
)

if TYPE_CHECKING:
    import redis

    from scrapy_dedupe.stores.crawl_index import CrawlIndex

ONE, TWO = "1" * 64, "2" * 64
HASH = "ab" * 32
NEEDS = [
    Need("a", 0, "/data/a 0.warc.gz"),
    Need("a", 0, "/data/a-1.warc.gz"),
    Need("a", 2),
    Need("a", 10),
    Need("b c%20d", 1, "s3://bucket/b.warc.gz"),
]


def original(digest: str, file: str | None, crawl: str = "a") -> Original:
    return Original(digest, crawl, "20260801120000123", "https://example.com/", 99, 0, None, file, 7)


def files(index: CrawlIndex) -> dict[str, tuple[str, ...]]:
    return {info.id: info.files for info in index.crawls()}


# Containers


def test_containers_are_numbered_in_their_order(index: CrawlIndex) -> None:
    index.start("a", "stored")
    assert index.containers("a") == []
    assert [index.add_container("a", name) for name in ("x.wacz", "ü y.wacz", "x.wacz")] == [0, 1, 0]
    assert index.containers("a") == [{"filename": "x.wacz"}, {"filename": "ü y.wacz"}]
    assert index.containers("other") == []


def test_a_packed_container_keeps_its_place(index: CrawlIndex) -> None:
    index.start("a", "stored")
    index.add_container("a", "x.wacz")
    index.add_container("a", "y.wacz")
    for _ in range(2):
        index.set_container("a", "x.wacz", HASH, 2**40)
    packed: dict[str, object] = {"filename": "x.wacz", "hash": HASH, "size": 2**40}
    assert index.containers("a") == [packed, {"filename": "y.wacz"}]
    assert index.add_container("a", "x.wacz") == 0
    assert index.containers("a")[0] == packed


def test_a_container_that_is_packed_again_has_its_new_hash(index: CrawlIndex) -> None:
    index.start("a", "stored")
    index.set_container("a", "x.wacz", HASH, 5)
    index.set_container("a", "x.wacz", "cd" * 32, 6)
    assert index.containers("a") == [{"filename": "x.wacz", "hash": "cd" * 32, "size": 6}]


def test_the_containers_of_crawls_are_apart_and_stay_after_the_commit(index: CrawlIndex) -> None:
    for number, crawl in enumerate("ab"):
        index.start(crawl, "stored")
        assert index.add_container(crawl, f"{crawl}.wacz") == 0
        index.set_container(crawl, f"{crawl}.wacz", HASH, number)
        index.commit(crawl)
    assert index.containers("a") == [{"filename": "a.wacz", "hash": HASH, "size": 0}]
    assert index.containers("b") == [{"filename": "b.wacz", "hash": HASH, "size": 1}]


@pytest.mark.parametrize("state", ["committed", "canceled", "unknown"])
def test_only_an_uncommitted_crawl_gets_containers(index: CrawlIndex, state: str) -> None:
    if state != "unknown":
        index.start("a", "stored")
        index.set_container("a", "x.wacz", HASH, 5)
        (index.commit if state == "committed" else index.cancel)("a")
    before = index.containers("a")
    assert bool(before) == (state == "committed")
    with pytest.raises(CrawlStateError, match=f"The crawl a .*{state}"):
        index.add_container("a", "y.wacz")
    with pytest.raises(CrawlStateError, match=f"The crawl a .*{state}"):
        index.set_container("a", "x.wacz", HASH, 6)
    assert index.containers("a") == before


def test_a_committed_crawl_without_a_container_can_be_given_one(index: CrawlIndex) -> None:
    for crawl in ("none", "unpacked", "other"):
        index.start(crawl, "stored")
    index.add_container("unpacked", "unpacked.wacz")
    index.add_container("other", "other.wacz")
    for crawl in ("none", "unpacked", "other"):
        index.commit(crawl)
    for crawl in ("none", "unpacked"):
        for _ in range(2):  # it is the same once more
            index.set_container(crawl, f"{crawl}.wacz", HASH, 5)
        assert index.containers(crawl) == [{"filename": f"{crawl}.wacz", "hash": HASH, "size": 5}]
        with pytest.raises(CrawlStateError, match=f"The crawl {crawl} .*committed"):
            index.set_container(crawl, f"{crawl}.wacz", HASH, 6)
    with pytest.raises(CrawlStateError, match=r"The crawl other .*committed"):
        index.set_container("other", "another.wacz", HASH, 5)
    assert index.containers("other") == [{"filename": "other.wacz"}]


def test_reset_keeps_containers_and_files_and_cancel_forgets_them(index: CrawlIndex) -> None:
    index.start("a", "stored")
    index.add_file("a", "a.warc.gz")
    index.set_container("a", "x.wacz", HASH, 5)
    index.reset("a")
    assert (len(index.containers("a")), files(index)) == (1, {"a": ("a.warc.gz",)})
    index.cancel("a")
    assert (index.containers("a"), files(index)) == ([], {"a": ()})
    index.start("a", "stored")
    assert index.add_container("a", "y.wacz") == 0


def test_the_list_of_containers_is_that_of_browsertrix(redis_index: CrawlIndex, client: redis.Redis) -> None:
    redis_index.start("a", "stored")
    client.rpush("c:a:wacz", '{"filename":"\\u00fc.wacz"}')
    redis_index.add_container("a", "x.wacz")
    redis_index.set_container("a", "ü.wacz", HASH, 5)
    assert client.lrange("c:a:wacz", 0, -1) == [
        f'{{"filename":"ü.wacz","hash":"{HASH}","size":5}}'.encode(),
        b'{"filename":"x.wacz"}',
    ]
    redis_index.commit("a")
    assert client.smembers("src:d") == {"ü.wacz".encode(), b"x.wacz"}


def test_a_container_that_cannot_be_read_keeps_its_place(redis_index: Any, client: redis.Redis) -> None:
    redis_index.start("a", "stored")
    client.rpush("c:a:wacz", "broken", "[1]", '{"filename":7}', b"\xff")
    assert redis_index.add_container("a", "x.wacz") == 4
    assert redis_index.add_container("a", "x.wacz") == 4
    assert redis_index.containers("a") == [{}, {}, {"filename": 7}, {}, {"filename": "x.wacz"}]
    assert redis_index.unreadable == 3


# Needs


def test_needs_are_told_once_and_in_order(index: CrawlIndex) -> None:
    index.start("z", "stored")
    assert index.needs("z") == []
    index.add("z", [], Counts(), needs=NEEDS[::-1])
    index.add("z", [], Counts(), needs=[*NEEDS[1:3], Need("a", 10, "")])
    assert index.needs("z") == NEEDS
    index.commit("z")
    assert index.needs("z") == NEEDS
    assert index.needs("other") == []


@pytest.mark.parametrize("action", ["reset", "cancel"])
def test_reset_and_cancel_forget_the_needs_of_the_crawl_alone(index: CrawlIndex, action: str) -> None:
    for crawl in ("y", "z"):
        index.start(crawl, "stored")
        index.add(crawl, [], Counts(), needs=NEEDS)
    getattr(index, action)("z")
    assert index.needs("z") == []
    assert index.needs("y") == NEEDS
    index.start("z", "stored")
    index.add("z", [], Counts(), needs=NEEDS[:1])
    assert index.needs("z") == NEEDS[:1]


def test_a_refused_addition_leaves_no_needs(index: CrawlIndex) -> None:
    index.start("z", "stored")
    index.add("z", [], Counts(), needs=NEEDS[:1])
    index.commit("z")
    with pytest.raises(CrawlStateError):
        index.add("z", [], Counts(), needs=NEEDS)
    with pytest.raises(CrawlStateError):
        index.add("unknown", [], Counts(), needs=NEEDS)
    assert index.needs("z") == NEEDS[:1]
    assert index.needs("unknown") == []


def test_a_need_that_cannot_be_read_is_left_out_and_counted(redis_index: Any, client: redis.Redis) -> None:
    redis_index.start("z", "stored")
    client.sadd("dedupe:needs:z", "a 0 x.warc.gz", "a", "a x ", " 0 ", "a -1 ", b"\xff 0 ")
    assert redis_index.needs("z") == [Need("a", 0, "x.warc.gz")]
    assert redis_index.unreadable == 5


@given(
    st.builds(
        Need,
        crawl=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        wacz_index=st.integers(0, 2**31),
        file=st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    )
)
def test_a_need_is_read_as_it_was_written(need: Need) -> None:
    assert read_need(need_text(need).encode()) == need
    assert need_order(need) == (need.crawl, need.wacz_index, need.file or "")


def test_the_words_of_a_need() -> None:
    assert [need_text(need) for need in NEEDS[1:]] == [
        "a 0 /data/a-1.warc.gz",
        "a 2 ",
        "a 10 ",
        "b%20c%2520d 1 s3://bucket/b.warc.gz",
    ]


@given(st.binary())
def test_reading_needs_and_containers_never_raises(value: bytes) -> None:
    need = read_need(value)
    assert need is None or (need.crawl and need.wacz_index >= 0)
    container = read_container(value)
    assert container is None or isinstance(json.loads(value), dict)


def test_lists_in_lists_without_end_are_no_entry() -> None:
    value = "[" * 200_000
    assert (read_container(value.encode()), read_source(value), read_stats(value)) == (None, None, None)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.integers(0, 2**50))
def test_a_container_is_read_as_it_was_written(filename: str, size: int | None) -> None:
    text = container_json(filename, None if size is None else HASH, size)
    expected = {"filename": filename} | ({} if size is None else {"hash": HASH, "size": size})
    assert read_container(text.encode()) == expected


# Renaming


@pytest.mark.parametrize("is_committed", [False, True])
def test_records_are_found_in_the_renamed_file(index: CrawlIndex, is_committed: bool) -> None:
    index.start("a", "stored")
    index.add_file("a", "x.warc.gz")
    index.add("a", [original(ONE, "x.warc.gz"), original(TWO, "y.warc.gz")], Counts())
    if is_committed:
        index.commit("a")
    for _ in range(2):
        index.rename_file("a", "x.warc.gz", "s3://bucket/a file/x.warc.gz")
    renamed = original(ONE, "s3://bucket/a file/x.warc.gz")
    assert index.find("a", [ONE, TWO]) == [renamed, original(TWO, "y.warc.gz")]
    assert files(index) == {"a": ("s3://bucket/a file/x.warc.gz", "y.warc.gz")}


def test_a_file_that_gets_the_name_of_another_takes_its_records_along(index: CrawlIndex) -> None:
    index.start("a", "stored")
    index.add("a", [original(ONE, "x"), original(TWO, "y")], Counts())
    index.rename_file("a", "x", "y")
    index.add_file("a", "y")
    assert index.find("a", [ONE, TWO]) == [original(ONE, "y"), original(TWO, "y")]
    assert files(index) == {"a": ("y",)}
    index.add("a", [original("3" * 64, "z"), original("4" * 64, "y")], Counts())
    for old, new in (("y", "w"), ("z", "w"), ("w", "v")):
        index.rename_file("a", old, new)
    found = index.find("a", [ONE, TWO, "3" * 64, "4" * 64])
    assert [record.file for record in found if record is not None] == ["v"] * 4
    assert files(index) == {"a": ("v",)}


def test_a_renaming_leaves_the_files_of_other_crawls_alone(index: CrawlIndex) -> None:
    for crawl in ("a", "b"):
        index.start(crawl, "stored")
        index.add(crawl, [original(ONE, "x", crawl)], Counts())
    index.rename_file("a", "x", "y")
    assert files(index) == {"a": ("y",), "b": ("x",)}
    assert index.find("b", [ONE]) == [original(ONE, "x", "b")]


def test_needs_of_other_crawls_follow_a_renamed_file(index: CrawlIndex) -> None:
    index.start("a", "stored")
    index.add_file("a", "old name")
    index.commit("a")
    others = [Need("a", 0), Need("a", 0, "old name 2"), Need("a", 0, "x old name"), Need("aa", 0, "old name")]
    others.append(Need("b", 0, "old name"))
    old = [Need("a", 0, "old name"), Need("a", 3, "old name")]
    for crawl in ("y", "z"):
        index.start(crawl, "stored")
        index.add(crawl, [], Counts(), needs=[*others, *old, Need("a", 3, "new")])
    index.commit("y")
    index.rename_file("a", "old name", "new")
    expected = sorted([*others, Need("a", 0, "new"), Need("a", 3, "new")], key=need_order)
    assert index.needs("y") == expected
    assert index.needs("z") == expected


def test_more_crawls_than_one_call_takes_follow_a_renamed_file(index: CrawlIndex) -> None:
    index.start("a", "stored")
    index.add_file("a", "old")
    for number in range(250):
        index.start(f"c{number}", "stored")
        index.add(f"c{number}", [], Counts(), needs=[Need("a", 0, "old")])
    index.rename_file("a", "old", "new")
    assert all(index.needs(f"c{number}") == [Need("a", 0, "new")] for number in range(250))


def test_a_renaming_that_was_killed_is_finished_by_the_next_one(redis_index: Any) -> None:
    redis_index.start("a", "stored")
    redis_index.add_file("a", "old")
    redis_index.start("z", "stored")
    redis_index.add("z", [], Counts(), needs=[Need("a", 0, "old")])
    run = redis_index._run

    def dying(name: str, *arguments: Any) -> Any:
        if name == "index_rename_needs":
            raise ConnectionError("killed")
        return run(name, *arguments)

    redis_index._run = dying
    with pytest.raises(ConnectionError):
        redis_index.rename_file("a", "old", "new")
    redis_index._run = run
    assert (files(redis_index)["a"], redis_index.needs("z")) == (("new",), [Need("a", 0, "old")])
    redis_index.rename_file("a", "old", "new")
    assert redis_index.needs("z") == [Need("a", 0, "new")]


def test_a_file_that_the_crawl_does_not_have_cannot_be_renamed(index: CrawlIndex) -> None:
    index.start("a", "stored")
    index.add_file("a", "x")
    for old, new in (("y", "z"), ("y", "y")):
        with pytest.raises(CrawlStateError, match=r"The crawl a in the index .* has no WARC file y"):
            index.rename_file("a", old, new)
    index.rename_file("a", "x", "x")
    assert files(index) == {"a": ("x",)}
    index.cancel("a")
    with pytest.raises(CrawlStateError, match=r"The crawl a was canceled .* cannot be changed"):
        index.rename_file("a", "x", "y")
    with pytest.raises(CrawlStateError, match="The crawl b is unknown"):
        index.rename_file("b", "x", "y")
