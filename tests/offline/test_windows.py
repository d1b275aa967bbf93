"""Files that several readers use at once are read once, and long records are compared although they are not kept."""

from __future__ import annotations

import io
import random
from typing import TYPE_CHECKING, Literal

import pytest
from deduped_files import Archive as Pages
from deduped_files import Page, dedupe
from offline.archive_pairs import Archive, archive, convert, deduplicated, record_id, response, sha1
from offline.old_facts import old_records

from scrapy_dedupe.verification.verifying import verify
from scrapy_dedupe.warc.windows import KEPT_BYTES, HeldFile, WindowedFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapy_dedupe.verification.verifying import Verification

LONG = 2 * KEPT_BYTES + 12_345


class Counted:
    """A file that counts the bytes read from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def suffixes(self) -> Sequence[str]:
        return self.path.suffixes

    @property
    def share_read(self) -> float:
        return self.bytes_read / self.path.stat().st_size

    def open(self, mode: Literal["rb"], /) -> io.BufferedReader:
        counted = self

        class Raw(io.FileIO):
            def readinto(self, buffer: memoryview, /) -> int | None:  # type: ignore[override]
                count = super().readinto(buffer)
                counted.bytes_read += count or 0
                return count

            def read(self, size: int | None = -1, /) -> bytes | None:
                data = super().read(size)
                counted.bytes_read += len(data or b"")
                return data

        return io.BufferedReader(Raw(self.path, "rb"))


def check(before: Path, after: Path, folder: Path, *, with_facts: bool = False) -> Verification:
    facts = [list(old_records(before))] if with_facts else []
    return verify([(before, after)], facts=facts, work=folder / "work", seed=1)


@pytest.mark.parametrize("reads_ahead", [True, False])
def test_bytes_at_any_offset_are_those_of_the_file(reads_ahead: bool, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(KEPT_BYTES + 700_000)
    (tmp_path / "file").write_bytes(data)
    rng = random.Random(2)
    with WindowedFile(tmp_path / "file", reads_ahead=reads_ahead) as window:
        one, other = window.open("rb"), window.open("rb")
        for _ in range(60):
            offset, size = rng.randrange(len(data) + 10), rng.choice((1, 70, 9_000, 1 << 20))
            assert window.read(offset, size) == data[offset : offset + size]
            one.seek(offset)
            assert one.read(size) == data[offset : offset + size]
            other.seek(-size, io.SEEK_END)
            assert other.read() == data[-size:]


def test_bytes_in_memory_have_the_offsets_of_their_file() -> None:
    held = HeldFile(b"abcdef", "folder/name.warc", 10)
    assert (str(held), held.name, held.size_bytes) == ("folder/name.warc", "name.warc", 16)
    with held.open("rb") as file:
        assert file.seek(12) == 12
        assert file.read() == b"cdef"
    assert held.read(3, 5) == b""


@pytest.mark.parametrize("with_facts", [False, True])
def test_each_file_is_read_once(with_facts: bool, tmp_path: Path) -> None:
    pages = [
        Page(number, b"<p>%d</p>" % (number % 40) + random.Random(number % 40).randbytes(9_000))
        for number in range(1, 400)
    ]
    first = Pages({"a.warc.gz": pages}).write(tmp_path / "first") / "a.warc.gz"
    before, after = Counted(first), Counted(dedupe(first.parent, tmp_path / "deduped") / "a.warc.gz")
    facts = [list(old_records(first))] if with_facts else []
    result = verify([(before, after)], facts=facts, work=tmp_path / "work", sample=0)
    assert result.is_right
    assert result.converted == 359
    assert 1 <= after.share_read < 1.05
    if with_facts:
        # Only the requests, whose references changed.
        assert before.share_read < 0.1
    else:
        assert 1 <= before.share_read < 1.05


def test_a_file_that_is_not_rewritten_is_read_once(tmp_path: Path) -> None:
    pages = [Page(number, random.Random(number).randbytes(9_000)) for number in range(200)]
    file = Counted(Pages({"a.warc.gz": pages}).write(tmp_path / "first") / "a.warc.gz")
    result = verify([(file, file)], work=tmp_path / "work", sample=0)
    assert (result.unchanged, result.findings_count) == (401, 0)
    assert 1 <= file.share_read < 1.3


@pytest.mark.parametrize("name", ["a.warc.gz", "a.warc"])
@pytest.mark.parametrize("with_facts", [False, True])
def test_a_long_record_is_compared_to_its_last_byte(name: str, with_facts: bool, tmp_path: Path) -> None:
    body = random.Random(3).randbytes(LONG)
    records = {
        "short": response(1, "http://example.org/1", "2020-01-01T00:00:00Z", b"short"),
        "long": response(2, "http://example.org/2", "2020-01-01T00:00:01Z", body),
        "last": response(3, "http://example.org/3", "2020-01-01T00:00:02Z", b"last"),
    }
    before = Archive({name: records}).write(tmp_path / "before") / name
    same = Archive({name: records}).write(tmp_path / "same") / name
    result = check(before, same, tmp_path, with_facts=with_facts)
    assert (result.unchanged, result.findings_count) == (3, 0)
    records["long"].block = records["long"].block[:-1] + bytes([records["long"].block[-1] ^ 1])
    spoilt = Archive({name: records}).write(tmp_path / "spoilt") / name
    result = check(before, spoilt, tmp_path, with_facts=with_facts)
    assert result.unchanged == 2
    assert result.findings


def test_facts_of_another_file_are_no_proof(tmp_path: Path) -> None:
    before, after, other = archive(), deduplicated(), archive()
    other["alone"].block = other["alone"].block.replace(b"other", b"OTHER")
    files = [one.write(tmp_path / name) for one, name in ((before, "b"), (after, "a"), (other, "o"))]
    pairs = [(files[0] / name, files[1] / name) for name in before.files]
    facts = [list(old_records(files[2] / name)) for name in before.files]
    assert verify(pairs, work=tmp_path / "work").is_right
    result = verify(pairs, facts=facts, work=tmp_path / "work")
    # The record is read from the file before, as it is not the one of the facts, and has not changed.
    assert result.is_right
    assert result.unchanged == 5


def test_wrong_payload_digests_in_the_facts_are_noticed(tmp_path: Path) -> None:
    """Each page has a copy with another ending, and the facts have the digest of the same beginning for both."""
    before, after, names = Archive({"a.warc.gz": {}}), Archive({"a.warc.gz": {}}), range(64)
    for archive_ in (before, after):
        for number in names:
            for copy in (0, 1):
                page = response(
                    2 * number + copy,
                    f"http://example.org/{number}",
                    f"2020-01-0{1 + copy}T00:00:00Z",
                    b"<p>%d and %d</p>" % (number, copy),
                    digest=None,
                )
                page.set("WARC-Payload-Digest", sha1(b"%d" % number))
                archive_.files["a.warc.gz"][f"{number} {copy}"] = page
    for number in names:
        convert(after[f"{number} 1"], after[f"{number} 0"], record_id(1_000 + number))
    pair = (before.write(tmp_path / "b") / "a.warc.gz", after.write(tmp_path / "a") / "a.warc.gz")
    facts = [
        fact._replace(payload_sha256=bytes(31) + bytes([place // 2]))
        for place, fact in enumerate(old_records(pair[0]))
    ]
    result = verify([pair], facts=[facts], work=tmp_path / "work", sample=0)
    assert result.converted == 64
    assert "another payload" in str(result.findings)
