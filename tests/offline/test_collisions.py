from __future__ import annotations

import gzip
import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listed_archives import WEAK, ListedFile

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.offline import collisions, ordering, places
from scrapy_dedupe.offline.collisions import CollisionCounts, resolve_collisions
from scrapy_dedupe.offline.ordering import by_cluster
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.warc import reading
from scrapy_dedupe.warc.windows import are_same

OTHER = "md5:" + "cd" * 16


@pytest.fixture
def listed(tmp_path):
    return ListedFile(tmp_path / "a.warc.gz", "a.warc.gz")


@pytest.fixture
def resolve(tmp_path, tmp_path_factory):
    def resolve(lines, *, keep_going=False, jobs=1, faults=None, counts=None):
        faults = faults or Faults(keep_going=keep_going)
        places = Places([str(tmp_path)])
        folder = tmp_path_factory.mktemp("work")
        return list(resolve_collisions(lines, places, faults=faults, jobs=jobs, folder=folder, counts=counts))

    return resolve


def day(number):
    return f"2020-01-{number:02}T00:00:00Z"


def extensions(lines):
    """By date, which tells the records of these tests apart."""
    return [line.extension for line in sorted(lines, key=lambda line: line.date)]


def test_payloads_of_one_weak_digest_are_told_apart_by_their_bytes(listed, resolve):
    for number, payload in enumerate([b"one", b"two", b"one", b"twp", b"two", b"one", b""], 1):
        listed.add(payload, date=day(number))
    counts = CollisionCounts()
    assert extensions(resolve(listed.lines, counts=counts)) == [1, 2, 1, 3, 2, 1, 4]
    assert counts == CollisionCounts(lines=7, digests=1, compared=7, collisions=1, alone=0)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kept", [100, 1_000, 50_000])
def test_one_byte_at_the_end_tells_long_payloads_apart(tmp_path, resolve, monkeypatch, packed, kept):
    monkeypatch.setattr(places, "HELD_BYTES", kept)
    monkeypatch.setattr(collisions, "_PIECE_BYTES", kept)
    monkeypatch.setattr(reading, "KEPT_BYTES", 2 * kept)
    listed = ListedFile(tmp_path / "a.warc.gz", "a.warc.gz", is_packed=packed)
    same = random.Random(1).randbytes(30_000)
    for number, last in enumerate(b"abacbacd", 1):
        listed.add(same + bytes([last]), date=day(number))
    listed.add(same, date=day(9))
    assert extensions(resolve(listed.lines)) == [1, 2, 1, 3, 2, 1, 3, 4, 5]


def test_a_record_alone_with_its_digest_is_not_read(listed, resolve):
    line = listed.add(b"one")
    counts = CollisionCounts()
    (found,) = resolve([line._replace(file="nowhere.warc.gz")], counts=counts)
    assert found.extension == 1
    assert counts == CollisionCounts(lines=1)


def test_what_was_said_before_of_copies_and_extensions_is_left_out(listed, resolve):
    listed.add(b"one", date=day(1))
    listed.add(b"one", date=day(2))
    before = {"extension": 3, "copy": 2, "refers_to_uri": "http://x/", "refers_to_date": day(9)}
    lines = [line._replace(**before) for line in listed.lines]
    assert resolve(lines) == [line._replace(extension=1) for line in listed.lines]


def test_the_lines_come_in_order_of_cluster(listed, resolve, tmp_path):
    for number in range(1, 25):
        listed.add(b"%d" % (number % 3), date=day(number), digest=WEAK if number % 2 else OTHER)
    found = resolve(random.Random(2).sample(listed.lines, 24))
    assert found == list(by_cluster(found, tmp_path))
    assert [line.cluster for line in found] == sorted(line.cluster for line in found)


def test_extensions_count_in_the_order_of_dates_wherever_the_records_lie(tmp_path, resolve):
    late, early = (
        ListedFile(tmp_path / "a.warc.gz", "a.warc.gz"),
        ListedFile(tmp_path / "b.warc.gz", "b.warc.gz"),
    )
    late.add(b"two", date="2020-01-01T00:00:00.5Z")
    late.add(b"one", date=day(3))
    early.add(b"one", date="2020-01-01T00:00:00Z")
    found = resolve([*late.lines, *early.lines])
    assert [(line.file, line.extension) for line in found] == [
        ("b.warc.gz", 1), ("a.warc.gz", 1), ("a.warc.gz", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"fields": ("WARC-Truncated: length",)},
        {"status": 206},
        {"fields": ("WARC-Segment-Number: 1",)},
        {"kind": "revisit"},
    ],
)
def test_what_is_not_whole_stands_alone_and_is_no_fault(listed, resolve, options):
    listed.add(b"one", date=day(1), **options)
    listed.add(b"one", date=day(2))
    listed.add(b"one", date=day(3), **options)
    listed.add(b"one", date=day(4))
    counts = CollisionCounts()
    assert extensions(resolve(listed.lines, counts=counts)) == [1, 2, 3, 2]
    assert (counts.alone, counts.collisions) == (2, 0)


def test_a_chunked_payload_is_that_of_a_plain_one(listed, resolve):
    listed.add(b"hello", date=day(1))
    listed.add(b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", date=day(2), headers=("Transfer-Encoding: chunked",))
    assert extensions(resolve(listed.lines)) == [1, 1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"20200101\nname,value\n", b"20210101\nname,value\n"),
        (b"20200101\r\nname,value\n", b"20210101\r\nname,value\n"),
        (b"4\nabcd\n0\none page", b"4\nabcd\n0\nanother"),
        (b"4\r\nabcd\r\n0\r\none page", b"4\r\nabcd\r\n0\r\nanother"),
        (b"4\r\nabcd\r\n9\r\ne", b"4\r\nabcd\r\nA\r\ne"),
        (b"4;a\r\nabcd\r\n0\r\n\r\n", b"4;b\r\nabcd\r\n0\r\n\r\n"),
        (b"4\r\nabcd\r\n0\r\nX: 1\r\n\r\n", b"4\r\nabcd\r\n0\r\nX: 2\r\n\r\n"),
        (b"4\r\nabcd\r\n9\r\ne", b"4\r\nabcd\r\n9\r\ne"),
        (b"4\r\nabcd\r\n", b"4\r\nabcd\r\n0\r\n\r\n"),
        (b"4\r\nabcd\r\n0", b"4\r\nabcd\r\n5"),
    ],
)
@pytest.mark.parametrize("kept", [60, 8 << 20])
def test_no_byte_that_chunks_do_not_stand_for_is_lost(listed, resolve, monkeypatch, first, second, kept):
    monkeypatch.setattr(reading, "KEPT_BYTES", kept)
    for number, body in enumerate((first, second), 1):
        listed.add(body, date=day(number), headers=("Transfer-Encoding: chunked",))
    assert extensions(resolve(listed.lines)) == [1, 2]


def test_a_content_coding_is_undone_for_decoded_digests_alone(listed, resolve):
    digest = f"decoded-sha256:{hashlib.sha256(b'hello').hexdigest()}"
    coding = ("Content-Encoding: gzip",)
    listed.add(gzip.compress(b"hello", 1), date=day(1), headers=coding, digest=digest)
    listed.add(gzip.compress(b"hello", 9, mtime=5), date=day(2), headers=coding, digest=digest)
    listed.add(b"hello", date=day(3), digest=digest)
    assert extensions(resolve(listed.lines)) == [1, 1, 1]
    plain = [line._replace(digest=WEAK) for line in listed.lines]
    assert extensions(resolve(plain)) == [1, 2, 3]


def test_a_payload_that_cannot_be_decoded_is_a_fault(listed, resolve):
    digest = f"decoded-sha256:{hashlib.sha256(b'hello').hexdigest()}"
    listed.add(b"no gzip", date=day(1), headers=("Content-Encoding: gzip",), digest=digest)
    listed.add(b"hello", date=day(2), digest=digest)
    faults = Faults(keep_going=True)
    assert extensions(resolve(listed.lines, faults=faults)) == [1, 2]
    assert [str(fault) for fault in faults.first] == [
        "a.warc.gz, offset 0: the payload cannot be decoded: its gzip data is damaged or incomplete"
    ]


def test_records_that_cannot_be_read_keep_their_lines_and_stand_alone(listed, resolve):
    for number in range(1, 5):
        listed.add(b"one", date=day(number))
    lines = list(listed.lines)
    lines[1] = lines[1]._replace(file="gone.warc.gz")
    lines[2] = lines[2]._replace(uri="http://other/")
    listed.path.write_bytes(listed.path.read_bytes()[:-9])  # the last record is cut
    faults = Faults(keep_going=True)
    assert extensions(resolve(lines, faults=faults)) == [1, 2, 3, 4]
    assert faults.count == 3
    told = {fault.place: fault.reason for fault in faults.first}
    assert told[f"gone.warc.gz, offset {lines[1].offset}"].startswith("gone.warc.gz is not below")
    assert told[f"a.warc.gz, offset {lines[2].offset}"].startswith("the manifest does not match the file")
    assert told[f"a.warc.gz, offset {lines[3].offset}"].startswith("the file ends inside a gzip member")


def test_the_first_record_that_cannot_be_read_ends_the_work_unless_it_is_to_go_on(listed, resolve):
    listed.add(b"one", date=day(1))
    line = listed.add(b"one", date=day(2))
    listed.path.write_bytes(listed.path.read_bytes()[:-9])
    with pytest.raises(DamagedInput, match=f"a.warc.gz, offset {line.offset}: the file ends .*--keep-going"):
        resolve(listed.lines)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_record_that_is_named_twice_is_no_copy_of_itself(listed, resolve, tmp_path, jobs):
    listed.add(b"one", date=day(1))
    listed.add(b"one", date=day(2))
    listed.add(b"two", digest=OTHER)
    listed.add(b"two", digest=OTHER)
    (tmp_path / "link.warc.gz").symlink_to(listed.path)
    first = listed.lines[0]
    again = [first, first._replace(file="./a.warc.gz"), first._replace(file="link.warc.gz")]
    faults = Faults(keep_going=True)
    found = resolve([*listed.lines, *again], faults=faults, jobs=jobs)
    assert [line.extension for line in found if line.digest == WEAK] == [1, 1, 2, 3, 4]
    assert faults.count == 3
    assert {fault.reason for fault in faults.first} == {"the manifest lists this record twice"}


def test_lines_may_come_in_any_order(listed, resolve):
    for number in range(1, 20):
        listed.add(b"%d" % (number % 3), date=day(number), digest=WEAK if number % 2 else OTHER)
    in_order = resolve(listed.lines)
    mixed = [line._replace(extension=5) for line in random.Random(4).sample(listed.lines, 19)]
    assert resolve(mixed) == in_order


def test_many_payloads_of_one_digest_are_not_all_compared_with_each_other(listed, resolve, monkeypatch):
    compared = 0
    first_are_same = collisions.are_same

    def counted(one, other):
        nonlocal compared
        compared += 1
        return first_are_same(one, other)

    monkeypatch.setattr(collisions, "are_same", counted)
    for number in range(600):
        listed.add(b"%04d" % (number % 300), date=f"2020-01-01T00:{number // 60:02}:{number % 60:02}Z")
    found = resolve(listed.lines)
    assert max(line.extension for line in found) == 300
    assert compared < 2 * len(found)


def test_a_hash_that_is_the_same_does_not_make_payloads_the_same(listed, resolve, monkeypatch):
    class Weak:
        def __init__(self, digest_size):
            pass

        def update(self, data):
            pass

        def digest(self):
            return b"the same for all"

        def hexdigest(self):
            return self.digest().hex()

    monkeypatch.setattr(collisions, "blake2b", Weak)
    for number, payload in enumerate([b"one", b"two", b"six", b"two", b"six", b"one", b"ten"], 1):
        listed.add(payload, date=day(number))
    assert extensions(resolve(listed.lines)) == [1, 2, 3, 2, 3, 1, 4]


def test_several_processes_find_what_one_finds(tmp_path, resolve):
    rng = random.Random(3)
    files = [ListedFile(tmp_path / f"{name}.warc.gz", f"{name}.warc.gz") for name in "abc"]
    for _ in range(150):
        digest = f"md5:{rng.choice([0, 0, 0, *range(1, 40)]):032x}"
        rng.choice(files).add(
            b"%d" % rng.randrange(3),
            date=day(rng.randrange(1, 28)),
            digest=digest,
            status=rng.choice([200, 206]),
        )
    lines = [line for file in files for line in file.lines]
    lines[7] = lines[7]._replace(file="gone.warc.gz", digest="md5:" + "0" * 32)
    lines[9] = lines[9]._replace(file="gone.warc.gz", digest=f"md5:{1:032x}")
    one, many = Faults(keep_going=True), Faults(keep_going=True)
    counts, many_counts = CollisionCounts(), CollisionCounts()
    expected = resolve(lines, faults=one, counts=counts)
    assert resolve(lines, faults=many, counts=many_counts, jobs=2) == expected
    assert (many.count, sorted(map(str, many.first))) == (one.count, sorted(map(str, one.first)))
    assert many_counts == counts
    assert counts.lines == 150
    with pytest.raises(DamagedInput, match=r"gone\.warc\.gz"):
        resolve(lines, jobs=2)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.binary(max_size=2), st.integers(1, 28), st.sampled_from([200, 206])),
        min_size=1,
        max_size=14,
    )
)
def test_one_cluster_is_one_payload_and_one_payload_one_cluster(tmp_path_factory, records):
    folder = tmp_path_factory.mktemp("collisions")
    listed = ListedFile(folder / "a.warc", "a.warc", is_packed=False)
    payload_of = {}
    for digest, payload, number, status in records:
        line = listed.add(payload, date=day(number), digest=f"md5:{digest:032x}", status=status)
        payload_of[line.offset] = (payload, status)
    found = list(resolve_collisions(listed.lines, Places([str(folder)]), faults=Faults()))
    assert sorted(line.offset for line in found) == sorted(line.offset for line in listed.lines)
    assert found == list(by_cluster(found, folder))
    for line in found:
        for other in found:
            if line is other or line.digest != other.digest:
                continue
            payload, status = payload_of[line.offset]
            may_be_copies = status == 200 and payload_of[other.offset] == (payload, 200)
            assert (line.extension == other.extension) == may_be_copies
    for digest in {line.digest for line in found}:
        numbers = [line.extension for line in found if line.digest == digest]
        assert sorted(set(numbers)) == list(range(1, len(set(numbers)) + 1))


@given(
    st.binary(max_size=30), st.binary(max_size=30), st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9))
)
def test_streams_are_the_same_if_their_bytes_are(first, second, cuts, other_cuts):
    def pieces(data, sizes):
        for size in sizes:
            yield data[:size]
            data = data[size:]
        yield data

    assert are_same(pieces(first, cuts), pieces(first, other_cuts))
    assert are_same(pieces(first, cuts), pieces(second, other_cuts)) == (first == second)


def test_copies_of_one_file_are_stored_once_if_the_first_record_must_not_replace_them(
    listed, resolve, tmp_path
):
    for number in range(40):
        status = 206 if number == 0 else 200
        listed.add(b"x" * 50_000, date=f"2020-01-01T00:00:{number:02}Z", status=status)
    work = tmp_path / "work"
    work.mkdir()
    found = resolve_collisions(listed.lines, Places([str(tmp_path)]), faults=Faults(), folder=work)
    assert extensions(list(found)) == [1] + [2] * 39
    assert sum(path.stat().st_size for path in work.glob("*/*.payloads")) == 50_000


def test_a_digest_of_very_many_lines_is_put_in_order_on_disk(listed, resolve, monkeypatch):
    monkeypatch.setattr(ordering, "MEMORY_BYTES", 5_000)
    for number in range(120):
        listed.add(b"%d" % (number % 7), date=f"2020-01-01T00:{number // 60:02}:{number % 60:02}Z")
    found = resolve(listed.lines)
    assert found == sorted(found, key=lambda line: (line.extension, line.date))
    assert [line.extension for line in sorted(found, key=lambda line: line.date)] == [
        number % 7 + 1 for number in range(120)
    ]
