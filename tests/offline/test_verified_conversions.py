"""ARC files whose WARC files were deduplicated: right ones pass, and every way to spoil one is found."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from offline.archive_pairs import HEAD, OTHER, SAME, Archive, Rec, convert, record_id, response, sha1

from scrapy_dedupe.verification.verifying import Verification, pairs_of, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

URI = "http://example.org/%d"
DATE = "2020-01-0%dT00:00:00Z"
_NAMES = "URL IP-address Archive-date Content-type Archive-length"


def capture(uri: str, number: int, block: bytes, encoding: str = "utf-8") -> bytes:
    line = f"{uri} 192.0.2.1 2020010{number}000000 text/html {len(block)}\n"
    return line.encode(encoding) + block + b"\n"


def arc(captures: list[bytes], *, member: str = "none") -> bytes:
    block = f"1 0 test\n{_NAMES}\n".encode()
    records = [b"filedesc://a.arc 0.0.0.0 20200101000000 text/plain %d\n" % len(block) + block + b"\n"]
    records += captures
    if member == "one":
        return gzip.compress(b"".join(records), mtime=0)
    return b"".join(gzip.compress(one, mtime=0) if member == "each" else one for one in records)


def captures() -> list[bytes]:
    return [
        capture(URI % number, number, HEAD % b"%d" % number + body)
        for number, body in ((1, SAME), (2, SAME), (3, OTHER))
    ]


def converted() -> Archive:
    """What the captures become: the second is a copy of the first."""
    first, copy, alone = (
        response(number, URI % number, DATE % number, body)
        for number, body in ((1, SAME), (2, SAME), (3, OTHER))
    )
    convert(copy, first, record_id(102))
    info = Rec([["WARC-Type", "warcinfo"], ["WARC-Record-ID", record_id(9)]], b"of: an ARC file\r\n")
    return Archive({"a.warc": {"info": info, "first": first, "copy": copy, "alone": alone}})


def run(before: bytes, after: Archive, folder: Path, *, name: str = "a.arc") -> Verification:
    (folder / "before").mkdir(parents=True)
    (folder / "before" / name).write_bytes(before)
    return verify(pairs_of(folder / "before", after.write(folder / "after")), work=folder / "work")


def reasons(result: Verification) -> str:
    return "\n".join(map(str, result.findings))


@pytest.mark.parametrize("member", ["none", "each", "one"])
def test_a_capture_of_an_arc_file_may_have_become_a_revisit(tmp_path: Path, member: str) -> None:
    after = converted()
    if member != "none":
        after.files["a.warc.gz"] = after.files.pop("a.warc")
    name = "a.arc" if member == "none" else "a.arc.gz"
    result = run(arc(captures(), member=member), after, tmp_path, name=name)
    assert reasons(result) == ""
    assert (result.from_arc, result.converted, result.resolved, result.replayed) == (2, 1, 1, 1)


def setting(label: str, name: str, value: str) -> Callable[[Archive], None]:
    return lambda after: after[label].set(name, value)


def dropping(label: str, name: str) -> Callable[[Archive], None]:
    return lambda after: after[label].drop(name)


def to_another_original(after: Archive) -> None:
    copy, alone = after["copy"], after["alone"]
    copy.set("WARC-Refers-To", alone.get("WARC-Record-ID"))
    copy.set("WARC-Refers-To-Target-URI", alone.get("WARC-Target-URI"))
    copy.set("WARC-Refers-To-Date", alone.get("WARC-Date"))


def give_another_head(after: Archive) -> None:
    after["copy"].block = HEAD % b"8"
    after["copy"].set("WARC-Block-Digest", sha1(after["copy"].block))


def leave_out(label: str) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        del after.files["a.warc"][label]

    return spoil


SPOILT: dict[str, tuple[Callable[[Archive], None], str]] = {
    "wrong original": (to_another_original, "the record has another payload"),
    "original that is not there": (setting("copy", "WARC-Refers-To-Date", DATE % 7), "refer to no existing response"),
    "no id of the original": (dropping("copy", "WARC-Refers-To"), "WARC-Refers-To is missing"),
    "other HTTP head": (give_another_head, "the HTTP head differs"),
    "original is gone": (leave_out("first"), "is no longer in its place"),
    "copy is gone": (leave_out("copy"), "is no longer in its place"),
    "other URI": (setting("copy", "WARC-Target-URI", URI % 8), "the URI is"),
    "other date": (setting("copy", "WARC-Date", DATE % 8), "the date is"),
    "other digest": (setting("copy", "WARC-Payload-Digest", sha1(OTHER)), "WARC-Payload-Digest"),
    "false former digest": (setting("copy", "Former-WARC-Payload-Digest", sha1(OTHER)), "its former payload digest"),
    "false former block digest": (setting("copy", "Former-WARC-Block-Digest", sha1(OTHER)), "Former-WARC-Block-Digest"),
    "no former block digest": (dropping("copy", "Former-WARC-Block-Digest"), "Former-WARC-Block-Digest"),
    "no former id": (dropping("copy", "Former-WARC-Record-ID"), "it has the record id"),
    "id of another record": (setting("copy", "WARC-Record-ID", record_id(1)), "another record has its new record id"),
    "no profile": (dropping("copy", "WARC-Profile"), "WARC-Profile"),
    "a former value of nothing": (setting("copy", "Former-X-Page", "1"), "which was not its value"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_every_mutation_of_a_converted_and_deduplicated_file_is_found(tmp_path: Path, name: str) -> None:
    spoil, reason = SPOILT[name]
    after = converted()
    spoil(after)
    assert reason in reasons(run(arc(captures()), after, tmp_path))


@pytest.mark.parametrize(
    ("encoding", "uri"),
    [("utf-8", "http://example.org/%C3%A9"), ("latin-1", "http://example.org/%E9")],
)
def test_a_uri_may_be_percent_encoded_where_no_uri_can_have_its_bytes(
    tmp_path: Path, encoding: str, uri: str
) -> None:
    before = captures()
    before[2] = capture("http://example.org/é", 3, HEAD % b"3" + OTHER, encoding)
    after = converted()
    after["alone"].set("WARC-Target-URI", uri)
    assert reasons(run(arc(before), after, tmp_path / "right")) == ""
    after["alone"].set("WARC-Target-URI", "http://example.org/e")
    assert "the URI is" in reasons(run(arc(before), after, tmp_path / "wrong"))


def test_a_capture_without_a_status_line_may_have_become_a_resource(tmp_path: Path) -> None:
    before = captures()
    before[2] = capture(URI % 3, 3, OTHER)
    after = converted()
    after["alone"].set("WARC-Type", "resource")
    after["alone"].set("Content-Type", "text/html")
    after["alone"].block = OTHER
    assert reasons(run(arc(before), after, tmp_path / "right")) == ""
    after["alone"].block = OTHER[:-1] + b"!"
    assert "the payload differs" in reasons(run(arc(before), after, tmp_path / "wrong"))
