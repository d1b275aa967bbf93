"""Rows of files: what they say of each record, and that usual and unusual records are described alike."""

from __future__ import annotations

import base64
import hashlib
import random
import resource
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from offline.garden import garden
from offline.old_facts import old_records
from offline.planted import SITE, Planting, record_id, text
from sampling import sampled

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.offline import rows as rows_module
from scrapy_dedupe.offline.eligibility import Eligibility
from scrapy_dedupe.offline.row_scan import RowScan, make_rows
from scrapy_dedupe.offline.rows import COLUMNS, RecordRow, RowsTask, write_rows
from scrapy_dedupe.stores.duckdb import MEMORY_LIMIT, open_engine
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.progress import NO_PROGRESS
from scrapy_dedupe.tasks.work import WorkFolder
from scrapy_dedupe.verification.old_files import RowFacts
from scrapy_dedupe.warc import framing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = text("page", 4_000)


def task(file: Path, **options: Any) -> RowsTask:
    values: dict[str, Any] = {
        "name": file.name,
        "file": file,
        "path": file,
        "eligibility": Eligibility(),
        "algorithms": ("sha256", "blake2b"),
        "is_summed": True,
    }
    return RowsTask(**(values | options))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    p = Planting()
    p.file("a.warc.gz")
    p.warcinfo("a.warc.gz")
    first = p.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE, date="2020-01-01T00:00:01.5Z")
    p.exchange("a.warc.gz", "post", f"{SITE}/2", PAGE, method="POST")
    p.revisit("a.warc.gz", "old", f"{SITE}/3", first)
    p.write(tmp_path)
    return tmp_path / "a.warc.gz"


def read(path: Path) -> list[RecordRow]:
    found = duckdb.connect().execute(f"SELECT * FROM read_parquet('{path}') ORDER BY \"offset\"")
    return [RecordRow(*values) for values in found.fetchall()]


def test_each_record_has_a_row(file: Path) -> None:
    faults = Faults()
    make_rows(task(file), faults)

    info, first, asked, posted, request, old = read(file.with_suffix(".parquet"))
    assert faults.count == 0
    assert [row.kind for row in (info, first, asked, posted, request, old)] == [
        "warcinfo", "response", "request", "response", "request", "revisit"
    ]  # fmt: skip
    assert first.offset == info.offset + info.length
    assert first.id == record_id("first")
    assert first.id_key == record_id("first").strip(b"<>")
    assert (first.uri, first.date) == (f"{SITE}/1".encode(), b"2020-01-01T00:00:01.5Z")
    assert first.date_key == "2020-01-01T00:00:01.5"
    assert first.sha256 == hashlib.sha256(PAGE).digest()
    assert first.blake2b == hashlib.blake2b(PAGE, digest_size=32).digest()
    assert (first.size_bytes, first.reason, first.unfit, first.is_listed) == (4_000, None, None, True)
    assert [row.is_other_method for row in (asked, request)] == [False, True]
    assert request.concurrent_to == [record_id("post").strip(b"<>")]
    assert old.refers_to == [record_id("first").strip(b"<>")]
    assert (old.refers_uris, old.refers_date_key) == ([first.uri], first.date_key)
    assert old.is_fixed is False


def test_the_columns_are_those_of_the_documentation(file: Path) -> None:
    make_rows(task(file), Faults())
    path = file.with_suffix(".parquet")
    found = duckdb.connect().execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()
    assert {name: kind for name, kind, *_ in found} == COLUMNS
    assert list(COLUMNS) == list(RecordRow._fields)
    documented = rows_module.__doc__ or ""
    table = documented.split("=\n")[1:]
    assert [name for name in COLUMNS if name not in table[0] + table[1]] == []


def test_rows_of_another_version_are_made_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkFolder(file.parent / "work") as work:
        tasks = [task(file, path=work.path / "0")]
        made = set()
        for _ in range(2):
            work.run(make_rows, tasks, 1, NO_PROGRESS, "rows", Faults())
            made.add(tasks[0].target.stat().st_ino)
        (before,) = made
        monkeypatch.setattr(rows_module, "VERSION", rows_module.VERSION + 1)
        work.run(make_rows, tasks, 1, NO_PROGRESS, "rows", Faults())
        assert tasks[0].target.stat().st_ino != before


@pytest.mark.parametrize(
    ("count", "memory_limit"), sampled([(45_000, "48MB"), (150_000, MEMORY_LIMIT)], [(45_000, "48MB")])
)
def test_rows_that_need_more_than_the_memory_of_the_engine_are_written_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, memory_limit: str
) -> None:
    monkeypatch.setattr(rows_module, "open_engine", partial(open_engine, memory_limit=memory_limit))
    values = random.Random(1)
    most_bytes = 0

    def rows() -> Iterator[RecordRow]:
        nonlocal most_bytes
        for number in range(count):
            if number % 5_000 == 0:
                most_bytes = max(
                    most_bytes, sum(path.stat().st_size for path in tmp_path.glob("*.scratch/*"))
                )
            yield RecordRow(
                number, 1, "response", stored=values.randbytes(32), start=values.randbytes(100) + bytes(1_000)
            )

    path = tmp_path / "a.parquet"
    write_rows(path, rows())
    assert most_bytes > 1_000_000, "some data was moved to files"
    found = duckdb.connect().execute(f"SELECT \"offset\" FROM read_parquet('{path}')").fetchnumpy()
    assert found["offset"].tolist() == list(range(count))


def test_a_full_disk_is_reported_in_words(file: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(ArchiveError) as caught:
            make_rows(task(file), Faults())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large. Check the free space" in str(caught.value)
    assert "{" not in str(caught.value)


def test_a_damaged_file_gets_no_rows_unless_damage_is_skipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-100] ^= 0xFF
    file.write_bytes(data)
    path = file.with_suffix(".parquet")
    with pytest.raises(DamagedInput, match=r"a\.warc\.gz, offset"):
        make_rows(task(file), Faults())
    assert not path.exists()
    faults = Faults(keep_going=True)
    make_rows(task(file), faults)
    assert (faults.count, len(read(path))) == (1, 5)


def test_nothing_after_damage_in_an_uncompressed_file_is_changed(tmp_path: Path) -> None:
    p = Planting()
    p.file("a.warc", "plain")
    for number in range(3):
        p.exchange("a.warc", f"{number}", f"{SITE}/{number}", PAGE)
    p.write(tmp_path)
    path = tmp_path / "a.warc"
    path.write_bytes(path.read_bytes().replace(b"Content-Length", b"Content-Langth", 1))

    rows = list(RowScan(task(path), Faults(keep_going=True)).rows())

    responses = [row for row in rows if row.kind == "response"]
    assert [(row.reason, row.unfit) for row in responses] == [("damaged", "damaged")] * 2
    assert all(row.is_fixed for row in rows if row.concurrent_to)


def unusual(p: Planting) -> None:
    p.file("z/unusual.warc.gz")
    p.exchange("z/unusual.warc.gz", "u0", f"{SITE}/u", PAGE, extra=((b"WARC-Note", b"none"),))
    p.exchange("z/unusual.warc.gz", "u1", f"{SITE}/u", PAGE, extra=((b"WARC-Record-ID", b"<urn:twice>"),))
    p.exchange("z/unusual.warc.gz", "u2", f"{SITE}/u", PAGE, http_extra=((b"content-type", b"A/B ; c"),))
    p.exchange("z/unusual.warc.gz", "u3", f"{SITE}/u b", PAGE, digest_form=None, status=206)
    p.exchange("z/unusual.warc.gz", "u4", f"{SITE}/u", b"", status=404)
    p.exchange("z/unusual.warc.gz", "u5", f"{SITE}/u", PAGE, date="2020-01-01T00:00:00+01:00")
    p.exchange("z/unusual.warc.gz", "u6", f"{SITE}/{'u' * 3_000}", PAGE)
    changes = [
        (b"WARC-Target-URI", [b"< http://site.example/ >", b"<http://site.example/>", b"-", b"%41", b"a b"]),
        (b"WARC-Record-ID", [b"<urn:a b>", b"urn:a<b", b"<urn:a>"]),
        (b"WARC-Payload-Digest", [b"sha256:0", b"none"]),
    ]
    for name, values in changes:
        for value in values:
            label = f"{name.decode()} {value.decode()}"
            record = p.exchange("z/unusual.warc.gz", label, f"{SITE}/u", PAGE)
            fields = tuple((field, value if field == name else old) for field, old in record.fields)
            p.add("z/unusual.warc.gz", replace(record, label=f"{label} again", fields=fields))


def pairs(folder: Path, **options: Any) -> Iterator[tuple[RecordRow, RecordRow]]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        faults = Faults(keep_going=True), Faults(keep_going=True)
        usual, parsed = (RowScan(task(path, **options), own) for own in faults)
        setattr(parsed, "usual_values", lambda frame: None)  # noqa: B010
        yield from zip(usual.rows(), parsed.rows(), strict=True)
        assert faults[0].first == faults[1].first


@pytest.mark.parametrize("is_summed", [True, False])
def test_usual_records_get_the_same_rows_as_by_parsing(tmp_path: Path, is_summed: bool) -> None:
    p = garden()
    unusual(p)
    p.write(tmp_path)
    found = list(pairs(tmp_path, is_summed=is_summed))
    assert len(found) > 140
    for usual, parsed in found:
        assert usual == parsed


def test_a_long_body_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = bytes(range(256)) * 40_000  # longer than the part of a block that is held
    p = Planting()
    p.file("a.warc.gz", level=1)
    p.exchange("a.warc.gz", "long", f"{SITE}/long", body, digest_form=None)
    p.write(tmp_path)

    def never(*args: Any) -> None:
        raise AssertionError("the block is read again")

    monkeypatch.setattr(framing, "_reopen", never)
    found = [row for row in RowScan(task(tmp_path / "a.warc.gz"), Faults()).rows() if row.kind == "response"]

    assert [row.sha256 for row in found] == [hashlib.sha256(body).digest()]
    assert [row.blake2b for row in found] == [hashlib.blake2b(body, digest_size=32).digest()]
    assert found[0].digest_key == f"sha1:{base64.b32encode(hashlib.sha1(body).digest()).decode()}"
    assert (found[0].reason, found[0].unfit, found[0].is_listed) == (None, None, True)


def test_the_facts_in_rows_are_those_of_another_reader(tmp_path: Path) -> None:
    p = garden()
    unusual(p)
    p.write(tmp_path)
    compared = 0
    for path in sorted(path for path in tmp_path.rglob("*") if path.is_file()):
        rows = path.with_name(f"{path.name}.parquet")
        make_rows(task(path, path=path.with_name(f"{path.name}.rows")), Faults(keep_going=True))
        known = list(RowFacts(rows))
        others = list(old_records(path, on_damage=lambda _: None))
        assert [fact[:3] for fact in known] == [fact[:3] for fact in others]
        for fact, other in zip(known, others, strict=True):
            if fact.start is not None:
                compared += 1
                assert fact[3:6] == other[3:6]
            if fact.payload_sha256 is not None and other.payload_sha256 is not None:
                assert fact[6:] == other[6:]
    assert compared > 60


def test_a_long_record_has_no_facts(tmp_path: Path) -> None:
    p = Planting()
    p.file("a.warc", "plain")
    p.exchange("a.warc", "long", f"{SITE}/long", bytes(2_000_000))
    p.write(tmp_path)
    make_rows(task(tmp_path / "a.warc"), Faults())
    assert [row.stored is None for row in read(tmp_path / "a.parquet")] == [True, False]
