from __future__ import annotations

import errno
import hashlib
import os
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import ArchiveError, StoreRefused, StoreUnavailable
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.exact import ConfirmedBloomFilter
from scrapy_dedupe.urls.folder import FilterFolder, LastStop
from scrapy_dedupe.urls.journal import FORGOTTEN, SEEN, Journal

if TYPE_CHECKING:
    from collections.abc import Iterator

MAKER = "a.Maker"
JOURNALS = ["urls.done", "urls.forgotten", "urls.seen", "urls.started"]

HEAD = b"sd-forg\n\x01\x00\x07\x00a.Maker" + bytes(4)


def folder_at(path: Path, maker: str = MAKER, *, confirm: bool = False) -> FilterFolder:
    return FilterFolder(path, maker, confirm=confirm)


def run(path: Path, *seen: bytes, error_rate: float = 1e-6) -> FilterFolder:
    """A run that found these and goes on."""
    folder = folder_at(path)
    filter_ = folder.open(100, error_rate).filter
    folder.seen_journal.append([item for item in seen if filter_.add(item)])
    return folder


def test_the_bytes_of_a_journal(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    folder.open(100, 1e-6)
    folder.done_journal.append([b"\x01\x02", b"\xff" * 3])
    folder.done_journal.append([b"\x07"])
    folder.done_journal.append([])
    folder.abandon()
    head = b"sd-done\n\x01\x00\x07\x00a.Maker"
    first, second = b"\x00\x02\x01\x02\x00\x03\xff\xff\xff", b"\x00\x01\x07"
    assert (tmp_path / "dedupe" / "urls" / "urls.done").read_bytes() == (
        head
        + struct.pack("<I", zlib.crc32(head))
        + struct.pack("<II", 9, zlib.crc32(first))
        + first
        + struct.pack("<II", 3, zlib.crc32(second))
        + second
    )


def test_after_a_clean_stop_everything_enqueued_is_seen(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    assert opened.last_stop is LastStop.NONE
    opened.filter.add_many([b"done", b"queued"])
    folder.done_journal.append([b"done"])
    folder.close(opened.filter)
    folder.close(opened.filter)
    again = folder_at(tmp_path).open(100, 1e-6)
    assert again.last_stop is LastStop.CLEAN
    assert again.filter.add_many([b"done", b"queued", b"new"]) == [False, False, True]


def test_after_a_kill_only_what_was_done_is_seen(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    opened.filter.add_many([b"done", b"queued"])
    folder.done_journal.append([b"done"])
    folder.abandon()
    again = folder_at(tmp_path).open(100, 1e-6)
    assert again.last_stop is LastStop.CUT
    assert again.filter.add_many([b"done", b"queued"]) == [False, True]


def test_the_journal_holds_the_done_requests_of_every_run(tmp_path: Path) -> None:
    for name in (b"first", b"second"):
        folder = folder_at(tmp_path)
        opened = folder.open(100, 1e-6)
        opened.filter.add(name)
        folder.done_journal.append([name])
        folder.close(opened.filter)
    folder = folder_at(tmp_path)
    folder.open(100, 1e-6)
    folder.abandon()
    again = folder_at(tmp_path).open(100, 1e-6)
    assert again.last_stop is LastStop.CUT
    assert len(again.filter) == 2


def test_a_kill_before_anything_was_done_leaves_an_empty_filter(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    folder.open(100, 1e-6).filter.add(b"queued")
    folder.abandon()
    again = folder_at(tmp_path).open(100, 1e-6)
    assert (again.last_stop, len(again.filter)) == (LastStop.CUT, 0)


def test_a_half_made_journal_is_that_of_a_new_job(tmp_path: Path) -> None:
    (tmp_path / "dedupe" / "urls").mkdir(parents=True)
    (tmp_path / "dedupe" / "urls" / "urls.done").write_bytes(b"sd-done\n\x01")
    (tmp_path / "requests.seen").write_bytes(b"\x00\x01a")
    opened = folder_at(tmp_path).open(100, 1e-6)
    assert (opened.last_stop, len(opened.filter)) == (LastStop.NONE, 1)


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=20), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_journal_cut_anywhere_gives_its_whole_blocks(
    tmp_path_factory: pytest.TempPathFactory, items: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("job")
    folder = folder_at(path)
    folder.open(100, 1e-9)
    journal = path / "dedupe" / "urls" / "urls.done"
    ends = [journal.stat().st_size]
    for item in items:
        folder.done_journal.append([item])
        ends.append(journal.stat().st_size)
    folder.abandon()
    cut_at = data.draw(st.integers(ends[0], ends[-1]))
    rest = data.draw(st.binary(max_size=12))
    os.truncate(journal, cut_at)
    with journal.open("ab") as file:
        file.write(rest)
    whole = sum(end <= cut_at for end in ends) - 1
    folder = folder_at(path)
    opened = folder.open(100, 1e-9)
    if not rest:
        assert journal.stat().st_size == ends[whole]
    assert all(item in opened.filter for item in items[:whole])
    folder.done_journal.append([b"afterwards"])
    folder.abandon()
    size = journal.stat().st_size
    opened = folder_at(path).open(100, 1e-9)
    assert b"afterwards" in opened.filter
    assert journal.stat().st_size == size


def test_a_changed_byte_in_a_block_ends_the_journal_there(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    folder.open(100, 1e-6)
    for item in (b"first", b"second", b"third"):
        folder.done_journal.append([item])
    folder.abandon()
    journal = tmp_path / "dedupe" / "urls" / "urls.done"
    journal.write_bytes(journal.read_bytes().replace(b"second", b"sEcond"))
    size = journal.stat().st_size
    opened = folder_at(tmp_path).open(100, 1e-6)
    assert opened.filter.add_many([b"first", b"second", b"third"]) == [False, True, True]
    assert journal.stat().st_size < size


def test_more_than_a_block_in_one_call(tmp_path: Path) -> None:
    items = [number.to_bytes(4, "big") * 200 for number in range(4000)]
    folder = folder_at(tmp_path)
    folder.open(10_000, 1e-6)
    folder.done_journal.append(items)
    folder.abandon()
    assert len(folder_at(tmp_path).open(10_000, 1e-6).filter) == 4000


def stopped(path: Path) -> Path:
    folder = folder_at(path)
    opened = folder.open(100, 1e-6)
    opened.filter.add(b"one")
    folder.done_journal.append([b"one"])
    folder.close(opened.filter)
    return path / "dedupe" / "urls" / "urls.bloom"


def test_a_damaged_snapshot_is_refused_and_left(tmp_path: Path) -> None:
    snapshot = stopped(tmp_path)
    good = snapshot.read_bytes()
    for offset in range(0, len(good), 7):
        bad = bytearray(good)
        bad[offset] ^= 0x10
        snapshot.write_bytes(bad)
        with pytest.raises(StoreRefused, match=r"urls\.bloom"):
            folder_at(tmp_path).open(100, 1e-6)
        assert snapshot.read_bytes() == bad
    for size in (0, 5, 20, len(good) - 1):
        snapshot.write_bytes(good[:size])
        with pytest.raises(StoreRefused, match=r"is damaged\. Delete it to continue from .*urls\.done"):
            folder_at(tmp_path).open(100, 1e-6)
    snapshot.unlink()
    assert len(folder_at(tmp_path).open(100, 1e-6).filter) == 1


def test_a_snapshot_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    snapshot = stopped(tmp_path)
    data = bytearray(snapshot.read_bytes())
    data[8] = 4
    snapshot.write_bytes(data)
    with pytest.raises(StoreRefused, match="format version 4, but this version of scrapy-dedupe reads 3"):
        folder_at(tmp_path).open(100, 1e-6)


def test_with_another_error_rate_the_filter_is_made_anew(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    opened.filter.add_many(FINGERPRINTS)
    folder.seen_journal.append(FINGERPRINTS)
    folder.close(opened.filter)
    folder = folder_at(tmp_path)
    opened = folder.open(100, 0.01)
    assert opened.last_stop is LastStop.CLEAN
    assert opened.filter.error_rate == 0.01
    assert opened.filter.add_many(FINGERPRINTS) == [False] * 5
    assert "error rate of 1e-06, but the setting DEDUPE_URL_ERROR_RATE is 0.01" in opened.notes[0]
    folder.close(opened.filter)
    assert folder_at(tmp_path).open(100, 0.01).notes == []


def test_another_error_rate_is_refused_with_both_where_the_journal_lacks_fingerprints(tmp_path: Path) -> None:
    snapshot = stopped(tmp_path)
    with pytest.raises(
        StoreRefused, match=r"1e-06, but the setting DEDUPE_URL_ERROR_RATE is 0\.01.* 0 of its 1 "
    ):
        folder_at(tmp_path).open(100, 0.01)
    assert snapshot.exists()


def test_another_fingerprinter_is_refused_with_both(tmp_path: Path) -> None:
    snapshot = stopped(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreRefused, match=r"made by a\.Maker, .* is b\.Maker"):
            folder_at(tmp_path, "b.Maker").open(100, 1e-6)
        snapshot.unlink(missing_ok=True)


def test_another_capacity_keeps_the_stored_one_and_says_so(tmp_path: Path) -> None:
    stopped(tmp_path)
    opened = folder_at(tmp_path).open(5000, 1e-6)
    assert opened.filter.capacity == 100
    assert "100 fingerprints, but this run is configured for 5,000" in opened.notes[0]


def test_a_foreign_file_in_the_place_of_the_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dedupe" / "urls").mkdir(parents=True)
    journal = tmp_path / "dedupe" / "urls" / "urls.done"
    journal.write_bytes(b"something else, and long enough to be a journal")
    with pytest.raises(StoreRefused, match="not a journal"):
        folder_at(tmp_path).open(100, 1e-6)
    assert journal.read_bytes().startswith(b"something")


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    first = folder_at(tmp_path)
    first.open(100, 1e-6)
    with pytest.raises(ArchiveError, match="in use by another process"):
        folder_at(tmp_path).open(100, 1e-6)
    first.abandon()


def test_a_folder_that_cannot_be_locked_is_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("scrapy_dedupe.files.locks.fcntl.flock", flock)
    with pytest.raises(StoreUnavailable, match="cannot be used: Operation not supported"):
        folder_at(tmp_path).open(100, 1e-6)


FINGERPRINTS = [hashlib.sha1(bytes([n])).digest() for n in range(5)]
BINARY = b"".join(b"\x00\x14" + item for item in FINGERPRINTS[3:])


def test_scrapys_own_file_is_taken_over_once(tmp_path: Path) -> None:
    (tmp_path / "requests.seen").write_bytes(BINARY)
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    assert "Imported 2 fingerprints" in opened.notes[0]
    assert not opened.filter.add(FINGERPRINTS[3])
    folder.close(opened.filter)
    again = folder_at(tmp_path).open(100, 1e-6)
    assert (again.notes, len(again.filter)) == ([], 2)


def test_clear_forgets_what_was_done(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    folder.open(100, 1e-6)
    folder.done_journal.append([b"one"])
    folder.clear()
    folder.done_journal.append([b"two"])
    folder.abandon()
    opened = folder_at(tmp_path).open(100, 1e-6)
    assert (b"one" in opened.filter, b"two" in opened.filter) == (False, True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_takes_no_more_is_told_once_and_nothing_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    folder.done_journal.append([b"one"])
    size = (tmp_path / "dedupe" / "urls" / "urls.done").stat().st_size
    write = os.write

    def half_written(fd: int, data: bytes) -> int:
        # A part fits, then the kernel says that the disk is full.
        if len(data) > 5:
            return write(fd, data[:5])
        with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
            return write(full.fileno(), data)

    monkeypatch.setattr(os, "write", half_written)
    with pytest.raises(StoreUnavailable, match=r"urls\.done cannot be written: .*No space left"):
        folder.done_journal.append([b"two"])
    folder.done_journal.append([b"three"])
    monkeypatch.setattr(os, "write", write)
    assert (tmp_path / "dedupe" / "urls" / "urls.done").stat().st_size == size
    # Scrapy's queue on the same disk may lack requests, so what it was to ask for must not count as seen.
    with pytest.raises(StoreUnavailable, match="treats this one as unclean"):
        folder.close(opened.filter)
    again = folder_at(tmp_path).open(100, 1e-6)
    assert (again.last_stop, len(again.filter)) == (LastStop.CUT, 1)


def test_a_snapshot_that_cannot_be_written_leaves_the_journal(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    folder.done_journal.append([b"one"])
    (tmp_path / "dedupe" / "urls" / "urls.bloom").mkdir()
    with pytest.raises(StoreUnavailable, match="could not be saved"):
        folder.close(opened.filter)
    (tmp_path / "dedupe" / "urls" / "urls.bloom").rmdir()
    assert sorted(path.name for path in (tmp_path / "dedupe" / "urls").iterdir()) == JOURNALS
    assert folder_at(tmp_path).open(100, 1e-6).last_stop is LastStop.CUT


def test_what_failed_may_be_asked_for_once_more(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    opened.filter.add_many([b"good", b"bad", b"worse"])
    folder.forgotten_journal.append([b"bad", b"worse"])
    assert not opened.forgotten.take(b"bad"), "in the same run it stays seen"
    folder.close(opened.filter)
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    assert [opened.forgotten.take(item) for item in (b"good", b"bad", b"bad")] == [False, True, False]
    folder.close(opened.filter)
    opened = folder_at(tmp_path).open(100, 1e-6)
    assert [opened.forgotten.take(item) for item in (b"bad", b"worse")] == [False, True]


def test_a_failed_request_in_scrapys_own_file_may_be_requested_again(tmp_path: Path) -> None:
    log = Journal(tmp_path / "dedupe" / "urls" / "urls.forgotten", MAKER, FORGOTTEN)
    log.path.parent.mkdir(parents=True)
    log.lock()
    log.open()
    log.append([b"\x01\x02"])
    log.close()
    (tmp_path / "requests.seen").write_text("0102\n0304\n")
    assert folder_at(tmp_path).open(100, 1e-6).forgotten.take(b"\x01\x02")


def test_what_fails_again_is_forgotten_again(tmp_path: Path) -> None:
    for _ in range(3):
        folder = folder_at(tmp_path)
        opened = folder.open(100, 1e-6)
        if not opened.filter.add(b"bad"):
            assert opened.forgotten.take(b"bad")
        folder.forgotten_journal.append([b"bad"])
        folder.close(opened.filter)
    size = (tmp_path / "dedupe" / "urls" / "urls.forgotten").stat().st_size
    opened = folder_at(tmp_path).open(100, 1e-6)
    assert len(opened.forgotten) == 1
    assert size == len(HEAD) + 8 + 2 + 3


def forget(path: Path, *fingerprints: bytes) -> None:
    log = Journal(path / "dedupe" / "urls" / "urls.forgotten", MAKER, FORGOTTEN)
    log.lock()
    log.open()
    log.append(fingerprints)
    log.close()


def test_what_is_asked_for_again_and_left_in_the_queue_is_not_lost_with_the_queue(tmp_path: Path) -> None:
    folder = run(tmp_path, b"queued", b"done again", b"done")
    filter_ = GrowingBloomFilter(100, 1e-6)
    filter_.add_many([b"queued", b"done again", b"done"])
    folder.done_journal.append([b"queued", b"done again", b"done"])
    folder.close(filter_)
    forget(tmp_path, b"queued", b"done again")
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    assert [opened.forgotten.take(item) for item in (b"queued", b"done again")] == [True, True]
    folder.done_journal.append([b"done again"])
    folder.close(opened.filter)
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    assert opened.filter.add_many([b"queued", b"done again", b"done"]) == [False, False, False]
    assert len(opened.forgotten) == 0
    folder.abandon()
    opened = folder_at(tmp_path).open(100, 1e-6)
    assert opened.last_stop is LastStop.CUT
    assert opened.filter.add_many([b"queued", b"done again", b"done"]) == [True, False, False]


def test_what_is_asked_for_again_stays_forgotten_if_the_stop_cannot_be_saved(tmp_path: Path) -> None:
    folder = run(tmp_path)
    folder.done_journal.append([b"queued"])
    folder.abandon()
    forget(tmp_path, b"queued")
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    assert opened.forgotten.take(b"queued")
    (tmp_path / "dedupe" / "urls" / "urls.bloom").mkdir()
    with pytest.raises(StoreUnavailable, match="could not be saved"):
        folder.close(opened.filter)
    (tmp_path / "dedupe" / "urls" / "urls.bloom").rmdir()
    opened = folder_at(tmp_path).open(100, 1e-6)
    assert opened.filter.add(b"queued") or opened.forgotten.take(b"queued")


def test_what_fails_after_everything_was_cleared_is_forgotten(tmp_path: Path) -> None:
    forget_first = run(tmp_path, b"bad")
    forget_first.forgotten_journal.append([b"bad"])
    forget_first.close(GrowingBloomFilter(100, 1e-6))
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    assert opened.forgotten.take(b"bad")
    folder.clear()
    folder.forgotten_journal.append([b"bad"])
    folder.close(opened.filter)
    assert b"bad" in folder_at(tmp_path).open(100, 1e-6).forgotten


def test_a_filter_that_is_made_anew_lacks_what_never_came_to_count(tmp_path: Path) -> None:
    folder = run(tmp_path, b"a")
    filter_ = GrowingBloomFilter(100, 1e-6)
    filter_.add(b"a")
    folder.close(filter_)
    seen = Journal(tmp_path / "dedupe" / "urls" / "urls.seen", MAKER, SEEN)
    seen.lock()
    seen.open()
    seen.append([b"of an import that was killed"])
    seen.close()
    opened = folder_at(tmp_path).open(100, 1e-3)
    assert opened.filter.error_rate == 1e-3
    assert [item in opened.filter for item in (b"a", b"of an import that was killed")] == [True, False]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "cut"])
def test_a_start_that_comes_to_nothing_leaves_what_it_found(tmp_path: Path, clean: bool) -> None:
    folder = run(tmp_path, b"a")
    folder.close(GrowingBloomFilter(100, 1e-6)) if clean else folder.abandon()
    for _ in range(2):
        folder = folder_at(tmp_path)
        opened = folder.open(100, 1e-6)
        assert opened.last_stop is (LastStop.CLEAN if clean else LastStop.CUT)
        folder.undo_open()


def test_the_first_start_of_a_job_that_comes_to_nothing_is_none(tmp_path: Path) -> None:
    (tmp_path / "requests.seen").write_bytes(BINARY)
    (tmp_path / "requests.queue").mkdir()
    for _ in range(2):
        folder = folder_at(tmp_path)
        assert folder.set_queue_aside() is None
        opened = folder.open(100, 1e-6)
        assert (opened.last_stop, len(opened.filter)) == (LastStop.NONE, 2)
        folder.undo_open()
        assert folder.done_journal.path.stat().st_size == 0


def test_after_a_kill_the_seen_are_those_that_were_done(tmp_path: Path) -> None:
    folder = run(tmp_path, b"done", b"queued")
    folder.done_journal.append([b"done"])
    folder.abandon()
    folder = run(tmp_path)
    folder.abandon()
    seen = Journal(tmp_path / "dedupe" / "urls" / "urls.seen", MAKER, SEEN)
    seen.lock()
    assert list(seen.fingerprints()) == [b"done"]
    seen.close()


def test_what_was_written_behind_the_size_that_the_snapshot_names_does_not_count(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    opened.filter.add(b"one")
    folder.seen_journal.append([b"one"])
    folder.close(opened.filter)
    size = (tmp_path / "dedupe" / "urls" / "urls.seen").stat().st_size
    seen = Journal(tmp_path / "dedupe" / "urls" / "urls.seen", MAKER, SEEN)
    seen.lock()
    seen.open()
    seen.append([b"two"])
    seen.close()
    folder_at(tmp_path).open(100, 1e-6)
    assert (tmp_path / "dedupe" / "urls" / "urls.seen").stat().st_size == size


def test_hits_are_confirmed_in_a_set_that_outlives_the_run(tmp_path: Path) -> None:
    items = [number.to_bytes(2, "big") for number in range(2000)]
    folder = folder_at(tmp_path, confirm=True)
    opened = folder.open(100, 0.3)
    assert isinstance(opened.filter, ConfirmedBloomFilter)
    assert opened.filter.add_many(items) == [True] * len(items)
    assert opened.filter.false_positives > 100
    folder.seen_journal.append(items)
    folder.close(opened.filter)
    folder = folder_at(tmp_path, confirm=True)
    opened = folder.open(100, 0.3)
    assert opened.notes == []
    assert opened.filter.add_many([*items, b"new"]) == [False] * len(items) + [True]
    folder.abandon()


def test_after_a_kill_the_exact_set_holds_what_was_done(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, confirm=True)
    filter_ = folder.open(100, 1e-6).filter
    assert isinstance(filter_, ConfirmedBloomFilter)
    folder.seen_journal.append([item for item in (b"done", b"queued") if filter_.add(item)])
    folder.done_journal.append([b"done"])
    filter_.exact.write_pending()
    folder.abandon()
    folder = folder_at(tmp_path, confirm=True)
    opened = folder.open(100, 1e-6)
    assert opened.filter.add_many([b"done", b"queued"]) == [False, True]
    folder.abandon()


def test_an_exact_set_may_be_wanted_later_on(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    opened.filter.add_many(FINGERPRINTS)
    folder.seen_journal.append(FINGERPRINTS)
    folder.close(opened.filter)
    folder = folder_at(tmp_path, confirm=True)
    opened = folder.open(100, 1e-6)
    assert opened.filter.add_many(FINGERPRINTS) == [False] * 5
    assert "was rebuilt" in opened.notes[0]
    assert "lacks" not in opened.notes[0]
    folder.abandon()


def test_a_queue_is_set_aside_after_a_kill_alone(tmp_path: Path) -> None:
    queue = tmp_path / "requests.queue"
    queue.mkdir()
    assert folder_at(tmp_path).set_queue_aside() is None
    folder = folder_at(tmp_path)
    opened = folder.open(100, 1e-6)
    folder.close(opened.filter)
    assert folder_at(tmp_path).set_queue_aside() is None
    run(tmp_path).abandon()
    assert folder_at(tmp_path).set_queue_aside() == tmp_path / "requests.queue.cut-1"
    assert not queue.exists()


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "dedupe").mkdir()
    (tmp_path / "dedupe" / "urls").write_bytes(b"a file")
    with pytest.raises(StoreUnavailable, match=r"urls is a file\. Name another folder in JOBDIR\.$"):
        folder_at(tmp_path).open(100, 1e-6)


APPENDS = """
import sys
from pathlib import Path
from scrapy_dedupe.urls.folder import FilterFolder
folder = FilterFolder(Path(sys.argv[1]), "a.Maker")
filter_ = folder.open(100_000, 1e-9).filter
number = len(filter_)
print(number, flush=True)
while True:
    folder.done_journal.append([(number + i).to_bytes(8, "big") for i in range(2)])
    number += 2
    print(number, flush=True)
"""


def test_kill_at_any_moment_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    known = 0
    for round_ in range(5):
        process = subprocess.Popen([sys.executable, "-c", APPENDS, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert int(process.stdout.readline()) >= known
        for _ in range(30 * (round_ + 1)):
            known = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().split(b"\n")[:-1]
        process.wait()
        process.stdout.close()
        known = int(lines[-1]) if lines else known
    opened = folder_at(tmp_path).open(100_000, 1e-9)
    assert opened.last_stop is LastStop.CUT
    assert all(number.to_bytes(8, "big") in opened.filter for number in range(known))
    assert known <= len(opened.filter) <= known + 2


def test_what_a_kill_left_of_a_rewriting_does_not_stop_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / "journal.tmp"
    left.write_bytes(bytes(100))
    journal = Journal(tmp_path / "journal", MAKER)
    journal.lock()
    journal.open()
    journal.append([b"a", b"b"])
    journal.rewrite([b"b"])
    assert list(journal.fingerprints()) == [b"b"]
    journal.close()
    assert not left.exists()


def test_a_rewriting_that_fails_leaves_the_journal_and_no_other_file(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"c"
        raise OSError("no space left")

    journal = Journal(tmp_path / "journal", MAKER)
    journal.lock()
    journal.open()
    journal.append([b"a", b"b"])
    with pytest.raises(OSError, match="no space"):
        journal.rewrite(failing())
    assert list(journal.fingerprints()) == [b"a", b"b"]
    journal.close()
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


def test_block_of_a_damaged_journal_is_limited_to_one_mebibyte(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", MAKER)
    journal.open()
    many = [number.to_bytes(2, "big") * 30_000 for number in range(40)]
    journal.append(many)
    assert list(journal.fingerprints()) == many
    end = journal.size_bytes
    records = (b"\xff\xff" + bytes(0xFFFF)) * 20
    with journal.path.open("ab") as file:
        file.write(struct.pack("<II", len(records), zlib.crc32(records)) + records)
    assert list(journal.fingerprints()) == many
    journal.close()
    journal.open()
    assert journal.size_bytes == end == journal.path.stat().st_size
    journal.close()


@pytest.mark.skipif(os.name == "nt", reason="there an open file keeps its name")
def test_a_journal_that_was_replaced_before_it_was_locked_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Journal(tmp_path / "journal", MAKER), Journal(tmp_path / "journal", MAKER)
    first.lock()
    first.open()
    opened = os.open

    def open_late(*args: Any) -> int:
        fd = opened(*args)
        monkeypatch.undo()
        first.rewrite([b"a"])
        return fd

    monkeypatch.setattr(os, "open", open_late)
    with pytest.raises(ArchiveError, match="in use"):
        second.lock()
    assert list(first.fingerprints()) == [b"a"]
    first.close()


def test_a_start_of_a_new_job_that_fails_is_no_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requests.seen").write_bytes(b"6161\n")
    done = folder_at(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as context:
        context.setattr(done.done_journal, "open", full)
        with pytest.raises(StoreUnavailable):
            done.open(100, 1e-6)
    opened = folder_at(tmp_path).open(100, 1e-6)
    assert (opened.last_stop, opened.warnings) == (LastStop.NONE, [])
    assert b"aa" in opened.filter
    opened.abandon()


@pytest.mark.parametrize("tail", [b"", b"\x09\x00\x00\x00torn", bytes(4_096)], ids=["none", "torn", "zeros"])
def test_after_a_kill_only_an_incomplete_end_is_reported(tmp_path: Path, tail: bytes) -> None:
    folder = run(tmp_path, b"a", b"b")
    folder.done_journal.append([b"a"])
    folder.abandon()
    with folder.done_journal.path.open("ab") as file:
        file.write(tail)
    opened = folder_at(tmp_path).open(100, 1e-6)
    assert opened.last_stop is LastStop.CUT
    assert (b"a" in opened.filter, b"b" in opened.filter) == (True, False)
    expected = f"The last {len(tail):,} bytes of {folder.done_journal.path} were incomplete or damaged"
    assert [text.startswith(expected) for text in opened.warnings] == [True] * bool(tail)
    opened.abandon()
