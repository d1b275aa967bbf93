"""What a recorder makes of an index that changes under it, and of files that cannot be finished."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.entries import RevisitRules, is_confirmed, validators_of
from scrapy_dedupe.crawls.packing import requirements
from scrapy_dedupe.crawls.rebuilding import files_of, rebuild
from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.errors import ArchiveError, CrawlStateError, StoreUnavailable
from scrapy_dedupe.stores.base import Need
from scrapy_dedupe.warc import files
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.remote import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.crawls import CrawlIndex


class Guard:
    """A store that is away if the test says so."""

    open = False

    def failed(self, error: BaseException) -> None:
        self.open = True

    def worked(self) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[CrawlIndex]:
    with open_index(f"sqlite:///{tmp_path / 'index.sqlite'}") as index:
        index.start("one")
        index.mark_incomplete("one", True)
        yield index


def recorder_in(folder: Path, index: CrawlIndex, guard: Guard, file_size: int = 10**9) -> Recorder:
    writer = WarcWriter(
        folder,
        "test",
        info={"isPartOf": "one"},
        file_size=file_size,
        on_new_file=lambda name: index.add_file("one", str(folder / name)),
    )
    return Recorder(writer, index, "one", guard)


def capture(number: int) -> Capture:
    return Capture(
        url=f"http://example.org/{number}",
        method="GET",
        status=200,
        date=datetime.now(UTC),
        request_headers=(),
        request_body=b"",
        response_headers=((b"Content-Type", b"text/html"), (b"ETag", b'"v%d"' % number)),
        body=b"%d" % number * 2_000,
    )


def state_of(index: CrawlIndex) -> tuple[str, bool, int]:
    (info,) = index.crawls()
    return info.state, info.incomplete, info.counts.total_urls


def test_records_that_wait_are_found_and_are_entered_at_the_end(tmp_path: Path, index: CrawlIndex) -> None:
    recorder = recorder_in(tmp_path / "warcs", index, Guard())
    kinds = [recorder.record(capture(number)).kind for number in (1, 2, 1)]
    assert kinds == ["response", "response", "revisit"]
    assert state_of(index) == ("uncommitted", True, 0)
    recorder.finish()
    assert state_of(index) == ("uncommitted", False, 3)


def test_a_file_that_could_not_be_finished_keeps_the_crawl_incomplete(
    tmp_path: Path, index: CrawlIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recorder_in(tmp_path / "warcs", index, Guard(), file_size=1)
    recorder.record(capture(1))

    def fails(path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files, "give_final_name", fails)
        with pytest.raises(ArchiveError, match="could not be finished"):
            recorder.record(capture(2))
    recorder.record(capture(2))
    recorder.finish()
    assert state_of(index)[:2] == ("uncommitted", True)


def test_a_crawl_that_was_canceled_while_it_ran_does_not_come_back(tmp_path: Path, index: CrawlIndex) -> None:
    recorder = recorder_in(tmp_path / "warcs", index, Guard())
    recorder.record(capture(1))
    index.cancel("one")
    with pytest.raises(CrawlStateError, match="was canceled while it ran"):
        recorder.finish()
    assert state_of(index)[0] == "canceled"


def test_an_index_that_was_emptied_knows_the_crawl_as_incomplete_until_all_is_entered(
    tmp_path: Path, index: CrawlIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = Guard()
    recorder = recorder_in(tmp_path / "warcs", index, guard)
    recorder.record(capture(1))
    guard.open = True
    recorder.record(capture(2))

    def interrupted(*args: object) -> None:
        raise StoreUnavailable("The store is away again.")

    with open_index(f"sqlite:///{tmp_path / 'empty.sqlite'}") as empty:
        recorder._index.index = empty
        with monkeypatch.context() as patch:
            patch.setattr("scrapy_dedupe.crawls.recorder.rebuild", interrupted)
            with pytest.raises(StoreUnavailable):
                recorder.finish()
        assert state_of(empty)[:2] == ("uncommitted", True)


def test_a_file_that_is_being_moved_counts_once(tmp_path: Path, index: CrawlIndex) -> None:
    recorder = recorder_in(tmp_path / "warcs", index, Guard())
    recorder.record(capture(1))
    (path,) = recorder.finish()
    copy = tmp_path / "elsewhere" / path.name
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    index.rename_file("one", str(path), str(copy))
    assert files_of(index, "one", tmp_path / "warcs") == [copy]
    assert rebuild(index, "one", tmp_path / "warcs", RevisitRules()).total_urls == 1


def test_files_in_a_storage_elsewhere_are_read_when_entries_are_made_anew(
    tmp_path: Path, index: CrawlIndex
) -> None:
    fsspec = pytest.importorskip("fsspec")
    recorder = recorder_in(tmp_path / "warcs", index, Guard())
    for number in (1, 2, 1):
        recorder.record(capture(number))
    (path,) = recorder.finish()
    url = f"memory://archive/{path.name}"
    with fsspec.open(url, "wb") as stream:
        stream.write(path.read_bytes())
    index.rename_file("one", str(path), url)
    path.unlink()
    assert [record.type for record in read_records(RemoteFile(url))].count("response") == 2
    counts = rebuild(index, "one", tmp_path / "warcs", RevisitRules())
    assert (counts.total_urls, counts.dupe_urls) == (3, 1)
    (original,) = index.find("one", [capture(1).payload_digest()])
    assert original is not None
    assert original.file == url


def test_a_crawl_that_was_committed_without_its_wacz_is_required_by_its_warc_file(index: CrawlIndex) -> None:
    index.start("two")
    index.add_container("one", "one.wacz")
    index.commit("one")
    index.add("two", [], needs=[Need("one", 0, "/archive/one.warc.gz")])
    assert [needed.filename for needed in requirements(index, "two")] == ["one.warc.gz"]


@pytest.mark.parametrize(
    ("asked", "confirmed"),
    [
        ([(b"If-None-Match", b'"a"')], True),
        ([(b"If-None-Match", b'W/"a"')], True),
        ([(b"If-None-Match", b'"b"'), (b"If-None-Match", b'"c", "a"')], True),
        ([(b"If-None-Match", b'"b"'), (b"If-Modified-Since", b"Sat, 28 Nov 2026 10:00:00 GMT")], False),
        ([(b"If-Modified-Since", b"Sat, 28 Nov 2026 10:00:00 GMT")], True),
        ([(b"If-Modified-Since", b"Sat, 28 Nov 2026 10:00:01 GMT")], False),
        ([(b"If-None-Match", b"*")], False),
        ([], False),
    ],
)
def test_a_request_asks_about_the_version_with_its_validator(
    asked: list[tuple[bytes, bytes]], confirmed: bool
) -> None:
    has_both = validators_of(((b"Etag", b'"a"'), (b"Last-Modified", b"Sat, 28 Nov 2026 10:00:00 GMT")))
    assert is_confirmed(tuple(asked), has_both) is confirmed
    assert not is_confirmed(tuple(asked), validators_of(()))


@pytest.mark.parametrize(
    ("tags", "own", "kind"),
    [
        (b'"v1"', b'"v1"', "revisit"),
        (b'"v1"', None, "revisit"),
        (b'"v0", "v1"', b'"v1"', "revisit"),
        (b'"v0", "v1"', b'"v0"', "response"),
        (b'"v0", "v1"', None, "response"),
    ],
)
def test_of_several_tags_the_304_says_which_is_meant(
    tmp_path: Path, index: CrawlIndex, tags: bytes, own: bytes | None, kind: str
) -> None:
    recorder = recorder_in(tmp_path / "warcs", index, Guard())
    recorder.record(capture(1))
    confirmation = Capture(
        url="http://example.org/1",
        method="GET",
        status=304,
        date=datetime.now(UTC),
        request_headers=((b"If-None-Match", tags),),
        request_body=b"",
        response_headers=((b"ETag", own),) if own else (),
        body=b"",
    )
    recorded = recorder.record(confirmation)
    assert recorded.kind == kind
    assert recorded.digest == ("" if kind == "response" else f"sha256:{capture(1).payload_digest()}")
    recorder.finish()


@pytest.mark.parametrize("payload", ["stored", "decoded"])
def test_an_index_that_was_emptied_gets_the_crawl_back_as_it_was_begun(tmp_path: Path, payload: str) -> None:
    # Its first index is lost with all that it says of payloads.
    with open_index(f"sqlite:///{tmp_path / 'another.sqlite'}") as index:
        writer = WarcWriter(tmp_path / "warcs", "test", info={"isPartOf": "one"})
        recorder = Recorder(writer, index, "one", Guard(), payload=payload, concurrent=True)
        recorder.record(capture(1))
        recorder.finish()
        (info,) = index.crawls()
    assert (info.id, info.payload, info.concurrent) == ("one", payload, True)
    assert info.counts.total_urls == 1


def test_the_records_of_a_concurrent_crawl_are_entered_one_by_one(tmp_path: Path) -> None:
    with open_index(f"sqlite:///{tmp_path / 'another.sqlite'}") as index:
        index.start("one", concurrent=True)
        writer = WarcWriter(tmp_path / "warcs", "test", info={"isPartOf": "one"})
        recorder = Recorder(writer, index, "one", Guard(), concurrent=True)
        for number in (1, 2, 3):
            recorder.record(capture(number))
            assert state_of(index)[2] == number
        recorder.finish()


def test_what_is_looked_up_at_once_becomes_what_it_would_become_one_by_one(
    tmp_path: Path, index: CrawlIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recorder_in(tmp_path / "warcs", index, Guard())
    asked: list[int] = []
    find = index.find_plain
    monkeypatch.setattr(
        index,
        "find_plain",
        lambda crawl, digests, **how: asked.append(len(digests)) or find(crawl, digests, **how),
    )
    recorder.record(capture(1))
    recorder.flush()
    captures = [capture(number) for number in (1, 2, 2, 3, 1, 2)]
    asked.clear()
    recorder.look_up(captures)
    assert asked == [3]
    # A payload that comes twice among them is new the first time alone; also if its record was entered in between.
    kinds = []
    for one in captures:
        kinds.append(recorder.record(one).kind)
        recorder.flush()
    assert kinds == ["revisit", "response", "revisit", "response", "revisit", "revisit"]


def test_what_could_not_be_looked_up_at_once_counts_as_new(tmp_path: Path, index: CrawlIndex) -> None:
    guard = Guard()
    recorder = recorder_in(tmp_path / "warcs", index, guard)
    recorder.record(capture(1))
    recorder.flush()
    guard.open = True
    captures = [capture(1), capture(2)]
    recorder.look_up(captures)
    assert [recorder.record(one).kind for one in captures] == ["response", "response"]
    assert recorder.is_incomplete
