"""Random archives survive ``dedupe`` and ``restore``, and each record becomes what the rules say.

``DEDUPE_RANDOM_ARCHIVES=1000`` tries so many instead of a few.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from offline.calling import done
from offline.outputs import assert_deduplicated, assert_restored, snapshot
from offline.planted import SITE, Planting, Record, fates_of, text
from sampling import examples

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = int(os.environ.get("DEDUPE_RANDOM_ARCHIVES", examples(12)))

KINDS = ("gzip", "gzip", "gzip", "plain", "plain", "arc gzip", "arc")
PATHS = ("", "a", "a?b=c", "ä ö", "a b", "%20", "?q=\x7f", "long" * 60)
DATES = (
    "2001-02-03T04:05:06Z", "2001-02-03T04:05:06.7Z", "2001-02-03T04:05:06.070Z", "2001-02-03T04:05:07Z",
    "1999-12-31T23:59:59.999999999Z", "2024-02-29T00:00:00Z",
)  # fmt: skip
LINKS = ("request names response", "response names request", "none")


@st.composite
def exchanges(draw: st.DrawFn) -> dict[str, Any]:
    """Options of `Planting.exchange`. Every second one is as usual, or hardly anything would be a copy."""
    if draw(st.booleans()):
        return {}
    method = draw(st.sampled_from(("GET", "GET", "GET", "POST")))
    # Nothing says that it was a POST but a request that is there and linked.
    orders = ("response request", "request response") + (("response",) if method == "GET" else ())
    link = draw(st.sampled_from(LINKS if method == "GET" else LINKS[:2]))
    # A request cannot name a response without an id.
    must_have_id = method != "GET" and link == LINKS[0]
    return {
        "method": method,
        "order": draw(st.sampled_from(orders)),
        "link": link,
        "status": draw(st.sampled_from((200, 200, 200, 200, 206, 301, 404))),
        "version": draw(st.sampled_from((b"WARC/1.1", b"WARC/1.0", b"WARC/0.18"))),
        "digest_form": draw(st.sampled_from((None, "sha1", "sha1 hex", "sha256", "md5"))),
        "block_digest": draw(st.booleans()),
        "chunked": draw(st.booleans()),
        "coding": draw(st.sampled_from((None, None, "gzip", "deflate"))),
        "brackets": draw(st.booleans()),
        "truncated": draw(st.sampled_from((None, None, None, "time"))),
        "has_id": must_have_id or draw(st.sampled_from((True, True, True, False))),
        "line_end": draw(st.sampled_from((b"\r\n", b"\n"))),
    }


@st.composite
def plantings(draw: st.DrawFn) -> Planting:
    p = Planting()
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(KINDS))
        # What is at the top keeps all others in their folders.
        below = draw(st.sampled_from(("", "x/", "x y/"))) if number else ""
        name = f"{below}{number}.{'arc' if kind.startswith('arc') else 'warc'}"
        p.file(name + (".gz" if "gzip" in kind else ""), kind, draw(st.sampled_from((1, 6, 9))))
    places = [(name, file.kind) for name, file in p.files.items()]
    for number in range(draw(st.integers(5, 16))):
        # An empty file is damage, so each one gets something.
        name, kind = places[number] if number < len(places) else draw(st.sampled_from(places))
        what = draw(st.sampled_from(("exchange",) * 6 + ("revisit", "metadata", "conversion")))
        uri = f"{SITE}/{draw(st.sampled_from(PATHS))}"
        size = draw(st.sampled_from((2_000, 2_000, 2_000, 2_000, 1_024, 1_023, 9_000, 0, 1)))
        body = text(draw(st.sampled_from("xxy")), size)
        date = draw(st.sampled_from(DATES))
        label = f"r{number}"
        known = [record for record in p.records.values() if record.type == "response" and record.id]
        if kind.startswith("arc"):
            p.arc_capture(
                name, label, uri, body, date=date[:19] + "Z", status=draw(st.sampled_from((200, 404)))
            )
        elif what == "exchange" or not known:
            p.exchange(name, label, uri, body, date=date, **draw(exchanges()))
        else:
            _add_referring(draw, p, name, label, what, uri, draw(st.sampled_from(known)))
    return p


def _add_referring(
    draw: Callable[..., Any], p: Planting, name: str, label: str, what: str, uri: str, target: Record
) -> None:
    assert target.id
    if what == "revisit":
        p.revisit(name, label, uri, target, names=draw(st.sampled_from((("id",), ("id", "uri", "date")))))
    else:
        link = draw(st.sampled_from((b"WARC-Refers-To", b"WARC-Concurrent-To")))
        p.other(name, label, what, uri, b"about " + uri.encode(), fields=((link, target.id),))


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(plantings(), st.booleans())
def test_a_random_archive_is_deduplicated_by_the_rules_and_restored(p: Planting, in_place: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        p.write(folder / "in")
        if in_place:
            done(folder, "dedupe", "-r", "in", "--in-place")
            assert_deduplicated(p, folder / "in", fates_of(p))
            done(folder, "restore", "in", "--in-place")
            assert_restored(p, folder / "in", fates_of(p))
            return
        before = snapshot(folder / "in")
        done(folder, "dedupe", "-r", "in", "-o", "out")
        assert_deduplicated(p, folder / "out", fates_of(p))
        assert snapshot(folder / "in") == before
        done(folder, "restore", "out", "-o", "back")
        assert_restored(p, folder / "back", fates_of(p))
