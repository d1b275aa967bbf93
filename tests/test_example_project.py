"""The example project, run as a newcomer runs it: from its folder, with the settings that it comes with."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import socket
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from programs import run_program
from servers import free_port
from warcio.archiveiterator import ArchiveIterator

from scrapy_dedupe.content.canonical import canonical_text

if TYPE_CHECKING:
    from webserver import WebServer

PROJECT = Path(__file__).parent.parent / "example_project"
SUMMARY = "Deduplication summary"
WARC_MIN_SIZE = 1_024


@dataclass
class Run:
    """One ``scrapy crawl site``: its log, and the items by path and query."""

    code: int
    log: str
    items: list[dict[str, Any]]

    @property
    def verdicts(self) -> dict[str, str | None]:
        return {path_of(item["url"]): item["verdict"] for item in self.items}


def path_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def run_crawl(project: Path, *options: str) -> Run:
    output = project / "items.jsonl"
    done = run_program("scrapy", "crawl", "site", "-O", f"{output}:jsonl", *options, cwd=project)
    lines = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
    output.unlink(missing_ok=True)
    return Run(done.returncode, done.stderr, [json.loads(line) for line in lines])


def copy_of_project(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", ".scrapy", "warcs", "jobs")
    return shutil.copytree(PROJECT, folder / "example_project", ignore=ignored)


def warc_records(project: Path, files: set[Path]) -> list[tuple[str, str]]:
    """Type and path of each record that has a target."""
    records = []
    for file in sorted(files):
        with file.open("rb") as stream:
            for record in ArchiveIterator(stream):
                url = record.rec_headers.get_header("WARC-Target-URI")
                if url is not None and record.rec_type in {"response", "revisit"}:
                    records.append((record.rec_type, path_of(url)))
    return records


@dataclass
class TwoRuns:
    project: Path
    first: Run
    second: Run
    first_records: list[tuple[str, str]]
    second_records: list[tuple[str, str]]


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> TwoRuns:
    project = copy_of_project(tmp_path_factory.mktemp("example"))
    port = ("-s", f"EXAMPLE_SITE_PORT={free_port()}")
    first = run_crawl(project, *port)
    first_files = set((project / "warcs").glob("*.warc.gz"))
    second = run_crawl(project, *port)
    second_files = set((project / "warcs").glob("*.warc.gz")) - first_files
    return TwoRuns(
        project, first, second, warc_records(project, first_files), warc_records(project, second_files)
    )


def test_both_crawls_end_well(two_runs: TwoRuns) -> None:
    for run in (two_runs.first, two_runs.second):
        assert run.code == 0
        assert "Spider closed (finished)" in run.log
        assert " ERROR: " not in run.log
        assert "DeprecationWarning" not in run.log


def test_each_crawl_ends_with_a_summary(two_runs: TwoRuns) -> None:
    for run in (two_runs.first, two_runs.second):
        assert SUMMARY in run.log
        assert ".warc.gz" in run.log


def test_no_page_is_asked_for_twice(two_runs: TwoRuns) -> None:
    responses = [path for kind, path in two_runs.first_records if kind == "response"]
    # A redirect to itself answers twice, first with 302 and then with the page.
    twice = {path for path, count in Counter(responses).items() if count > 1}
    assert twice == {"/guestbook"}
    # /home redirects to the start page, which only the start request had recorded, so the redirect passes once.
    assert len(two_runs.first.items) == len(two_runs.first.verdicts) + 1


def test_a_page_that_redirects_to_itself_is_fetched(two_runs: TwoRuns) -> None:
    assert {"/guestbook", "/calendar?season=spring&view=list"} <= two_runs.first.verdicts.keys()


def test_links_that_differ_in_query_order_or_fragment_are_one(two_runs: TwoRuns) -> None:
    sightings = [path for path in two_runs.first.verdicts if path.startswith("/sightings")]
    assert sorted("mere" in path for path in sightings) == [False, True]


def test_robots_txt_is_obeyed_and_archived(two_runs: TwoRuns) -> None:
    paths = {path for _, path in two_runs.first_records}
    assert "/robots.txt" in paths
    assert not {path for path in paths if path.startswith("/private")}


def test_redirects_errors_and_files_are_in_the_archive(two_runs: TwoRuns) -> None:
    paths = {path for _, path in two_runs.first_records}
    assert {"/home", "/today", "/directions.html", "/species/great-auk"} <= paths
    assert {"/images/reserve-map.png", "/images/map.png", "/files/visitor-guide.pdf"} <= paths


def test_copies_under_two_addresses_are_exact(two_runs: TwoRuns) -> None:
    verdicts = two_runs.first.verdicts
    for pair in (
        ("/", "/index.html"),
        ("/news/eel-record", "/news/eel-record?ref=newsletter"),
        ("/news/boardwalk-reopens", "/news/boardwalk-reopens?ref=newsletter"),
    ):
        assert {verdicts[path] for path in pair} == {"unique", "exact"}, pair


def test_printer_versions_are_near_copies_and_templates_are_not(two_runs: TwoRuns) -> None:
    verdicts = two_runs.first.verdicts
    near = {path for path, verdict in verdicts.items() if verdict == "near"}
    pages = {path.removesuffix("/print") for path in near}
    assert pages <= {f"/species/{name}" for name in ("bittern", "marsh-harrier", "water-vole", "swallowtail")}
    # In which order the pages come decides what is known of the template, and so, on a small site, about one of them.
    assert len(pages) == len(near) >= 3
    assert verdicts["/species/otter"] == verdicts["/species/eel"] == "unique"


def test_files_are_not_judged(two_runs: TwoRuns) -> None:
    assert two_runs.first.verdicts["/images/map.png"] == "unknown"
    assert two_runs.first.verdicts["/files/visitor-guide.pdf"] == "unknown"


def test_the_same_picture_under_two_addresses_is_stored_once(two_runs: TwoRuns) -> None:
    kinds = sorted(kind for kind, path in two_runs.first_records if path.startswith("/images/"))
    assert kinds == ["response", "revisit"]


def test_the_second_crawl_finds_every_page_unchanged_but_one(two_runs: TwoRuns) -> None:
    verdicts = two_runs.second.verdicts
    changed = {path for path, verdict in verdicts.items() if verdict not in {"unchanged", "unknown"}}
    assert changed == {"/weather"}
    assert verdicts["/weather"] == "near"
    assert verdicts.keys() == two_runs.first.verdicts.keys()


def test_the_second_crawl_writes_revisits_of_the_first(two_runs: TwoRuns) -> None:
    revisits = {path for kind, path in two_runs.second_records if kind == "revisit"}
    pages = {path for path in two_runs.second.verdicts if path != "/weather"}
    assert pages <= revisits
    assert "/weather" not in revisits


def test_a_taken_port_is_named_and_nothing_is_crawled(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = run_crawl(copy_of_project(tmp_path), "-s", f"EXAMPLE_SITE_PORT={port}")
    assert f"cannot be served on 127.0.0.1:{port}" in run.log
    assert f"-s EXAMPLE_SITE_PORT={port + 1}" in run.log
    assert run.items == []


def test_another_site_is_crawled_on_demand(tmp_path: Path, web: WebServer) -> None:
    web.page("/", '<title>Home</title><p>Hello <a href="/two">two</a> <a href="http://other.invalid/">x</a>')
    web.page("/two", "<title>Two</title><p>World")
    run = run_crawl(copy_of_project(tmp_path), "-a", f"url={web.url()}", "-s", "DOWNLOAD_DELAY=0")
    assert sorted(item["title"] for item in run.items) == ["Home", "Two"]


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    run = run_crawl(copy_of_project(tmp_path), "-a", "url=example.org")
    assert "-a url=example.org is not the URL of a site" in run.log
    assert run.items == []


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(PROJECT))
    from example.site.pages import resources

    return resources()


def test_the_bundled_site_has_near_copies_and_a_template_with_known_similarities(
    site: dict[str, Any],
) -> None:
    shingles = {}
    for path, resource in site.items():
        if resource.content_type.startswith("text/html") and not path.startswith("/private"):
            text = canonical_text(resource.body.decode())
            shingles[path] = {text[start : start + 7] for start in range(len(text) - 6)}
    assert 30 <= len(shingles) <= 60
    for one, other in itertools.combinations(shingles, 2):
        if site[one].body == site[other].body:
            continue
        similarity = len(shingles[one] & shingles[other]) / len(shingles[one] | shingles[other])
        if other in {f"{one}/print", one.removesuffix("/print")}:
            assert 0.9 <= similarity < 1, (one, other)
        else:
            assert similarity < 0.7, (one, other)


def test_every_page_of_the_bundled_site_is_large_enough_for_a_revisit(site: dict[str, Any]) -> None:
    for path, resource in site.items():
        if path == "/robots.txt" or path.startswith("/private"):
            continue
        stored = gzip.compress(resource.body, mtime=0) if resource.is_gzipped else resource.body
        assert len(stored) > WARC_MIN_SIZE, path
