"""Archives that are deduplicated in stages, with revisits that say too little, or what is not so, of what they mean."""

from __future__ import annotations

import dataclasses
import hashlib
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from offline.calling import Called, call, done
from offline.outputs import assert_restored, read
from offline.planted import Copy, Planting, digest, in_chunks, record_id, text
from warcio.archiveiterator import ArchiveIterator

if TYPE_CHECKING:
    from pathlib import Path

    from offline.outputs import Seen
    from offline.planted import Record

SITE = "http://site.example"
PAGE, OTHER = text("page", 4_000), text("other", 4_000)
MOMENT = "2020-01-01T00:00:05Z"
LATER = "2020-01-01T00:00:07Z"


def added(p: Planting, folder: Path, *names: str) -> list[str]:
    """Write these files into ``in``; the names of all that are there."""
    (folder / "in").mkdir(exist_ok=True)
    for name in names or p.files:
        (folder / "in" / name).write_bytes(p.files[name].to_bytes())
    return [f"in/{path.name}" for path in sorted((folder / "in").glob("*.warc*"))]


def staged(p: Planting, folder: Path, *names: str, more: tuple[str, ...] = ()) -> Called:
    """Deduplicate all files in place, once these have come in."""
    return done(folder, "dedupe", *added(p, folder, *names), "--in-place", *more)


def restored(p: Planting, folder: Path) -> None:
    done(folder, "restore", "in", "--in-place")
    assert_restored(p, folder / "in")


def record(folder: Path, label: str) -> Seen:
    records = [one for path in (folder / "in").glob("*.warc*") for one in read(path)]
    return next(one for one in records if one.get(b"WARC-Record-ID") == record_id(label))


def replayed(folder: Path, label: str) -> list[str]:
    """SHA-256 of the payloads at the URI and date that a revisit names, as warcio reads them."""
    revisit = record(folder, label)
    place = [revisit.get(b"WARC-Refers-To-Target-URI"), revisit.get(b"WARC-Refers-To-Date")]
    found = []
    for path in sorted((folder / "in").glob("*.warc*")):
        with path.open("rb") as stream:
            for one in ArchiveIterator(stream):
                head = one.rec_headers
                there = [head.get_header(name) for name in ("WARC-Target-URI", "WARC-Date")]
                if one.rec_type == "response" and [text.encode() for text in there] == place:
                    found.append(hashlib.sha256(one.content_stream().read()).hexdigest())
    return found


def sha256(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def absent(label: str, uri: str, payload: bytes, **options: Any) -> Record:
    """A capture that is in none of the files."""
    elsewhere = Planting()
    elsewhere.file("elsewhere.warc")
    return elsewhere.exchange("elsewhere.warc", label, uri, payload, **options)


def two_pages(kind: str = "gzip", **copy: Any) -> Planting:
    """A page at /1, and its copy at /2, which becomes a revisit."""
    p = Planting()
    p.file("a.warc", kind)
    p.exchange("a.warc", "first", f"{SITE}/1", PAGE, date="2020-01-01T00:00:01Z")
    p.exchange("a.warc", "copy", f"{SITE}/2", PAGE, date=MOMENT, **copy)
    return p


@pytest.mark.parametrize("kind", ["gzip", "plain"])
def test_the_id_decides_between_captures_of_a_moment_where_no_digest_can_be_compared(
    tmp_path: Path, kind: str
) -> None:
    p = two_pages(kind, digest_form="sha256")
    missing = p.exchange("a.warc", "missing", f"{SITE}/2", OTHER, date=MOMENT, status=404)
    p.file("b.warc", kind)
    old = p.revisit("b.warc", "old", f"{SITE}/3", missing)

    staged(p, tmp_path)

    assert record(tmp_path, "old").plain == old.to_bytes().rstrip(b"\r\n")
    assert replayed(tmp_path, "old") == [sha256(OTHER)]
    restored(p, tmp_path)


def test_a_revisit_of_another_payload_than_its_uri_and_date_have_is_left_and_told(tmp_path: Path) -> None:
    p = Planting()
    p.file("a.warc")
    p.file("b.warc")
    old: dict[str, Record] = {}
    for chunked, names in product((False, True), (("uri", "date"), ("id", "uri", "date"))):
        case = f"{'-'.join(names)}-{'chunks' if chunked else 'whole'}"
        page, uri = text(case, 4_000), f"{SITE}/{case}"
        p.exchange("a.warc", f"first {case}", f"{SITE}/first-{case}", page, date="2020-01-01T00:00:01Z")
        fate = Copy(f"first {case}")
        p.exchange("a.warc", f"copy {case}", uri, page, date=MOMENT, chunked=chunked, fate=fate)
        gone = absent(f"gone {case}", uri, OTHER, date=MOMENT)
        old[case] = p.revisit("b.warc", f"old {case}", f"{SITE}/old-{case}", gone, names=names)

    called = staged(p, tmp_path)

    assert "now revisits        4\n" in called.out
    assert "4 revisits lead nowhere, as before." in called.out
    for case, revisit in old.items():
        assert record(tmp_path, f"old {case}").plain == revisit.to_bytes().rstrip(b"\r\n"), case
    restored(p, tmp_path)


def test_what_a_wrong_digest_may_mean_all_the_same_is_not_given_up(tmp_path: Path) -> None:
    pages = {name: text(name, 4_000) for name in ("by-its-id", "decoded", "in-chunks")}
    cases: dict[str, tuple[dict[str, Any], bytes, tuple[str, ...]]] = {
        # The id means that record, whatever the digest says.
        "by-its-id": ({}, OTHER, ("id", "uri", "date")),
        # Some writers hash the decoded body, or the one in chunks.
        "decoded": ({"coding": "gzip"}, pages["decoded"], ("uri", "date")),
        "in-chunks": ({"chunked": True}, in_chunks(pages["in-chunks"]), ("uri", "date")),
    }
    p = Planting()
    p.file("a.warc")
    for name, (options, said, names) in cases.items():
        p.exchange("a.warc", f"{name} first", f"{SITE}/{name}/1", pages[name], **options)
        copy = p.exchange("a.warc", f"{name} copy", f"{SITE}/{name}/2", pages[name], **options)
        wrong = ((b"WARC-Payload-Digest", digest("sha1", said)),)
        fields = tuple(field for field in copy.fields if field[0] != b"WARC-Payload-Digest") + wrong
        misled = dataclasses.replace(copy, fields=fields)
        p.revisit("a.warc", f"{name} old", f"{SITE}/{name}/3", misled, names=names)

    called = call(tmp_path, "dedupe", *added(p, tmp_path), "--in-place")

    assert called.code == 4
    assert called.out.count("led to a payload before, but no longer leads to it") == len(cases)
    assert (tmp_path / "in" / "a.warc").read_bytes() == p.files["a.warc"].to_bytes()


def test_a_uri_and_a_sha256_mean_a_record_whatever_digest_that_has(tmp_path: Path) -> None:
    p = Planting()
    p.file("a.warc")
    p.file("b.warc")
    ways = (("uri",), ("uri", "date"), ("id", "uri"))
    for names in ways:
        case = "-".join(names)
        page, uri = text(case, 4_000), f"{SITE}/{case}"
        p.exchange("a.warc", f"first {case}", f"{SITE}/first-{case}", page, date="2020-01-01T00:00:01Z")
        p.exchange("a.warc", f"copy {case}", uri, page, date=MOMENT)
        gone = absent(f"gone {case}", uri, page, date="2020-01-03T00:00:00Z", digest_form="sha256")
        p.revisit("b.warc", f"old {case}", f"{SITE}/old-{case}", gone, names=names)

    staged(p, tmp_path)

    for case in map("-".join, ways):
        assert record(tmp_path, f"old {case}").get(b"WARC-Refers-To") == record_id(f"first {case}"), case
        assert replayed(tmp_path, f"old {case}") == [sha256(text(case, 4_000))], case
    restored(p, tmp_path)


def test_a_reference_that_only_a_manifest_could_explain_is_left_and_leads_on_by_its_digest(
    tmp_path: Path,
) -> None:
    p = two_pages(digest_form="sha256")
    p.file("b.warc")
    old = p.revisit("b.warc", "old", f"{SITE}/3", absent("gone", f"{SITE}/2", PAGE), names=("uri",))

    called = staged(p, tmp_path, more=("--hash", "sha1"))

    assert "leads nowhere" not in called.out
    assert record(tmp_path, "old").plain == old.to_bytes().rstrip(b"\r\n")


def test_chunks_are_compared_with_those_of_the_same_payload_in_one_moment(tmp_path: Path) -> None:
    p = Planting()
    p.file("a.warc")
    p.exchange("a.warc", "first", f"{SITE}/1", PAGE, date="2020-01-01T00:00:01Z", chunked=True)
    copy = p.exchange("a.warc", "copy", f"{SITE}/2", PAGE, date=MOMENT, chunked=True, digest_form=None)
    p.exchange("a.warc", "cut", f"{SITE}/2", OTHER, date=MOMENT, truncated="time")
    p.file("b.warc")
    p.revisit("b.warc", "old", f"{SITE}/3", copy, names=("uri", "date"))

    staged(p, tmp_path)

    assert record(tmp_path, "old").get(b"WARC-Refers-To") == record_id("first")
    assert replayed(tmp_path, "old") == [sha256(PAGE)]
    done(tmp_path, "restore", "in", "--in-place")
    assert replayed(tmp_path, "old") == [sha256(PAGE), sha256(OTHER)]


def test_restoring_may_bring_back_what_a_uri_and_a_digest_stood_in_for(tmp_path: Path) -> None:
    p = two_pages()
    p.file("b.warc")
    p.exchange("b.warc", "cut", f"{SITE}/2", PAGE, date=LATER, truncated="time")
    old = p.revisit("b.warc", "old", f"{SITE}/3", p.records["copy"], names=("uri", "date"))

    staged(p, tmp_path, "a.warc")
    staged(p, tmp_path, "b.warc")
    assert record(tmp_path, "old").plain == old.to_bytes().rstrip(b"\r\n")
    assert replayed(tmp_path, "old") == []

    restored(p, tmp_path)
    assert replayed(tmp_path, "old") == [sha256(PAGE)]


def test_a_revisit_that_was_pointed_to_another_capture_of_a_moment_is_put_back(tmp_path: Path) -> None:
    p = two_pages(digest_form=None)
    p.file("b.warc")
    p.exchange("b.warc", "other", f"{SITE}/4", OTHER, date="2020-01-01T00:00:02Z")
    p.exchange("b.warc", "twin", f"{SITE}/2", OTHER, date=MOMENT)
    p.revisit("b.warc", "old", f"{SITE}/3", p.records["copy"])

    staged(p, tmp_path, "a.warc")
    # What it names by its id is no capture any more, and what has its URI and date becomes a revisit now.
    staged(p, tmp_path, "b.warc")
    assert record(tmp_path, "old").get(b"Former-WARC-Refers-To") == record_id("copy")

    restored(p, tmp_path)
    assert replayed(tmp_path, "old") == [sha256(PAGE), sha256(OTHER)]


def test_the_digest_decides_between_captures_of_a_moment_before_what_cannot_be_compared(
    tmp_path: Path,
) -> None:
    p = two_pages()
    p.exchange("a.warc", "other", f"{SITE}/2", OTHER, date=MOMENT, digest_form="sha256")
    p.exchange("a.warc", "again", f"{SITE}/4", OTHER, date=LATER)
    p.file("b.warc")
    p.revisit("b.warc", "old", f"{SITE}/3", p.records["copy"], names=("uri", "date"))

    staged(p, tmp_path)

    assert record(tmp_path, "old").get(b"WARC-Refers-To") == record_id("first")
    assert replayed(tmp_path, "old") == [sha256(PAGE)]
    restored(p, tmp_path)


def test_a_uri_and_a_digest_lead_where_only_another_payload_has_the_uri_and_second(tmp_path: Path) -> None:
    p = two_pages()
    p.exchange("a.warc", "other", f"{SITE}/2", OTHER, date="2020-01-02T00:00:00.5Z")
    p.file("b.warc")
    gone = absent("gone", f"{SITE}/2", PAGE, date="2020-01-02T00:00:00Z")
    p.revisit("b.warc", "old", f"{SITE}/3", gone)

    staged(p, tmp_path)

    assert record(tmp_path, "old").get(b"WARC-Refers-To") == record_id("first")
    assert replayed(tmp_path, "old") == [sha256(PAGE)]
    restored(p, tmp_path)


def test_a_page_stays_whose_moment_another_capture_has_in_chunks(tmp_path: Path) -> None:
    p = Planting()
    p.file("a.warc")
    p.file("b.warc")
    old: dict[str, Record] = {}
    ways = (("id",), ("uri", "date"), ("id", "uri", "date"), ("uri",))
    for number, (names, status) in enumerate(product(ways, (404, 200))):
        case = f"{'-'.join(names)}-{status}"
        page, uri, moment = text(case, 4_000), f"{SITE}/{case}", f"2020-01-01T00:00:{10 + number}Z"
        p.exchange("a.warc", f"first {case}", f"{SITE}/first-{case}", page, date="2020-01-01T00:00:01Z")
        post = {"status": status, "chunked": True, "method": "POST"}
        p.exchange("a.warc", f"chunked {case}", uri, page, date=moment, **post)
        copy = p.exchange("a.warc", f"whole {case}", uri, page, date=moment)
        old[case] = p.revisit("b.warc", f"old {case}", f"{SITE}/old-{case}", copy, names=names)

    staged(p, tmp_path)

    for case, revisit in old.items():
        assert record(tmp_path, f"old {case}").plain == revisit.to_bytes().rstrip(b"\r\n"), case
        assert record(tmp_path, f"whole {case}").get(b"WARC-Type") == b"response", case
    restored(p, tmp_path)
