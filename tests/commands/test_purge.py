from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from recorded_crawls import record_crawl

from scrapy_dedupe.commands.options import time_before
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def url(tmp_path: Path, archive: Path) -> str:
    """An index with three committed crawls on disk, of which "two" needs "one"."""
    url = f"sqlite:///{tmp_path / 'index.sqlite'}"
    archive.mkdir()
    with open_index(url) as index:
        record_crawl(index, archive, "one", [1], in_wacz=True)
        record_crawl(index, archive, "two", [1, 2])
        record_crawl(index, archive, "three", [3])
    return url


def ids(call: Callable[..., Any], url: str) -> list[str]:
    return [crawl["id"] for crawl in call("crawls", "--store", url, "--json").json]


def manifest_of(folder: Path, *resources: dict[str, str]) -> Path:
    path = folder / "all.multi-wacz.json"
    path.write_text(json.dumps({"profile": "multi-wacz-package", "resources": resources}))
    return path


def test_a_crawl_is_purged_by_its_id_and_its_files_are_listed(
    call: Callable[..., Any], url: str, archive: Path
) -> None:
    called = call("purge", "three", "--store", url, "--json")
    assert (called.code, called.err) == (0, "")
    (crawl,) = called.json["crawls"]
    (file,) = (archive / "three").iterdir()
    assert (crawl["id"], crawl["state"], crawl["files"], crawl["containers"]) == (
        "three",
        "committed",
        [str(file)],
        [],
    )
    assert ids(call, url) == ["one", "two"]


def test_what_a_purge_says_of_files(call: Callable[..., Any], url: str) -> None:
    called = call("purge", "three", "two", "--store", url)
    assert called.code == 0
    first, second = called.out.splitlines()
    assert first.startswith("2 crawls of ")
    assert first.endswith(" were purged: three, two.")
    assert second == "Their files were kept; 2 are no longer needed, see --json."


def test_a_dry_run_changes_nothing(call: Callable[..., Any], url: str) -> None:
    called = call("purge", "three", "--store", url, "--dry-run")
    assert called.code == 0
    assert " would be purged: three." in called.out
    assert ids(call, url) == ["one", "two", "three"]


def test_a_crawl_that_is_needed_is_refused_with_the_list_also_in_a_dry_run(
    call: Callable[..., Any], url: str
) -> None:
    for more in ([], ["--dry-run"]):
        called = call("purge", "one", "three", "--store", url, *more)
        assert (called.code, called.out) == (3, "")
        assert "  two needs one (one.wacz)" in called.err.splitlines()
    assert ids(call, url) == ["one", "two", "three"]


def test_a_forced_purge_says_what_is_lost_and_lists_no_file_that_is_needed(
    call: Callable[..., Any], url: str
) -> None:
    called = call("purge", "one", "--force", "--store", url, "--json")
    assert called.code == 0
    assert called.json["needed"] == ["two needs one (one.wacz)"]
    (crawl,) = called.json["crawls"]
    assert (crawl["files"], crawl["containers"]) == ([], [])
    assert ids(call, url) == ["two", "three"]


def test_a_container_is_listed_for_the_files_in_it(call: Callable[..., Any], url: str, archive: Path) -> None:
    one, two = call("purge", "one", "two", "--store", url, "--json").json["crawls"]
    assert (one["files"], one["containers"]) == ([], [str(archive / "one.wacz")])
    assert (len(two["files"]), two["containers"]) == (1, [])


def test_a_file_that_a_kept_crawl_has_too_is_not_listed(
    call: Callable[..., Any], url: str, archive: Path
) -> None:
    (file,) = (archive / "three").iterdir()
    with open_index(url) as index:
        index.start("four")
        index.add_file("four", str(file))
        index.add_file("four", f"{archive}/one.wacz/archive/x.warc.gz")
    crawls = call("purge", "one", "two", "three", "--store", url, "--json").json["crawls"]
    assert [(len(crawl["files"]), crawl["containers"]) for crawl in crawls] == [(0, []), (1, []), (0, [])]


def test_a_file_that_a_kept_crawl_has_by_way_of_a_link_is_not_listed(
    call: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with open_index(url) as index:
        (file,) = record_crawl(index, tmp_path / "link", "four", [4])
    assert call("import", str(file), "--crawl-id", "again", "--store", url).code == 0

    (crawl,) = call("purge", "again", "--store", url, "--json").json["crawls"]

    assert crawl["files"] == []


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_what_a_file_needs_that_is_not_there_now_is_kept_by_a_repair(
    call: Callable[..., Any], url: str, archive: Path, tmp_path: Path, is_forgotten: bool
) -> None:
    with open_index(url) as index:
        (first,) = record_crawl(index, archive, "five", [1], commit=False)
        record_crawl(index, archive, "five", [5])
    first.rename(tmp_path / "away")
    words = ["--forget-missing"] if is_forgotten else []
    repaired = call("check", "five", "--repair", *words, "--store", url, "--warc-dir", str(archive / "five"))
    assert repaired.code == 0, repaired

    purged = call("purge", "one", "two", "--store", url)

    assert purged.code == (0 if is_forgotten else 3)
    assert ("five needs one" in purged.err) != is_forgotten


def test_an_unknown_id_is_exit_3(call: Callable[..., Any], url: str) -> None:
    called = call("purge", "three", "four", "--store", url)
    assert (called.code, called.out) == (3, "")
    assert "The index has no crawl four" in called.err
    assert ids(call, url) == ["one", "two", "three"]


@pytest.mark.parametrize(
    "words", ["three --older-than 1d", "three --missing-from x.json", "--older-than 1d --missing-from x"]
)
def test_there_is_one_way_to_choose(call: Callable[..., Any], url: str, words: str) -> None:
    called = call("purge", *words.split(), "--store", url)
    assert (called.code, called.out) == (2, "")
    assert "cannot be combined. Use one of them." in called.err


def test_one_way_to_choose_is_asked_for(call: Callable[..., Any], url: str) -> None:
    called = call("purge", "--store", url)
    assert (called.code, called.out) == (2, "")
    assert "No crawls are named." in called.err


def test_one_file_is_needed_no_more(call: Callable[..., Any], url: str) -> None:
    assert "; 1 is no longer needed, see --json." in call("purge", "three", "--store", url).out


@pytest.mark.parametrize("age", ["soon", "-3d", "3 d", "1e9w", "2026-13-01"])
def test_an_age_that_is_none_is_wrong_use(call: Callable[..., Any], url: str, age: str) -> None:
    called = call("purge", f"--older-than={age}", "--store", url)
    assert (called.code, called.out) == (2, "")
    assert f"--older-than is {age!r}" in called.err


def test_crawls_are_purged_by_the_time_of_their_commit(call: Callable[..., Any], url: str) -> None:
    times = {crawl["id"]: crawl["committed"] for crawl in call("crawls", "--store", url, "--json").json}
    assert times["two"] < times["three"]
    for age in ("1h", "2000-01-01"):
        assert call("purge", "--older-than", age, "--store", url).out == "There are no crawls to purge.\n"
    called = call("purge", "--older-than", times["three"], "--store", url, "--json")
    assert [crawl["id"] for crawl in called.json["crawls"]] == ["one", "two"]
    assert called.json["before"] == f"{times['three'][:19]}Z"
    assert ids(call, url) == ["three"]
    assert call("purge", "--older-than", "0d", "--store", url).code == 0
    assert ids(call, url) == []


def test_an_age_counts_hours_days_or_weeks() -> None:
    spans = {"12h": timedelta(hours=12), "30d": timedelta(days=30), "8w": timedelta(weeks=8)}
    assert {age: NOW - time_before(age, NOW) for age in spans} == spans
    assert time_before("2026-01-01T00:00+01:00", NOW) == datetime(2025, 12, 31, 23, tzinfo=UTC)
    with pytest.raises(SettingError, match="too long ago"):
        time_before("9999999999w", NOW)


def test_crawls_of_another_program_have_no_age_and_are_kept(call: Callable[..., Any], redis_url: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.sadd("allcrawls", "bx")
    called = call("purge", "--older-than", "0h", "--store", redis_url)
    assert called.code == 0
    assert called.out == (
        "There are no crawls to purge.\nKept, since their commit time is unknown: bx. Purge them by id.\n"
    )


def test_crawls_that_a_manifest_does_not_name_are_purged(
    call: Callable[..., Any], url: str, archive: Path
) -> None:
    named = [{"name": "one.wacz", "path": "one.wacz"}, {"name": "2", "path": "2.wacz", "crawlId": "two"}]
    manifest = manifest_of(archive, *named)
    called = call("purge", "--missing-from", str(manifest), "--store", url, "--json")
    assert (called.code, called.err) == (0, "")
    assert [crawl["id"] for crawl in called.json["crawls"]] == ["three"]
    assert ids(call, url) == ["one", "two"]
    assert (
        call("purge", "--missing-from", str(manifest), "--store", url).out
        == "There are no crawls to purge.\n"
    )


def test_nothing_is_purged_by_a_manifest_with_a_fault(
    call: Callable[..., Any], url: str, archive: Path
) -> None:
    manifest = manifest_of(archive, {"name": "one.wacz", "path": "one.wacz"}, {"crawlId": "three"})
    called = call("purge", "--missing-from", str(manifest), "--store", url)
    assert (called.code, called.out) == (4, "")
    assert "Nothing was purged" in called.err
    assert ids(call, url) == ["one", "two", "three"]


def test_a_manifest_that_is_not_there_is_exit_3(call: Callable[..., Any], url: str, archive: Path) -> None:
    called = call("purge", "--missing-from", str(archive / "none.json"), "--store", url)
    assert (called.code, called.out) == (3, "")
    assert "none.json" in called.err
    assert ids(call, url) == ["one", "two", "three"]
