"""``urls VERB`` on the filters that real crawls leave."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from crawling import LinkSpider, crawl, crawl_test
from faults_site import Hold, start_crawl
from programs import run_program
from scrapy import Request, version_info
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.request import fingerprint
from waiting import wait_until

from scrapy_dedupe.dupefilters import BloomDupeFilter
from scrapy_dedupe.reports.wording import size
from scrapy_dedupe.urls.attachment import own_tokens
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.folder import FilterFolder
from scrapy_dedupe.urls.shared import SharedBloomFilter

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator

    from webserver import WebServer

FINGERPRINTER = "scrapy.utils.request.RequestFingerprinter"
PAGES = ["/", "/0", "/1", "/2"]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job"


@pytest.fixture
def settings(settings: dict[str, Any], job: Path) -> dict[str, Any]:
    """The dupefilter alone, in a job."""
    return {
        **settings,
        "DUPEFILTER_CLASS": BloomDupeFilter,
        "JOBDIR": str(job),
        "DEDUPE_URL_FLUSH_SECONDS": 0.05,
    }


def site(web: WebServer) -> None:
    web.page("/", "".join(f'<a href="{path}">x</a>' for path in PAGES))
    for path in PAGES[1:]:
        web.page(path, '<a href="/">home</a>')


def make(job: Path, urls: Iterable[str], *, clean: bool = True, confirm: bool = False) -> None:
    """The filter of a run that asked for these, and is done with them."""
    folder = FilterFolder(job, FINGERPRINTER, confirm=confirm)
    filter_ = folder.open(10_000, 1e-6).filter
    found = [fingerprint(Request(url)) for url in urls]
    folder.seen_journal.append([item for item in found if filter_.add(item)])
    folder.done_journal.append(found)
    if clean:
        folder.close(filter_)
    else:
        folder.abandon()


def states(called: Any) -> list[str]:
    assert called.code == 0, called.err
    return [url["state"] for url in called.json["urls"]]


A, B, C = "https://a.example/a", "https://a.example/b", "https://a.example/c"


# With crawls


@crawl_test
async def test_scrapys_own_filter_goes_on_with_an_export(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any], job: Path
) -> None:
    site(web)
    await crawl(LinkSpider, settings, addon=False, urls=web.url())
    assert sorted(web.paths) == PAGES
    exported = job / "requests.seen"
    called = call("urls", "export", "--jobdir", str(job), "-o", str(exported))
    assert (called.code, called.err) == (0, "")
    assert called.out == f"4 fingerprints were written to {exported}.\n"
    shutil.rmtree(job / "dedupe")

    theirs = RFPDupeFilter(str(job))
    try:
        assert [theirs.request_seen(Request(web.url(path))) for path in [*PAGES, "/new"]] == [True] * 4 + [
            False
        ]
    finally:
        theirs.close("finished")
    web.paths.clear()
    scrapys = {**settings, "DUPEFILTER_CLASS": RFPDupeFilter}
    crawler = await crawl(LinkSpider, scrapys, addon=False, urls=web.url())
    assert web.paths == ["/"]
    assert crawler.stats.get_value("dupefilter/filtered") == len(PAGES)


@crawl_test
async def test_a_new_job_asks_for_nothing_that_it_was_told(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any], job: Path, tmp_path: Path
) -> None:
    site(web)
    await crawl(LinkSpider, settings, addon=False, urls=web.url())
    exported, new = tmp_path / "exported", tmp_path / "new"
    assert call("urls", "export", "--jobdir", str(job), "-o", str(exported), "--format", "text").code == 0
    called = call("urls", "import", "--jobdir", str(new), str(exported))
    assert (called.code, called.err) == (0, "")
    assert called.out == (
        f"4 fingerprints are new to {new / 'dedupe' / 'urls'}, 0 were known.\n"
        "The job had no URL filter, so one was created.\n"
    )
    web.paths.clear()
    web.page("/3", "a new page")
    web.page("/", "".join(f'<a href="{path}">x</a>' for path in [*PAGES, "/3"]))
    crawler = await crawl(LinkSpider, {**settings, "JOBDIR": str(new)}, addon=False, urls=web.url())
    # A start request is not filtered.
    assert sorted(web.paths) == ["/", "/3"]
    assert crawler.stats.get_value("dedupe/url/seen") == 5


@crawl_test
async def test_a_forgotten_url_is_asked_for_by_the_next_run_and_by_no_other(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any], job: Path
) -> None:
    site(web)
    await crawl(LinkSpider, settings, addon=False, urls=web.url())
    where = ("--jobdir", str(job))
    called = call("urls", "forget", *where, web.url("/1"), web.url("/never"))
    assert (called.code, called.err) == (0, "")
    assert called.out == f"1 URL may be requested again.\nNot seen before: {web.url('/never')}\n"
    assert states(call("urls", "check", *where, "--json", web.url("/1"), web.url("/2"))) == [
        "forgotten",
        "seen",
    ]
    for expected in (["/", "/1"], ["/"]):
        web.paths.clear()
        await crawl(LinkSpider, settings, addon=False, urls=web.url())
        assert sorted(web.paths) == expected
        assert states(call("urls", "check", *where, "--json", web.url("/1"))) == ["seen"]


def test_after_a_kill_the_cut_state_is_asked_exported_and_filled_and_stays_cut(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any], job: Path, tmp_path: Path
) -> None:
    site(web)
    web.page("/2", "".join(f'<a href="/slow/{n}">x</a>' for n in range(100)))
    for n in range(100):
        web.page(f"/slow/{n}", "slow")
    values = {
        **settings,
        "DUPEFILTER_CLASS": "scrapy_dedupe.dupefilters.BloomDupeFilter",
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        "DEDUPE_URL_FLUSH_SECONDS": 0.05,
    }
    hold = Hold(web, 12)
    process = start_crawl(values, web.url())
    where = ("--jobdir", str(job))
    try:
        assert hold.is_reached(process)
        done = job / "dedupe" / "urls" / "urls.done"
        wait_until(lambda: fingerprint(Request(web.url("/0"))) in done.read_bytes())
        running = call("urls", "stats", *where)
        assert (running.code, running.out) == (3, "")
        assert "in use by another process" in running.err
        assert len(running.err.splitlines()) == 1
    finally:
        process.kill()
        hold.end()
    stats = call("urls", "stats", *where, "--json").json
    assert stats["last_stop"] == "cut"
    assert 0 < stats["fingerprints"] == stats["listed"] < 13
    never = next(path for path in web.pages if path not in web.paths)
    asked = [web.url(path) for path in ("/", "/2", "/0", never)]
    # Home and /2 brought something new.
    assert states(call("urls", "check", *where, "--json", *asked)) == ["new", "new", "seen", "new"]
    exported, more = tmp_path / "exported", tmp_path / "more"
    assert (
        call("urls", "export", *where, "-o", str(exported), "--json").json["written"] == stats["fingerprints"]
    )
    more.write_bytes(fingerprint(Request(web.url(never))).hex().encode() + b"\n")
    assert call("urls", "import", *where, str(more), str(exported), "--json").json["new"] == 1
    assert states(call("urls", "check", *where, "--json", *asked)) == ["new", "new", "seen", "seen"]
    assert call("urls", "stats", *where, "--json").json["last_stop"] == "cut"
    assert not (job / "dedupe" / "urls" / "urls.bloom").exists()
    assert "not cleanly: only requests that were done" in call("urls", "stats", *where).out


# check


def test_check_reads_well(call: Callable[..., Any], job: Path) -> None:
    make(job, [A])
    called = call("urls", "check", "--jobdir", str(job), A, B)
    assert (called.code, called.err) == (0, "")
    assert called.out == (
        f"seen       {fingerprint(Request(A)).hex()}  {A}\n"
        f"new        {fingerprint(Request(B)).hex()}  {B}\n"
        '"seen" is wrong for at most 1 in 1,000,000 new URLs.\n'
    )


def test_urls_may_come_from_standard_input(
    call: Callable[..., Any], job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(job, [A, B])
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{A}\n\n  {C}\n"))
    assert states(call("urls", "check", "--jobdir", str(job), "--json", B, "-")) == ["seen", "seen", "new"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{A}\n{B}\n"))
    assert call("urls", "forget", "--jobdir", str(job), "--json", "-").json["forgotten"] == 2


def test_what_is_no_url_is_named(call: Callable[..., Any], job: Path) -> None:
    make(job, [A])
    for verb in ("check", "forget"):
        called = call("urls", verb, "--jobdir", str(job), A, "a.example/b")
        assert (called.code, called.out) == (2, "")
        assert called.err.startswith(f"scrapy-dedupe urls {verb}: 'a.example/b' is not a URL")
        assert len(called.err.splitlines()) == 1
    assert states(call("urls", "check", "--jobdir", str(job), "--json", A)) == ["seen"]


def test_with_an_exact_set_the_answer_is_exact(call: Callable[..., Any], job: Path) -> None:
    make(job, [A], confirm=True)
    called = call("urls", "check", "--jobdir", str(job), A, B)
    assert called.out.splitlines()[-1] == '"seen" is exact.'
    assert call("urls", "check", "--jobdir", str(job), A, "--json").json["error_bound"] == 0
    assert "1 in the exact set" in call("urls", "stats", "--jobdir", str(job)).out


def test_forget_tells_what_was_forgotten_before(call: Callable[..., Any], job: Path) -> None:
    make(job, [A, B])
    where = ("--jobdir", str(job))
    assert call("urls", "forget", *where, A, B, A).out == "2 URLs may be requested again.\n"
    assert call("urls", "forget", *where, A).out == (
        f"0 URLs may be requested again.\nAlready forgotten: {A}\n"
    )


# stats


def test_stats_read_well(call: Callable[..., Any], job: Path) -> None:
    make(job, [A, B])
    call("urls", "forget", "--jobdir", str(job), A)
    called = call("urls", "stats", "--jobdir", str(job))
    assert (called.code, called.err) == (0, "")
    lines = called.out.splitlines()
    assert lines[0] == f"Filter    {job / 'dedupe' / 'urls'}"
    assert lines[1] == "Stopped   cleanly"
    assert lines[2] == f"Holds     2 fingerprints by {FINGERPRINTER}, 1 forgotten, 2 listed"
    shown = size(GrowingBloomFilter(10_000, 1e-6).size_bytes)
    assert lines[3] == f"Size      1 layer, the first for 10,000; {shown}, 0.0 % of the bits set"
    assert lines[4].startswith("Error     at most 1e-06, ")


def test_stats_as_json(call: Callable[..., Any], job: Path) -> None:
    make(job, [A, B])
    stats = call("urls", "stats", "--jobdir", str(job), "--json").json
    filter_ = FilterFolder(job, FINGERPRINTER)
    found = filter_.open(10_000, 1e-6).filter.figures()
    filter_.abandon()
    assert stats == {
        "filter": str(job / "dedupe" / "urls"),
        "last_stop": "clean",
        "fingerprints": 2,
        "forgotten": 0,
        "listed": 2,
        "exact": None,
        "capacity": 10_000,
        "layers": 1,
        "bytes": found.bytes,
        "fill_ratio": found.fill_ratio,
        "error_rate": 1e-6,
        "estimated_error": found.estimated_error,
        "expected_lost": found.expected_lost,
        "fingerprinter": FINGERPRINTER,
    }


# export


def test_both_forms_are_written(call: Callable[..., Any], job: Path, tmp_path: Path) -> None:
    make(job, [A, B])
    call("urls", "forget", "--jobdir", str(job), B)
    one, path = fingerprint(Request(A)), tmp_path / "file"
    forms = {"binary": b"\x00\x14" + one, "text": one.hex().encode() + b"\n"}
    for form, expected in forms.items():
        words = (
            "urls",
            "export",
            "--jobdir",
            str(job),
            "-o",
            str(path),
            "--force",
            "--format",
            form,
            "--json",
        )
        assert call(*words).json == {
            "filter": str(job / "dedupe" / "urls"),
            "file": str(path),
            "format": form,
            "written": 1,
            "lacking": 0,
        }
        assert path.read_bytes() == expected
    default = "binary" if version_info >= (2, 19) else "text"
    assert call("urls", "export", "--jobdir", str(job), "-o", str(tmp_path / "default")).code == 0
    assert (tmp_path / "default").read_bytes() == forms[default]
    assert sorted(item.name for item in tmp_path.glob("*.tmp")) == []


def test_a_file_that_is_there_is_replaced_by_force_alone(
    call: Callable[..., Any], job: Path, tmp_path: Path
) -> None:
    make(job, [A])
    path = tmp_path / "file"
    path.write_text("mine")
    called = call("urls", "export", "--jobdir", str(job), "-o", str(path))
    assert (called.code, called.out) == (3, "")
    assert "file already exists. Name another output, or replace it with --force." in called.err
    assert path.read_text() == "mine"
    for folder in (".", "/", str(tmp_path)):
        called = call("urls", "export", "--jobdir", str(job), "-o", folder, "--force")
        assert (called.code, "is a folder. Name a file." in called.err) == (3, True)
    assert call("urls", "export", "--jobdir", str(job), "-o", str(path), "--force").code == 0
    assert path.read_bytes() != b"mine"
    missing = tmp_path / "no" / "folder"
    called = call("urls", "export", "--jobdir", str(job), "-o", str(missing))
    assert called.code == 3
    assert "cannot be written" in called.err


def test_standard_output_takes_the_fingerprints_alone(call: Callable[..., Any], job: Path) -> None:
    make(job, [A])
    called = call("urls", "export", "--jobdir", str(job), "-o", "-", "--format", "text")
    assert (called.code, called.out, called.err) == (0, fingerprint(Request(A)).hex() + "\n", "")
    assert call("urls", "export", "--jobdir", str(job), "-o", "-", "--json").code == 2


def test_a_list_that_lacks_fingerprints_is_written_and_told(
    call: Callable[..., Any], job: Path, tmp_path: Path
) -> None:
    make(job, [A])
    make(job, [B])
    path = job / "dedupe" / "urls" / "urls.seen"
    path.write_bytes(path.read_bytes()[:-1])
    called = call("urls", "export", "--jobdir", str(job), "-o", str(tmp_path / "file"), "--format", "text")
    assert called.code == 4
    assert called.err == (
        "scrapy-dedupe urls export: The list of the filter is damaged: 1 fingerprint was written, 1 more are in"
        " the filter, but cannot be read from it.\n"
    )
    assert (tmp_path / "file").read_bytes() == fingerprint(Request(A)).hex().encode() + b"\n"


# import


def test_an_import_counts_what_is_new_known_and_seen_again(
    call: Callable[..., Any], job: Path, tmp_path: Path
) -> None:
    make(job, [A, B])
    call("urls", "forget", "--jobdir", str(job), B)
    first, second = tmp_path / "first", tmp_path / "second"
    prints = [fingerprint(Request(url)) for url in (A, B, C)]
    first.write_bytes(b"".join(item.hex().encode() + b"\n" for item in prints[:2]))
    second.write_bytes(b"".join(b"\x00\x14" + item for item in prints[1:]))
    called = call("urls", "import", "--jobdir", str(job), str(first), str(second), "--json")
    assert called.json == {
        "filter": str(job / "dedupe" / "urls"),
        "made": False,
        "taken_over": 0,
        "new": 1,
        "again": 1,
        "known": 2,
        "files": [
            {"file": str(first), "fingerprints": 2, "damaged_at": None},
            {"file": str(second), "fingerprints": 2, "damaged_at": None},
        ],
    }
    assert states(call("urls", "check", "--jobdir", str(job), "--json", A, B, C)) == ["seen"] * 3


@pytest.mark.parametrize("rest", [b"\x00\x14torn", b"\x00", bytes(4096), b"not hexadecimal\n"])
def test_a_damaged_end_is_left_out_and_told(
    call: Callable[..., Any], job: Path, tmp_path: Path, rest: bytes
) -> None:
    path = tmp_path / "torn"
    path.write_bytes(b"\x00\x14" + fingerprint(Request(A)) + rest)
    called = call("urls", "import", "--jobdir", str(job), str(path))
    assert called.code == 4
    assert called.out.startswith("1 fingerprint is new to ")
    assert called.err == (
        f"scrapy-dedupe urls import: Damaged files were imported only up to the damage: {path} at byte 22.\n"
    )
    assert states(call("urls", "check", "--jobdir", str(job), "--json", A)) == ["seen"]


def test_a_damaged_end_of_the_jobs_own_file_is_told(
    call: Callable[..., Any], job: Path, tmp_path: Path
) -> None:
    job.mkdir()
    own, other = job / "requests.seen", tmp_path / "other"
    own.write_bytes(b"\x00\x14" + fingerprint(Request(B)) + b"\x00\x14torn")
    other.write_bytes(b"\x00\x14" + fingerprint(Request(A)))
    called = call("urls", "import", "--jobdir", str(job), str(other))
    assert called.code == 4
    assert "1 more were imported" in called.out
    assert called.err == (
        f"scrapy-dedupe urls import: Damaged files were imported only up to the damage: {own} at byte 22.\n"
    )


def test_an_import_that_cannot_be_makes_nothing(call: Callable[..., Any], job: Path, tmp_path: Path) -> None:
    make(tmp_path / "other", [A])
    journal = tmp_path / "other" / "dedupe" / "urls" / "urls.seen"
    (tmp_path / "urls.txt").write_text("https://example.com/\n")
    for path, code, sentence in (
        (tmp_path / "urls.txt", 3, "is not a file of Scrapy's dupefilter"),
        (tmp_path / "missing", 3, "cannot be read"),
        (tmp_path, 3, "cannot be read"),
        (journal, 2, "Export it first"),
    ):
        called = call("urls", "import", "--jobdir", str(job), str(path))
        assert (called.code, called.out) == (code, "")
        assert sentence in called.err
        assert len(called.err.splitlines()) == 1
    assert not job.exists()


# Which filter


def test_which_filter_is_meant_has_to_be_said(call: Callable[..., Any], job: Path) -> None:
    for words, sentence in (
        ((), "No URL filter is given"),
        (("--key", "shop"), "no server is given"),
        (("--store", "sqlite:///dedupe.sqlite"), "has no URL filter"),
        (("--store", "redis://127.0.0.1:1/0", "--jobdir", "job"), "Give only one of them"),
        (("--store", "redis://127.0.0.1:1/0"), "--spider"),
    ):
        called = call("urls", "stats", *words)
        assert (called.code, called.out) == (2, "")
        assert sentence in called.err
        assert len(called.err.splitlines()) == 1


def test_where_there_is_no_filter_that_is_told_and_none_is_made(call: Callable[..., Any], job: Path) -> None:
    for words in (("check", A), ("forget", A), ("stats",), ("export", "-o", "file")):
        called = call("urls", words[0], "--jobdir", str(job), *words[1:])
        assert (called.code, called.out) == (3, "")
        assert "There is no URL filter in" in called.err
        assert len(called.err.splitlines()) == 1
    assert not job.exists()
    assert not Path("file").exists()


def test_without_a_verb_the_usage_is_printed(call: Callable[..., Any]) -> None:
    called = call("urls")
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith("usage: scrapy-dedupe urls ")
    assert called.err.splitlines()[-1].startswith("scrapy-dedupe urls: error: ")
    text = call("urls", "--help").out
    for verb in ("check", "forget", "stats", "export", "import"):
        assert f"  {verb} " in text
        assert "--jobdir DIR" in call("urls", verb, "--help").out


# In Redis


def keys(redis_url: str) -> dict[bytes, bytes]:
    """All that the server holds."""
    with redis.Redis.from_url(redis_url) as client:
        return {key: client.dump(key) for key in client.scan_iter()}


def test_a_filter_in_redis_is_asked_corrected_and_filled(
    call: Callable[..., Any], redis_url: str, tmp_path: Path
) -> None:
    where = ("--store", redis_url, "--spider", "links")
    with redis.Redis.from_url(redis_url) as client:
        shared = SharedBloomFilter(client, "links", 10_000, 1e-6, fingerprinter=FINGERPRINTER)
        shared.add_many([fingerprint(Request(url)) for url in (A, B)])
        before = keys(redis_url)
        called = call("urls", "check", *where, "--json", A, B, C)
        assert states(called) == ["seen", "seen", "new"]
        assert called.json["filter"] == f"links in {redis_url}"
        assert called.json["error_bound"] == 1e-6
        stats = call("urls", "stats", *where, "--json").json
        assert (stats["fingerprints"], stats["forgotten"], stats["layers"]) == (2, 0, 1)
        assert (stats["last_stop"], stats["listed"], stats["exact"]) == (None, None, None)
        assert (stats["capacity"], stats["error_rate"]) == (10_000, 1e-6)
        assert stats["bytes"] > 0 < stats["fill_ratio"]
        # To look changes nothing.
        assert keys(redis_url) == before

        assert call("urls", "forget", *where, B, C, B).out == (
            f"1 URL may be requested again.\nNot seen before: {C}\n"
        )
        assert states(call("urls", "check", "--store", redis_url, "--key", "links", "--json", A, B)) == [
            "seen",
            "new",
        ]
        assert f"2 fingerprints by {FINGERPRINTER}, 1 forgotten" in call("urls", "stats", *where).out
        file = tmp_path / "file"
        file.write_bytes(b"".join(b"\x00\x14" + fingerprint(Request(url)) for url in (A, C)))
        called = call("urls", "import", *where, str(file), "--json")
        assert [called.json[name] for name in ("new", "known", "made")] == [1, 1, False]
        # Another process than the one that remembers B as seen.
        other = SharedBloomFilter(client, "links", 10_000, 1e-6, fingerprinter=FINGERPRINTER)
        assert [other.add(fingerprint(Request(url))) for url in (A, B, B, C)] == [False, True, False, False]
        other.detach()
        shared.detach()


@pytest.mark.parametrize("end", ["killed", "cut"])
def test_an_import_that_the_next_run_would_lose_is_refused(
    call: Callable[..., Any], redis_url: str, tmp_path: Path, end: str
) -> None:
    where = ("--store", redis_url, "--spider", "links")
    file = tmp_path / "file"
    file.write_bytes(b"\x00\x14" + fingerprint(Request(A)))
    with redis.Redis.from_url(redis_url) as client:
        shared = SharedBloomFilter(client, "links", 10_000, 1e-6, fingerprinter=FINGERPRINTER, lease_s=600)
        shared.add(b"b")
        if end == "killed":
            own_tokens.remove(shared.token)
        else:
            shared.detach(cut=True)
        before = keys(redis_url)
        called = call("urls", "import", *where, str(file))
        assert (called.code, called.out) == (3, "")
        assert f"The last run with the URL filter links in {redis_url} did not end cleanly" in called.err
        assert len(called.err.splitlines()) == 1
        assert keys(redis_url) == before
        # As long as another one is there, nobody begins the filter anew.
        other = SharedBloomFilter(client, "links", 10_000, 1e-6, fingerprinter=FINGERPRINTER, keep="*")
        other.attach()
        assert call("urls", "import", *where, str(file), "--json").json["new"] == 1
        other.detach()
        assert call("urls", "import", *where, str(file), "--json").json["known"] == 1
        shared._caller.close()


@crawl_test
async def test_a_crawl_goes_by_what_its_filter_in_redis_was_told(
    call: Callable[..., Any],
    web: WebServer,
    settings: dict[str, Any],
    redis_url: str,
    tmp_path: Path,
) -> None:
    site(web)
    shared = {**settings, "DEDUPE_URL_STORE_URL": redis_url}
    await crawl(LinkSpider, shared, addon=False, urls=web.url())
    where = ("--store", redis_url, "--spider", "links")
    assert call("urls", "forget", *where, web.url("/1"), "--json").json["forgotten"] == 1
    file = tmp_path / "file"
    file.write_bytes(b"\x00\x14" + fingerprint(Request(web.url("/3"))))
    assert call("urls", "import", *where, str(file), "--json").json["new"] == 1
    web.page("/3", "a new page")
    web.page("/", "".join(f'<a href="{path}">x</a>' for path in [*PAGES, "/3"]))
    web.paths.clear()
    await crawl(LinkSpider, shared, addon=False, urls=web.url())
    # The start page, and the one that was forgotten; not the one that was imported.
    assert sorted(web.paths) == ["/", "/1"]


def test_what_is_not_there_in_redis_is_told_and_not_made(
    call: Callable[..., Any], redis_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\x00\x01a")
    where = ("--store", redis_url, "--key", "shop")
    for words in (("check", A), ("forget", A), ("stats",), ("import", str(file))):
        called = call("urls", words[0], *where, *words[1:])
        assert (called.code, called.out) == (3, "")
        assert f"There is no URL filter shop in {redis_url}." in called.err
        assert len(called.err.splitlines()) == 1
    assert keys(redis_url) == {}
    called = call("urls", "export", *where, "-o", str(tmp_path / "export"))
    assert (called.code, called.out) == (3, "")
    assert "has no list of its fingerprints" in called.err
    assert not (tmp_path / "export").exists()


def test_a_server_that_is_away_is_told(call: Callable[..., Any]) -> None:
    called = call("urls", "stats", "--store", "redis://127.0.0.1:1/0", "--key", "shop")
    assert (called.code, called.out) == (3, "")
    assert "redis://127.0.0.1:1/0 does not answer" in called.err
    assert len(called.err.splitlines()) == 1


PROJECT_SPIDERS = """
import hashlib
import scrapy

class Short:
    @classmethod
    def from_crawler(cls, crawler):
        made = cls()
        made.size = crawler.settings.getint("SHORT_SIZE")
        return made

    def fingerprint(self, request):
        return hashlib.sha1(request.url.encode()).digest()[: self.size]

class ShortSpider(scrapy.Spider):
    name = "short"
    custom_settings = {"REQUEST_FINGERPRINTER_CLASS": Short, "SHORT_SIZE": 3, "JOBDIR": "short-job"}

class AddOn:
    def update_settings(self, settings):
        settings.set("REQUEST_FINGERPRINTER_CLASS", Short, "addon")
"""


@pytest.fixture
def project(call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder is that of a project with one spider."""
    folder = tmp_path / "project"
    (folder / "kiosk").mkdir(parents=True)
    (folder / "scrapy.cfg").write_text("[settings]\ndefault = kiosk.settings\n")
    (folder / "kiosk" / "__init__.py").write_text("")
    (folder / "kiosk" / "settings.py").write_text(
        'SPIDER_MODULES = ["kiosk.spiders"]\nJOBDIR = "project-job"\n'
    )
    (folder / "kiosk" / "spiders.py").write_text(PROJECT_SPIDERS)
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "kiosk.settings")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "kiosk"]:
        del sys.modules[name]


def test_a_spiders_own_settings_count(call: Callable[..., Any], project: Path) -> None:
    Path("import").write_bytes(b"\x00\x03abc")
    called = call("urls", "import", "--spider", "short", "import", "--json")
    assert called.json["filter"] == "short-job/dedupe/urls"
    assert call("urls", "stats", "--spider", "short", "--json").json["fingerprinter"] == "kiosk.spiders.Short"
    checked = call("urls", "check", "--spider", "short", A, "--json").json
    assert len(checked["urls"][0]["fingerprint"]) == 6
    # The project's own job, and a spider that it does not have.
    for words in ((), ("--spider", "another")):
        called = call("urls", "stats", *words)
        assert (called.code, "There is no URL filter in project-job" in called.err) == (3, True)
    called = call("urls", "stats", "--jobdir", "short-job")
    assert called.code == 3
    assert "were made by kiosk.spiders.Short" in called.err


def test_an_add_on_may_set_the_fingerprinter(call: Callable[..., Any], project: Path) -> None:
    with (project / "kiosk" / "settings.py").open("a") as file:
        file.write('ADDONS = {"kiosk.spiders.AddOn": 1}\nSHORT_SIZE = 4\n')
    Path("import").write_bytes(b"\x00\x04abcd")
    assert call("urls", "import", "import").code == 0
    assert call("urls", "stats", "--json").json["fingerprinter"] == "kiosk.spiders.Short"
    assert len(call("urls", "check", A, "--json").json["urls"][0]["fingerprint"]) == 8


def test_a_fingerprinter_that_makes_none_is_told(call: Callable[..., Any], project: Path) -> None:
    with (project / "kiosk" / "settings.py").open("a") as file:
        file.write('REQUEST_FINGERPRINTER_CLASS = "kiosk.spiders.Short"\n')
    called = call("urls", "check", A)
    assert (called.code, called.out) == (2, "")
    assert "kiosk.spiders.Short returned b'' for https://a.example/a" in called.err


def test_spiders_that_cannot_be_loaded_are_told(call: Callable[..., Any], project: Path) -> None:
    (project / "kiosk" / "spiders.py").write_text("import no_such_module\n")
    called = call("urls", "stats", "--spider", "short")
    assert (called.code, called.out) == (2, "")
    assert "cannot be loaded (ModuleNotFoundError" in called.err
    assert len(called.err.splitlines()) == 1


def test_the_settings_name_the_filter_in_redis(
    call: Callable[..., Any], project: Path, redis_url: str
) -> None:
    with (project / "kiosk" / "settings.py").open("a") as file:
        file.write(f'DEDUPE_STORE_URL = "{redis_url}"\nDEDUPE_URL_KEY = "all-%(spider)s"\n')
    with redis.Redis.from_url(redis_url) as client:
        shared = SharedBloomFilter(client, "all-short", 100, 1e-3, fingerprinter="kiosk.spiders.Short")
        shared.add(b"abc")
        shared.detach()
        assert call("urls", "stats", "--spider", "short", "--json").json["fingerprints"] == 1
        called = call("urls", "stats")
        assert (called.code, called.out) == (2, "")
        assert "Name the spider with --spider" in called.err
        called = call("urls", "stats", "--key", "all-short")
        assert (called.code, called.out) == (3, "")
        assert "has the fingerprinter kiosk.spiders.Short" in called.err
        # A job that is named is meant.
        assert "There is no URL filter in job" in call("urls", "stats", "--jobdir", "job").err


def test_scrapys_command_takes_its_options_behind_the_verb(project: Path, job: Path) -> None:
    make(job, [A])

    def scrapy(*words: str) -> subprocess.CompletedProcess[str]:
        return run_program("scrapy", "dedupe", *words, env={"PYTHONPATH": str(project)})

    done = scrapy("urls", "check", A, "-s", f"JOBDIR={job}", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["urls"][0]["state"] == "seen"
    done = scrapy("urls", "check", A, "-s", f"JOBDIR={job}", "-s", "DEDUPE_URL_CONFIRM=True")
    assert done.stdout.splitlines()[-1] == '"seen" is exact.'
    refused = scrapy("-s", f"JOBDIR={job}", "urls", "check", "no URL")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("scrapy dedupe urls check: 'no URL' is not a URL")
    wrong = scrapy("urls")
    assert wrong.returncode == 2
    assert "usage: scrapy dedupe urls " in wrong.stderr
    assert wrong.stderr.splitlines()[-1].startswith("scrapy dedupe urls: error: ")
