"""What every content store has to do; each test runs on SQLite and on a Redis-protocol server."""

from __future__ import annotations

import multiprocessing
import random
from hashlib import blake2b
from typing import TYPE_CHECKING

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import SeenText
from scrapy_dedupe.stores.sqlite_content import equal_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.stores.base import ContentStore, Store


@pytest.fixture(params=["sqlite", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"sqlite:///{tmp_path / 'texts.sqlite'}"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    store = open_store(store_url)
    yield store
    store.close()


@pytest.fixture
def content(store: Store) -> ContentStore:
    return store.content


def digest(name: object) -> bytes:
    return blake2b(str(name).encode(), digest_size=16).digest()


def band(name: object) -> bytes:
    return blake2b(str(name).encode(), digest_size=8).digest()


def bands(*names: object) -> list[bytes]:
    """Sixteen bands: those named, and others that nobody shares."""
    return [band(name) for name in names] + [random.randbytes(8) for _ in range(16 - len(names))]


ROWS = bytes(range(128))


def changed(rows: bytes, places: int) -> bytes:
    return bytes(255 - value if place < places else value for place, value in enumerate(rows))


def keep(
    content: ContentStore, name: str, names: list[object], rows: bytes = ROWS, url: str = "http://a/"
) -> None:
    content.claim_text(digest(name), url, "c1", 1)
    assert content.claim_near(digest(name), bands(*names), rows, 109, url) is None


def test_a_new_text_is_claimed_once(content: ContentStore) -> None:
    assert content.claim_text(digest(1), "http://a/", "c1", 1_700_000_000_123) is None
    assert content.claim_text(digest(1), "http://b/", "c2", 2) == SeenText(
        "http://a/", "c1", 1_700_000_000_123, False
    )
    assert content.claim_text(digest(2), "http://b/", "c2", 3) is None


def test_an_earlier_capture_of_the_same_url_is_known(content: ContentStore) -> None:
    urls = ["http://a/", "http://a/", "http://b/", "http://b/", "http://c/", "http://a/"]
    seen = [content.claim_text(digest(1), url, "c1", 1) for url in urls]
    assert [text and text.had_this_url for text in seen] == [None, True, False, True, False, True]
    assert {text.url for text in seen if text} == {"http://a/"}


def test_another_text_of_that_url_is_no_earlier_capture_of_this_one(content: ContentStore) -> None:
    content.claim_text(digest(1), "http://a/", "c1", 1)
    content.claim_text(digest(2), "http://b/", "c1", 1)
    seen = content.claim_text(digest(1), "http://b/", "c1", 2)
    assert seen is not None
    assert not seen.had_this_url


@pytest.mark.parametrize(
    "url", ["http://a/ b\nc", "http://ä/ü?x= 1 2", "", "http://a/" + "x" * 5000, "http://a/\0"]
)
def test_urls_come_back_as_they_were(content: ContentStore, url: str) -> None:
    content.claim_text(digest(url), url, "a crawl", 0)
    seen = content.claim_text(digest(url), url, "another", 1)
    assert seen == SeenText(url, "a crawl", 0, True)


def test_crawls_are_told_apart(content: ContentStore) -> None:
    for number in range(12):
        content.claim_text(digest(number), "http://a/", f"c{number % 3}", number)
    seen = [content.claim_text(digest(number), "http://a/", "later", 99) for number in range(12)]
    assert [(text.crawl, text.seen_ms) for text in seen if text] == [(f"c{n % 3}", n) for n in range(12)]


def test_a_text_without_neighbours_is_kept(content: ContentStore) -> None:
    keep(content, "one", ["x"])
    assert content.statistics() == {"texts": 1, "kept": 1}


def test_a_similar_text_in_a_shared_bucket_is_found_and_the_new_one_not_kept(content: ContentStore) -> None:
    keep(content, "one", ["x"], url="http://one/")
    content.claim_text(digest("two"), "http://two/", "c2", 2)
    seen = content.claim_near(digest("two"), bands("x"), changed(ROWS, 12), 109, "http://two/")
    assert seen == SeenText("http://one/", "c1", 1, False, 116 / 128)
    assert content.statistics() == {"texts": 2, "kept": 1}


@pytest.mark.parametrize(("different", "is_near"), [(0, True), (19, True), (20, False), (128, False)])
def test_the_number_of_equal_rows_decides(content: ContentStore, different: int, is_near: bool) -> None:
    keep(content, "one", ["x"])
    content.claim_text(digest("two"), "http://two/", "c2", 2)
    seen = content.claim_near(digest("two"), bands("x"), changed(ROWS, different), 109, "http://two/")
    assert (seen is not None) == is_near


def test_a_similar_text_in_no_shared_bucket_is_not_found(content: ContentStore) -> None:
    keep(content, "one", ["x"])
    content.claim_text(digest("two"), "http://two/", "c2", 2)
    assert content.claim_near(digest("two"), bands("y"), ROWS, 109, "http://two/") is None


def test_the_most_similar_candidate_is_taken(content: ContentStore) -> None:
    keep(content, "far", ["x"], changed(ROWS, 40), url="http://far/")
    keep(content, "best", ["y"], changed(ROWS, 15), url="http://best/")
    keep(content, "good", ["z"], changed(ROWS, 18), url="http://good/")
    content.claim_text(digest("new"), "http://new/", "c2", 2)
    seen = content.claim_near(digest("new"), bands("x", "y", "z"), ROWS, 109, "http://new/")
    assert seen is not None
    assert (seen.url, seen.similarity) == ("http://best/", 113 / 128)


def test_the_last_text_stays_in_a_bucket(content: ContentStore) -> None:
    keep(content, "first", ["x", "y"], url="http://first/")
    keep(content, "last", ["x"], changed(ROWS, 128), url="http://last/")
    content.claim_text(digest("new"), "http://new/", "c2", 2)
    assert content.claim_near(digest("new"), bands("x"), changed(ROWS, 64), 100, "http://new/") is None
    seen = content.claim_near(digest("other"), bands("y"), ROWS, 109, "http://other/")
    assert seen is not None
    assert seen.url == "http://first/"


def test_a_text_is_not_near_to_itself(content: ContentStore) -> None:
    keep(content, "one", ["x"])
    keep(content, "one", ["x"])
    assert content.statistics() == {"texts": 1, "kept": 1}


def test_near_to_an_earlier_version_of_the_same_url(content: ContentStore) -> None:
    keep(content, "one", ["x"], url="http://one/")
    content.claim_text(digest("one"), "http://two/", "c2", 2)
    for url, had_this_url in [("http://one/", True), ("http://two/", True), ("http://three/", False)]:
        content.claim_text(digest(url), url, "c3", 3)
        seen = content.claim_near(digest(url), bands("x"), ROWS, 109, url)
        assert seen is not None
        assert seen.had_this_url == had_this_url


def test_band_hashes_of_any_value_are_kept(content: ContentStore) -> None:
    extreme = [b"\0" * 8, b"\xff" * 8, b"\x80" + b"\0" * 7, b"\x7f" + b"\xff" * 7]
    content.claim_text(digest(1), "http://a/", "c1", 1)
    content.claim_near(digest(1), extreme, ROWS, 109, "http://a/")
    for number, hashed in enumerate(extreme):
        assert content.claim_near(digest(f"n{number}"), [hashed], ROWS, 109, "http://b/") is not None


def test_parameters_are_kept_and_compared(store: Store, store_url: str) -> None:
    store.content.check_parameters({"near_num_perm": "128", "near_bands": "16"})
    other = open_store(store_url)
    other.content.check_parameters({"near_bands": "16", "near_num_perm": "128"})
    with pytest.raises(StoreRefused, match=r"near_num_perm = 128.*near_num_perm = 256"):
        other.content.check_parameters({"near_num_perm": "256", "near_bands": "16"})
    other.content.check_parameters({"near_num_perm": "128"})
    other.close()


def test_texts_survive_closing(store_url: str) -> None:
    first = open_store(store_url)
    keep(first.content, "one", ["x"])
    first.close()
    second = open_store(store_url)
    assert second.content.claim_text(digest("one"), "http://a/", "c2", 5) == SeenText(
        "http://a/", "c1", 1, True
    )
    assert second.content.claim_near(digest("two"), bands("x"), ROWS, 109, "http://b/") is not None
    second.close()


def _claim(url: str, seed: int, start: object, results: object) -> None:
    store = open_store(url, timeout_s=30)
    names = list(range(120))
    random.Random(seed).shuffle(names)
    start.wait()  # type: ignore[attr-defined]
    texts = [
        name
        for name in names
        if store.content.claim_text(digest(name), f"http://{seed}/", f"c{seed}", 1) is None
    ]
    kept = [
        name
        for name in range(60)
        if store.content.claim_near(
            digest((seed, name)), [band((name, n)) for n in range(16)], ROWS, 109, "u"
        )
        is None
    ]
    store.close()
    results.put((texts, kept))  # type: ignore[attr-defined]


def test_several_processes_at_once_claim_each_text_once(store_url: str) -> None:
    setup = open_store(store_url)
    # A candidate needs a first capture, which the processes below leave out for their own texts.
    for seed in range(3):
        for name in range(60):
            setup.content.claim_text(digest((seed, name)), f"http://near/{seed}", "c", 1)
    setup.close()
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=_claim, args=(store_url, seed, start, results)) for seed in range(3)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
    assert sorted(name for texts, _ in answers for name in texts) == list(range(120))
    assert sorted(name for _, kept in answers for name in kept) == list(range(60))
    store = open_store(store_url)
    assert store.content.statistics() == {"texts": 120 + 180, "kept": 60}
    store.close()


def test_every_key_in_redis_has_the_versioned_prefix_and_one_slot(redis_url: str) -> None:
    store = open_store(redis_url)
    store.content.check_parameters({"near_bands": "16"})
    keep(store.content, "one", ["x"])
    store.content.claim_text(digest("one"), "http://b/", "c1", 1)
    store.close()
    with redis.Redis.from_url(redis_url) as client:
        assert all(key.startswith(b"dedupe:{content}:v1:") for key in client.scan_iter())


def test_a_document_takes_at_most_a_kilobyte_in_redis(redis_url: str) -> None:
    store = open_store(redis_url)
    with redis.Redis.from_url(redis_url) as client:

        def used() -> int:
            return int(client.info("memory")["used_memory"])

        empty = used()
        with client.pipeline(transaction=False) as pipeline:
            for bucket in range(65_536):
                pipeline.hset(b"dedupe:{content}:v1:b" + bucket.to_bytes(2, "big"), b"field", b"x")
            pipeline.execute()
        begun = used()
        for number in range(1000):
            url = f"https://docs.example.org/manual/chapter/page-{number}.html"
            keep(store.content, f"t{number}", [], random.randbytes(128), url=url)
        grown = used()
    store.close()
    assert begun - empty < 10_000_000
    assert (grown - begun) / 1000 <= 1000


def test_what_is_not_ours_under_one_of_our_keys_is_refused(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("dedupe:{content}:v1:i", "something else")
    store = open_store(redis_url)
    with pytest.raises(StoreRefused, match="not ours"):
        store.content.claim_text(digest(1), "http://a/", "c1", 1)
    store.close()


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_equal_bytes_counts_places(one: bytes, other: bytes) -> None:
    length = min(len(one), len(other))
    one, other = one[:length], other[:length]
    assert equal_bytes(one, other) == sum(x == y for x, y in zip(one, other, strict=True))


claims = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["http://a/", "http://b/", "http://c/"])), max_size=12
)


@given(claims)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_stores_answer_like_a_plain_model(
    tmp_path_factory: pytest.TempPathFactory, redis_url: str, steps: list[tuple[int, str]]
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    path = tmp_path_factory.mktemp("model") / "texts.sqlite"
    stores = [open_store(f"sqlite:///{path}"), open_store(redis_url)]
    first: dict[int, tuple[str, int]] = {}
    captures: set[tuple[int, str]] = set()
    for moment, (name, url) in enumerate(steps):
        expected = None
        if name in first:
            expected = SeenText(first[name][0], "c1", first[name][1], (name, url) in captures)
        first.setdefault(name, (url, moment))
        captures.add((name, url))
        assert [store.content.claim_text(digest(name), url, "c1", moment) for store in stores] == [
            expected
        ] * 2
    for store in stores:
        store.close()
