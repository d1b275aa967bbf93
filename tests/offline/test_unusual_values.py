"""Records with values that not every reader reads in one way: no revisit refers to them, and all else goes on.

``DEDUPE_RANDOM_ARCHIVES=1000`` tries so many random archives instead of a few.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
import tempfile
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from offline.calling import call, done
from offline.outputs import read
from offline.planted import Planting, record_id, text
from sampling import examples

if TYPE_CHECKING:
    from offline.outputs import Seen
    from offline.planted import Record

EXAMPLES = int(os.environ.get("DEDUPE_RANDOM_ARCHIVES", examples(12)))
SITE = b"http://site.example/"
PAGE = text("page", 4_000)
URI, DATE, ID = b"WARC-Target-URI", b"WARC-Date", b"WARC-Record-ID"
PAYLOAD_DIGEST, CONCURRENT = b"WARC-Payload-Digest", b"WARC-Concurrent-To"

NOT_READ_BACK = {
    "control character": SITE + b"a\x01b",
    "escape": SITE + b"a\x1b[0m",
    "no-break space at the end": SITE + "a\u00a0".encode(),
    "next line at the end": SITE + "a\u0085".encode(),
    "next line inside": SITE + "a\u0085b".encode(),
    "line separator inside": SITE + "a\u2028b".encode(),
    "ideographic space at the end": SITE + "a\u3000".encode(),
    "ideographic space at the beginning": "\u3000".encode() + SITE,
    "byte order mark": "\ufeff".encode() + SITE,
    "Latin-1": SITE + b"a\xe4",
    "Latin-1 space at the end": SITE + b"a\xa0",
    "brackets twice": b"<<" + SITE + b">>",
    "bracket": b"<" + SITE,
    "blanks in brackets": b"< " + SITE + b" >",
    "too long": SITE + b"a" * 100_000,
}


def altered(p: Planting, label: str, *changes: tuple[bytes, bytes | None]) -> Record:
    """The planted record with other values, or without a field."""
    file = next(file for file in p.files.values() if any(one.label == label for one in file.records))
    index = next(index for index, one in enumerate(file.records) if one.label == label)
    new = dict(changes)
    fields = tuple(
        (name, new.get(name, value))
        for name, value in file.records[index].fields
        if new.get(name, b"") is not None
    )
    record = dataclasses.replace(file.records[index], fields=fields)  # type: ignore[arg-type]
    file.records[index] = p.records[label] = record
    return record


def three_pages(kind: str = "gzip", *names: str) -> Planting:
    """One payload three times: at /1, /2 and /3. With *names*, another payload for each name, at NAME/1 and so on."""
    p = Planting()
    p.file("a.warc", kind)
    for name in names or ("",):
        for number in "123":
            label = f"{name}/{number}" if name else number
            page = text(name, 4_000) if name else PAGE
            p.exchange("a.warc", label, SITE.decode() + label.replace(" ", "-"), page)
    return p


def deduplicated(p: Planting, folder: Path) -> tuple[dict[str, Any], dict[bytes | None, Seen]]:
    """The report of ``dedupe``, and the records that came out, by the ids that they had; all are restored again."""
    p.write(folder / "in")
    report = done(folder, "dedupe", "-r", "in", "-o", "out", "--json").json["deduped"]
    done(folder, "verify", "in", "out")
    found = {}
    for path in sorted((folder / "out").glob("*.warc")):
        for one in read(path):
            found[one.get(b"Former-WARC-Record-ID") or one.get(ID)] = one
    assert_first_bytes(folder, p)
    return report, found


def assert_first_bytes(folder: Path, p: Planting) -> None:
    done(folder, "restore", "out", "-o", "back")
    for name, file in p.files.items():
        data = (folder / "back" / name).read_bytes()
        if file.kind == "gzip":
            assert gzip.decompress(data) == gzip.decompress(file.to_bytes())
        else:
            assert data == file.to_bytes()


def test_another_record_is_the_original_where_the_first_uri_does_not_read_back(tmp_path: Path) -> None:
    p = three_pages("gzip", *NOT_READ_BACK)
    for name, uri in NOT_READ_BACK.items():
        altered(p, f"{name}/1", (URI, uri))

    report, found = deduplicated(p, tmp_path)

    assert (report["converted"], report["left"]) == (len(NOT_READ_BACK), {})
    for name in NOT_READ_BACK:
        assert found[record_id(f"{name}/3")].get(b"WARC-Refers-To") == record_id(f"{name}/2"), name
        assert found[record_id(f"{name}/2")].get(b"WARC-Type") == b"response", name


def test_copies_are_left_and_counted_where_no_record_can_be_the_original(tmp_path: Path) -> None:
    p = three_pages()
    for number in "123":
        altered(p, number, (URI, SITE + f"{number}\u00a0".encode()))

    report, _ = deduplicated(p, tmp_path)

    assert (report["converted"], report["left"]) == (0, {"unreadable": 2})


def test_a_copy_keeps_its_own_uri_whatever_is_in_it(tmp_path: Path) -> None:
    p = three_pages()
    altered(p, "2", (URI, SITE + b"\x01\xe4"))

    report, found = deduplicated(p, tmp_path)

    assert report["converted"] == 2
    assert found[record_id("2")].get(URI) == SITE + b"\x01\xe4"


def test_an_id_or_digest_that_does_not_read_back_is_neither_referred_to_nor_moved(tmp_path: Path) -> None:
    ends = (b"\x01", "\u00a0".encode(), "\u3000".encode(), b"\xa0")
    cases = {
        f"{field.decode()} and {end!r} in {label}": (field, end, label)
        for field, end, label in product((ID, PAYLOAD_DIGEST), ends, "12")
    }
    p = three_pages("gzip", *cases)
    for name, (field, end, label) in cases.items():
        was = p.records[f"{name}/{label}"].get(field)
        assert was
        altered(p, f"{name}/{label}", (field, was + end))

    report, found = deduplicated(p, tmp_path)

    assert (report["converted"], report["left"]) == (16, {"fields": 8})
    for name, (*_, label) in cases.items():
        original = "2" if label == "1" else "1"
        assert found[record_id(f"{name}/3")].get(b"WARC-Refers-To") == record_id(f"{name}/{original}"), name


def test_an_id_of_nothing_but_angle_brackets_is_none(tmp_path: Path) -> None:
    ids = {"none": b"", "brackets": b"<>", "blank": b"< >"}
    p = three_pages("gzip", *ids)
    for name, value in ids.items():
        altered(p, f"{name}/2", (ID, value))
        for field in (CONCURRENT, b"WARC-Refers-To"):
            link = ((field, value),)
            p.other("a.warc", f"{name} {field!r}", "metadata", f"{SITE.decode()}{name}/2", b"x", fields=link)

    report, found = deduplicated(p, tmp_path)

    assert (report["converted"], report["repointed"], report["left"]) == (3, 3, {"no-id": 3})
    for name in ids:
        assert found[record_id(f"{name}/3")].get(b"WARC-Refers-To") == record_id(f"{name}/1"), name


def test_an_id_of_two_payloads_is_not_referred_to(tmp_path: Path) -> None:
    p = three_pages()
    p.exchange("a.warc", "other", (SITE + b"4").decode(), text("other", 4_000))
    altered(p, "other", (ID, record_id("1")), (URI, SITE + b"1"), (DATE, p.records["1"].date))

    report, found = deduplicated(p, tmp_path)

    assert (report["converted"], report["left"]) == (1, {})
    assert found[record_id("3")].get(b"WARC-Refers-To") == record_id("2")


def test_what_a_reference_names_stays_where_the_reference_does_not_read_back(tmp_path: Path) -> None:
    ends = {"UTF-8": "\u00a0".encode(), "control": b"\x01", "Latin-1": b"\xa0"}
    p = three_pages("gzip", *ends)
    for name, end in ends.items():
        link = ((CONCURRENT, record_id(f"{name}/2") + end),)
        p.other("a.warc", f"{name} note", "metadata", f"{SITE.decode()}{name}/2", b"seen", fields=link)

    report, found = deduplicated(p, tmp_path)

    assert report["left"] == {"shared": 2}
    types = {name: found[record_id(f"{name}/2")].get(b"WARC-Type") for name in ends}
    # A control character is a part of the id for every reader, so that this names no record.
    assert types == {"UTF-8": b"response", "control": b"revisit", "Latin-1": b"response"}


def test_a_copy_with_a_reference_that_does_not_read_back_becomes_a_revisit(tmp_path: Path) -> None:
    p = three_pages()
    p.exchange("a.warc", "4", (SITE + b"4").decode(), PAGE, extra=((CONCURRENT, record_id("2") + b"\xa0"),))

    report, found = deduplicated(p, tmp_path)

    assert (report["converted"], report["left"]) == (2, {"shared": 1})
    assert found[record_id("4")].get(b"WARC-Type") == b"revisit"


def test_heads_that_would_become_too_long_to_be_read_stay(tmp_path: Path) -> None:
    p = three_pages()
    note = ((CONCURRENT, record_id("2")),) * 9_000
    p.other("a.warc", "note", "metadata", (SITE + b"2").decode(), b"seen", fields=note)

    report, _ = deduplicated(p, tmp_path)

    assert report["left"] == {"shared": 1}


ENDS = (
    "",
    "\u00a0",
    "\u0085",
    "\u3000",
    "\u2028",
    "\ufeff",
    "\x1f",
    "\x0b",
    "\x01",
    "\t",
    " ",
    "\x00",
    ">",
    "<",
)
ODD_BYTES = st.one_of(
    st.just(b""),
    st.builds(
        lambda body, end: (body + end).encode("utf-8", "replace"), st.text(max_size=8), st.sampled_from(ENDS)
    ),
    st.builds(
        lambda body, end: body + end, st.binary(max_size=8), st.sampled_from((b"", b"\xa0", b"\x85", b"\xff"))
    ),
).map(lambda data: data.replace(b"\r", b"").replace(b"\n", b""))


@st.composite
def odd_archives(draw: st.DrawFn) -> Planting:
    """Archives with arbitrary bytes in the values that revisits name, and with records that refer to others."""
    p = Planting()
    for name in draw(st.sampled_from((("0.warc",), ("0.warc", "1.warc")))):
        p.file(name, draw(st.sampled_from(("gzip", "plain"))))
    labels = [str(number) for number in range(draw(st.integers(3, 7)))]
    for label in labels:
        name = draw(st.sampled_from(sorted(p.files))) if int(label) >= len(p.files) else f"{label}.warc"
        options = {} if draw(st.booleans()) else {"chunked": False, "order": "request response"}
        p.exchange(name, label, f"http://site.example/{label}", PAGE, **options)  # type: ignore[arg-type]
        changes: list[tuple[bytes, bytes | None]] = []
        if draw(st.booleans()):
            before, after = draw(st.one_of(st.just(b""), ODD_BYTES)), draw(ODD_BYTES)
            changes.append((URI, before + SITE + after))
        for field in (ID, PAYLOAD_DIGEST, b"WARC-Block-Digest"):
            if draw(st.integers(0, 5)) == 0:
                value = p.records[label].get(field) or b""
                changes.append((field, draw(st.sampled_from((value, b"", b"<>"))) + draw(ODD_BYTES)))
        if draw(st.integers(0, 7)) == 0:
            changes.append((ID, record_id(draw(st.sampled_from(labels)))))
        altered(p, label, *changes)
    for number in range(draw(st.integers(0, 2))):
        of = p.records[draw(st.sampled_from(labels))]
        if draw(st.booleans()):
            p.revisit("0.warc", f"r{number}", f"http://site.example/r{number}", of, names=draw(NAMES))
        else:
            link = draw(st.sampled_from((CONCURRENT, b"WARC-Refers-To")))
            value = (of.id or b"") + draw(ODD_BYTES)
            p.other(
                "0.warc", f"m{number}", "metadata", "http://site.example/m", b"x", fields=((link, value),)
            )
    return p


NAMES = st.sampled_from((("id",), ("uri", "date"), ("id", "uri", "date"), ()))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(odd_archives())
def test_no_value_of_a_record_makes_the_whole_fail(p: Planting) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        p.write(folder / "in")

        called = call(folder, "dedupe", "-r", "in", "-o", "out", "--keep-going", "--json")

        assert called.code in (0, 4), called
        report = called.json["deduped"]
        assert (report["kept_in"], report["findings"]) == (None, [])
        checked = call(folder, "verify", "in", "out", "--keep-going", "--json")
        assert checked.code in (0, 4), checked
        assert checked.json["findings_count"] == 0, checked
        back = call(folder, "restore", "out", "-o", "back", "--keep-going")
        assert back.code in (0, 4), back
        for file in p.files.values():
            data = (folder / "back" / file.name).read_bytes()
            is_gzip = file.kind == "gzip"
            assert (gzip.decompress(data) if is_gzip else data) == b"".join(
                record.to_bytes() for record in file.records
            )
