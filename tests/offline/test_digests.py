from __future__ import annotations

import base64
import gzip
import hashlib
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_files import response_record
from offline.planted import SITE, Planting, text

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.offline.digests import Digester, DigestOptions, FileSums
from scrapy_dedupe.offline.manifest_lines import MAX_LINE_BYTES, json_line, text_line
from scrapy_dedupe.tasks.faults import Fault, Faults

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.offline.manifest import ManifestLine

BODY = text("body", 3_000)


def planted(tmp_path: Path, **options: Any) -> tuple[Planting, Path]:
    """A file with a warcinfo, and one exchange that is made with *options*."""
    p = Planting()
    p.file("a.warc.gz")
    p.warcinfo("a.warc.gz")
    p.exchange("a.warc.gz", "one", f"{SITE}/", options.pop("body", BODY), **options)
    p.write(tmp_path)
    return p, tmp_path / "a.warc.gz"


def summed(path: Path, faults: Faults | None = None, **options: Any) -> tuple[list[ManifestLine], FileSums]:
    """The lines and counts of a file. Without *faults*, the first fault is raised."""
    digester = Digester(path, path.name, DigestOptions(**options), faults=faults or Faults())
    return list(digester.lines()), digester.sums


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha512"])
@pytest.mark.parametrize("chunked", [False, True])
def test_the_digest_is_that_of_the_payload_without_chunks(
    tmp_path: Path, algorithm: str, chunked: bool
) -> None:
    _, path = planted(tmp_path, chunked=chunked, coding="gzip", digest_form=None)
    (line,), sums = summed(path, algorithm=algorithm)
    assert line.digest == f"{algorithm}:{hashlib.new(algorithm, gzip.compress(BODY, 6, mtime=0)).hexdigest()}"
    assert (sums.lines, sums.stored, sums.computed) == (1, 0, 1)


def test_a_line_says_where_the_record_is(tmp_path: Path) -> None:
    p, path = planted(tmp_path)
    (line,), _ = summed(path)
    members = p.files["a.warc.gz"].members()
    assert (line.file, line.offset, line.length) == ("a.warc.gz", len(members[0]), len(members[1]))
    assert (line.uri, line.date) == (f"{SITE}/", p.records["one"].date.decode())


STORED = hashlib.sha1(b"something else").digest()
FORMS = {
    "Base32": f"sha1:{base64.b32encode(STORED).decode()}",
    "hex": f"sha1:{STORED.hex()}",
    "upper case": f"SHA1:{STORED.hex().upper()}",
    "hyphen": f"sha-1:{base64.b32encode(STORED).decode().lower()}",
    "no label": base64.b32encode(STORED).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_stored_digest_of_the_wanted_algorithm_is_used_in_whatever_form(tmp_path: Path, form: str) -> None:
    _, path = planted(tmp_path, digest_form=None, extra=((b"WARC-Payload-Digest", FORMS[form].encode()),))
    (line,), sums = summed(path, algorithm="sha1")
    assert line.digest == f"sha1:{STORED.hex()}"
    assert (sums.stored, sums.computed, sums.hashed_bytes) == (1, 0, 0)


@pytest.mark.parametrize("options", [{"recompute": True}, {"verify": True}, {"decoded": True}])
def test_a_stored_digest_is_not_used_where_it_is_not_to_be_trusted(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    _, path = planted(tmp_path, digest_of="lie")
    (line,), sums = summed(path, algorithm="sha1", **options)
    assert line.digest.rpartition(":")[2] == hashlib.sha1(BODY).hexdigest()
    assert (sums.stored, sums.computed) == (0, 1)


def test_a_stored_digest_of_a_record_in_chunks_is_not_taken_over(tmp_path: Path) -> None:
    for digest_of in ("stored", "lie"):
        _, path = planted(tmp_path, chunked=True, digest_of=digest_of)
        (line,), sums = summed(path, algorithm="sha1")
        assert line.digest == f"sha1:{hashlib.sha1(BODY).hexdigest()}"
        assert (sums.stored, sums.computed) == (0, 1)


@pytest.mark.parametrize("stored", ["sha1:nonsense", "blake2b:" + "0" * 128, "sha1:"])
def test_a_stored_digest_that_is_not_understood_is_computed(tmp_path: Path, stored: str) -> None:
    _, path = planted(tmp_path, digest_form=None, extra=((b"WARC-Payload-Digest", stored.encode()),))
    (line,), _ = summed(path, algorithm="sha1")
    assert line.digest == f"sha1:{hashlib.sha1(BODY).hexdigest()}"


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
def test_a_wrong_stored_digest_is_told_with_its_place(tmp_path: Path, algorithm: str) -> None:
    _, path = planted(tmp_path, digest_of="lie")
    (line,), sums = summed(path, algorithm=algorithm, verify=True)
    assert line.digest == f"{algorithm}:{hashlib.new(algorithm, BODY).hexdigest()}"
    assert (sums.verified, sums.mismatch_count) == (1, 1)
    assert sums.mismatches[0].place == f"{path}, offset {line.offset}"
    assert f"the payload has sha1:{hashlib.sha1(BODY).hexdigest()}" in sums.mismatches[0].reason


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
def test_a_right_stored_digest_is_no_mismatch(tmp_path: Path, algorithm: str) -> None:
    _, path = planted(tmp_path)
    _, sums = summed(path, algorithm=algorithm, verify=True)
    assert (sums.verified, sums.mismatch_count) == (1, 0)


def test_a_mismatch_says_what_the_digest_was_made_of_instead(tmp_path: Path) -> None:
    _, path = planted(tmp_path, chunked=True, digest_of="stored")
    assert (
        summed(path, verify=True)[1].mismatches[0].reason.endswith("computed from the body with its chunks")
    )
    decoded = b"sha256:" + hashlib.sha256(BODY).hexdigest().encode()
    _, path = planted(tmp_path, coding="gzip", digest_form=None, extra=((b"WARC-Payload-Digest", decoded),))
    assert summed(path, verify=True)[1].mismatches[0].reason.endswith("computed from the decoded body")
    # as in what was restored from a revisit of a body in chunks
    _, path = planted(tmp_path, head_only_says_chunked=True, digest_of="lie")
    assert (
        summed(path, verify=True)[1]
        .mismatches[0]
        .reason.endswith("the digest may have been computed from the chunks")
    )
    _, path = planted(tmp_path, digest_of="lie")
    assert "chunks" not in summed(path, verify=True)[1].mismatches[0].reason


def test_a_digest_of_the_chunks_is_told_of_a_body_that_is_too_long_to_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapy_dedupe.offline.digests.KEPT_BYTES", 500)
    _, path = planted(tmp_path, chunked=True, digest_of="stored")
    assert (
        summed(path, verify=True)[1].mismatches[0].reason.endswith("computed from the body with its chunks")
    )


def test_a_digest_of_an_unknown_algorithm_is_not_called_verified(tmp_path: Path) -> None:
    stored = (b"WARC-Payload-Digest", b"blake3:" + b"0" * 64)
    _, path = planted(tmp_path, digest_form=None, extra=(stored,))
    _, sums = summed(path, verify=True)
    assert (sums.verified, sums.unverifiable, sums.mismatch_count) == (0, 1, 0)


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_a_decoded_digest_is_that_of_the_text_whatever_its_coding(tmp_path: Path, coding: str | None) -> None:
    _, path = planted(tmp_path, coding=coding, chunked=coding == "gzip")
    (line,), _ = summed(path, decoded=True)
    assert line.digest == f"decoded-sha256:{hashlib.sha256(BODY).hexdigest()}"


def test_a_body_that_cannot_be_decoded_is_a_fault_and_has_no_line(tmp_path: Path) -> None:
    _, path = planted(tmp_path, http_extra=((b"Content-Encoding", b"gzip"),))
    with pytest.raises(DamagedInput, match="cannot be decoded"):
        summed(path, decoded=True)
    faults = Faults(keep_going=True)
    lines, sums = summed(path, faults, decoded=True)
    assert (lines, sums.lines, faults.count) == ([], 0, 1)


@pytest.mark.parametrize("chunked", [False, True])
def test_empty_payloads_are_left_out_if_that_is_asked_for(tmp_path: Path, chunked: bool) -> None:
    _, path = planted(tmp_path, body=b"", chunked=chunked)
    assert len(summed(path)[0]) == 1
    lines, sums = summed(path, skip_empty=True)
    assert (lines, sums.empty) == ([], 1)


def test_responses_of_http_have_lines_and_resources_if_that_is_asked_for(tmp_path: Path) -> None:
    p, path = planted(tmp_path)
    for label, kind in (
        ("dns", "response"),
        ("file", "resource"),
        ("note", "metadata"),
        ("made", "conversion"),
    ):
        p.other(path.name, label, kind, f"urn:{label}", b"192.0.2.1", content_type=b"text/dns")
    p.revisit(path.name, "again", f"{SITE}/", p.records["one"])
    p.write(tmp_path)
    assert [line.uri for line in summed(path)[0]] == [f"{SITE}/"]
    assert [line.uri for line in summed(path, resources=True)[0]] == [f"{SITE}/", "urn:file"]
    assert summed(path, resources=True)[0][1].digest == f"sha256:{hashlib.sha256(b'192.0.2.1').hexdigest()}"


@pytest.mark.parametrize("version", [b"WARC/0.17", b"WARC/0.18", b"WARC/1.0", b"WARC/1.1"])
def test_every_version_is_read(tmp_path: Path, version: bytes) -> None:
    _, path = planted(tmp_path, version=version)
    assert len(summed(path)[0]) == 1


@pytest.mark.parametrize("kind", ["plain", "gzip", "arc", "arc gzip"])
def test_every_kind_of_file_is_read(tmp_path: Path, kind: str) -> None:
    p = Planting()
    name = f"a.{kind.split()[0].replace('plain', 'warc').replace('gzip', 'warc')}{'.gz' if 'gzip' in kind else ''}"
    p.file(name, kind)
    for number in range(3):
        if kind.startswith("arc"):
            p.arc_capture(name, str(number), f"{SITE}/{number}", BODY)
        else:
            p.exchange(name, str(number), f"{SITE}/{number}", BODY)
    p.write(tmp_path)
    lines, _ = summed(tmp_path / name)
    assert [line.uri for line in lines] == [f"{SITE}/{number}" for number in range(3)]
    assert {line.digest for line in lines} == {f"sha256:{hashlib.sha256(BODY).hexdigest()}"}
    assert [line.offset for line in lines] == sorted(line.offset for line in lines)


def test_records_that_share_a_member_are_named_and_have_no_lines(tmp_path: Path) -> None:
    p, path = planted(tmp_path)
    path.write_bytes(gzip.compress(b"".join(record.to_bytes() for record in p.files[path.name].records)))
    with pytest.raises(DamagedInput, match="one gzip member holds several records"):
        summed(path)
    faults = Faults(keep_going=True)
    lines, _ = summed(path, faults)
    assert (lines, faults.count) == ([], 1)


def test_an_empty_file_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "empty.warc.gz"
    path.write_bytes(b"")
    with pytest.raises(DamagedInput, match=r"empty\.warc\.gz: the file is empty"):
        summed(path)


def test_a_record_without_a_uri_is_a_fault(tmp_path: Path) -> None:
    p, path = planted(tmp_path)
    path.write_bytes(
        b"".join(r.to_bytes().replace(b"WARC-Target-URI", b"X") for r in p.files[path.name].records)
    )
    faults = Faults(keep_going=True)
    lines, _ = summed(path, faults)
    assert lines == []
    assert "no WARC-Target-URI" in faults.first[0].reason


@pytest.mark.parametrize(
    "date", ["2020-01-01T00:00:00+01:00", "text-/h-tmTl;:00:00Z", "2020-02-30T00:00:00Z"]
)
@pytest.mark.parametrize("recompute", [True, False])
def test_a_date_that_is_none_is_a_fault_of_its_record_alone(
    tmp_path: Path, date: str, recompute: bool
) -> None:
    p, path = planted(tmp_path)
    p.exchange(path.name, "two", f"{SITE}/2", BODY)
    p.write(tmp_path)
    records = [record.to_bytes() for record in p.files[path.name].records]
    records[1] = re.sub(rb"WARC-Date: [^\r]*", b"WARC-Date: " + date.encode(), records[1])
    path.write_bytes(b"".join(records))
    with pytest.raises(DamagedInput, match=rf"a\.warc\.gz, offset {len(records[0])}: "):
        summed(path, recompute=recompute)
    faults = Faults(keep_going=True)
    lines, _ = summed(path, faults, recompute=recompute)
    assert [line.uri for line in lines] == [f"{SITE}/2"]
    assert faults.first == [
        Fault(
            f"{path}, offset {len(records[0])}",
            f"{date!r} is not a valid WARC-Date, which is in UTC and ends in Z",
        )
    ]


def test_responses_without_a_status_line_are_counted(tmp_path: Path) -> None:
    p, path = planted(tmp_path)
    for label, block in (("icy", b"ICY 200 OK\r\n\r\nmusic"), ("old", b"<html>HTTP/0.9</html>")):
        p.other(path.name, label, "response", f"{SITE}/{label}", block, content_type=b"application/http")
    p.write(tmp_path)
    lines, sums = summed(path)
    assert (len(lines), sums.headless) == (1, 2)


@given(st.data())
def test_damage_anywhere_is_told_and_the_other_records_stay(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    p = Planting()
    p.file("a.warc.gz")
    for number in range(4):
        p.exchange("a.warc.gz", str(number), f"{SITE}/{number}", text(str(number), 400), order="response")
    members = p.files["a.warc.gz"].members()
    hit = data.draw(st.integers(0, 3), label="record")
    # What a gzip head says of time, level and system is not checked by anybody.
    at = data.draw(st.one_of(st.integers(0, 3), st.integers(10, len(members[hit]) - 1)), label="byte")
    flipped = bytearray(members[hit])
    bit = data.draw(st.integers(0, 7), label="bit")
    flipped[at] ^= 1 << bit
    path = tmp_path_factory.mktemp("damage") / "a.warc.gz"
    path.write_bytes(b"".join([*members[:hit], bytes(flipped), *members[hit + 1 :]]))
    faults = Faults(keep_going=True)
    lines, _ = summed(path, faults)
    found = [line.uri for line in lines]
    if (at, bit) == (3, 2):
        # An extra field begins, so long that the file seems to end inside of it: what follows is not believed.
        assert faults.count
        return
    assert [f"{SITE}/{number}" for number in range(4) if number != hit] == [
        uri for uri in found if uri != f"{SITE}/{hit}"
    ]
    assert faults.count or len(found) == 4


def test_what_was_found_is_the_same_after_it_was_kept() -> None:
    sums = FileSums(
        lines=3,
        hashed_bytes=1 << 40,
        mismatch_count=1,
        mismatches=[Fault("a", "b")],
    )
    assert FileSums.from_json(asdict(sums)) == sums


UNWRITABLE = {
    "a control character": (b"WARC-Date", b"2026-08-01T12:00:00Z\x05"),
    "a blank": (b"WARC-Date", b"2026-08-01T12:00:0 Z"),
    "no day": (b"WARC-Date", b"2026-08-00T12:00:00Z"),
    "no date": (b"WARC-Date", b"20260801120000"),
    "no UTF-8": (b"WARC-Date", b"2026-08-01T12:00:00\xda"),
    "no URI": (b"WARC-Target-URI", b""),
    "a long URI": (b"WARC-Target-URI", b"http://garden.example/" + b"a" * 530_000),
    "a URI that is long in JSON": (b"WARC-Target-URI", b"http://garden.example/" + b'"' * 270_000),
}


@pytest.mark.parametrize("what", UNWRITABLE)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_record_whose_line_could_not_be_read_again_is_a_fault_of_its_own(
    tmp_path: Path, what: str, recompute: bool
) -> None:
    name, value = UNWRITABLE[what]
    good = response_record(1, b"a" * 2_000)
    head, end, rest = gzip.decompress(response_record(2, b"b" * 2_000)).partition(b"\r\n\r\n")
    fields = [line for line in head.split(b"\r\n") if not line.startswith(name)]
    bad = gzip.compress(b"\r\n".join([*fields, name + b": " + value]) + end + rest)
    path = tmp_path / "a.warc.gz"
    path.write_bytes(good + bad + response_record(3, b"c" * 2_000))
    faults = Faults(keep_going=True)
    lines, sums = summed(path, faults, recompute=recompute)
    assert [line.uri for line in lines] == ["http://example.org/1", "http://example.org/3"]
    assert (sums.lines, faults.count) == (2, 1)
    assert faults.first[0].place == f"{path}, offset {len(good)}"
    with pytest.raises(DamagedInput, match=f"a.warc.gz, offset {len(good)}"):
        summed(path, recompute=recompute)


def test_a_long_uri_is_no_fault_as_long_as_all_steps_can_write_it_twice(tmp_path: Path) -> None:
    uri = "http://garden.example/" + "a" * 520_000
    path = tmp_path / "a.warc.gz"
    path.write_bytes(response_record(1, b"a" * 2_000, uri=uri))
    ((line,), _) = summed(path)
    assert line.uri == uri
    copy = line._replace(extension=1, copy=2, refers_to_uri=uri, refers_to_date=line.date)
    for written in (text_line(copy, 10), json_line(copy, 10)):
        assert len(written.encode()) < MAX_LINE_BYTES
