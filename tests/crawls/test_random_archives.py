"""A check finds nothing in random archives after a crawl, a rebuild, an import, a repair, and a kill with a commit."""

from __future__ import annotations

import tempfile
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from import_files import Quiet
from offline.test_random_archives import plantings
from recorded_crawls import OpenGuard
from sampling import examples
from sound_archives import RULES, assert_sound, assert_sound_and_repaired_alike, state_of

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.importing import ImportOptions, import_sources
from scrapy_dedupe.crawls.rebuilding import rebuild, settle
from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from offline.planted import Planting

    from scrapy_dedupe.crawls import CrawlIndex

START = datetime(2026, 8, 1, 12, tzinfo=UTC)
QUIET = settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def pages(draw: st.DrawFn) -> list[Capture]:
    found = []
    for number in range(draw(st.integers(1, 14))):
        tag = draw(st.sampled_from((b"", b'"1"', b'"2"')))
        status = draw(st.sampled_from((200, 200, 200, 200, 304, 304, 206, 404)))
        body = draw(st.sampled_from("abc")).encode() * draw(
            st.sampled_from((2_000, 2_000, 3_000, 1_024, 1_023, 0))
        )
        capture = Capture(
            url=f"http://example.org/{draw(st.sampled_from(('', '1', '2', 'ä b')))}",
            method=draw(st.sampled_from(("GET", "GET", "GET", "GET", "POST"))),
            status=status,
            date=START + timedelta(milliseconds=700 * number),
            request_headers=((b"If-None-Match", tag),) if tag and status == 304 else (),
            request_body=b"",
            response_headers=((b"Content-Type", b"text/html"), *(((b"ETag", tag),) if tag else ())),
            body=b"" if status == 304 else body,
            truncated=draw(st.sampled_from((None,) * 5 + ("disconnect",))),
        )
        found.append(capture)
    return found


def record(
    index: CrawlIndex, folder: Path, crawl: str, captures: list[Capture]
) -> tuple[Recorder, WarcWriter]:
    index.start(crawl)
    writer = WarcWriter(
        folder,
        crawl,
        info={"isPartOf": crawl},
        file_size=4_000,
        on_new_file=lambda name: recorder.add_file(name),
    )
    recorder = Recorder(writer, index, crawl, OpenGuard())
    for capture in captures:
        recorder.record(capture)
    return recorder, writer


@QUIET
@given(pages(), pages())
def test_a_crawl_is_sound_and_a_rebuild_and_a_repair_change_nothing(
    first: list[Capture], second: list[Capture]
) -> None:
    with tempfile.TemporaryDirectory() as name, open_index(f"sqlite:///{name}/index.sqlite") as index:
        folder = Path(name, "warcs")
        record(index, folder, "one", first)[0].finish()
        index.commit("one")
        record(index, folder, "two", second)[0].finish()
        before = state_of(index, "two")
        rebuild(index, "two", folder, RULES)
        assert state_of(index, "two") == before
        index.commit("two")
        assert_sound_and_repaired_alike(index, folder, has_payloads=True)


@QUIET
@given(pages(), pages(), st.integers(0, 3_000), st.booleans())
def test_a_crawl_that_was_killed_is_sound_after_a_commit(
    first: list[Capture], second: list[Capture], lost_bytes: int, is_flushed: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, open_index(f"sqlite:///{name}/index.sqlite") as index:
        folder = Path(name, "warcs")
        record(index, folder, "one", first)[0].finish()
        index.commit("one")
        recorder, writer = record(index, folder, "two", second)
        if is_flushed:
            recorder.flush()
        (path,) = folder.glob("*.open")
        data = path.read_bytes()
        # The warcinfo is on disk before the index knows the file.
        kept = max(next(read_records(path)).length, len(data) - lost_bytes)
        writer.close()
        path.with_suffix("").unlink()
        path.write_bytes(data[:kept])
        settle(index, "two", folder, RULES)
        index.commit("two")
        assert_sound_and_repaired_alike(index, folder, has_payloads=True)


@QUIET
@given(plantings(), st.booleans())
def test_an_imported_archive_is_sound_and_a_repair_of_a_wacz_changes_nothing(
    planting: Planting, in_wacz: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, open_index(f"sqlite:///{name}/index.sqlite") as index:
        folder = Path(name, "warcs")
        planting.write(folder)
        files = [folder / file for file in planting.files]
        if in_wacz:
            with zipfile.ZipFile(folder / "all.wacz", "w") as wacz:
                for file in files:
                    wacz.write(file, f"archive/{file.name}")
            files = [folder / "all.wacz"]
        done = import_sources(index, list(map(str, files)), ImportOptions(crawl="theirs"), Quiet())
        if done.imported and in_wacz:
            assert_sound_and_repaired_alike(index, folder, has_payloads=True)
        elif done.imported:
            # A repair searches all files of a crawl for the best original, an import only those of one source.
            assert_sound(index, folder, has_payloads=True)
