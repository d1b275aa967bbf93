"""A planted archive with everything in it, whose fates are spelled by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offline.planted import SITE, Copy, Linked, Planting, Pointed, record_id, text

if TYPE_CHECKING:
    from offline.planted import Fate


def garden() -> Planting:
    """Everything at once. Names of files sort as they stand here, dates go up unless they are given."""
    p = Planting()
    _old(p)
    _first_folder(p)
    _second_folder(p)
    _left_alone(p)
    _referring(p)
    _twins(p)
    _ancient(p)
    return p


def _old(p: Planting) -> None:
    """ARC files: originals without an id, and copies that cannot become revisits."""
    p.file("arc/old.arc.gz", "arc gzip")
    p.arc_capture("arc/old.arc.gz", "arc-rose", f"{SITE}/rose", text("rose", 5_000))
    p.arc_capture("arc/old.arc.gz", "arc-rose-again", f"{SITE}/rose-2", text("rose", 5_000))
    p.file("arc/plain.arc", "arc")
    p.arc_capture("arc/plain.arc", "arc-rose-plain", f"{SITE}/rose-3", text("rose", 5_000))


def _first_folder(p: Planting) -> None:
    a = "crawl a/first.warc.gz"
    p.file(a)
    p.warcinfo(a)
    p.exchange(a, "oak", f"{SITE}/oak", text("oak", 6_000))
    # same URL, at once
    p.exchange(a, "oak-again", f"{SITE}/oak", text("oak", 6_000), fate=Copy("oak"))
    # another URL, other HTTP headers, other WARC fields
    p.exchange(
        a,
        "oak-elsewhere",
        f"{SITE}/tree?kind=oak",
        text("oak", 6_000),
        fate=Copy("oak"),
        extra=((b"X-Crawl-Job", "großer Lauf".encode()), (b"WARC-Warcinfo-ID", record_id(f"{a}/info"))),
        http_extra=((b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=2"), (b"X-Latin", b"\xe4\xf6")),
    )
    # the original is in an ARC file and has neither id nor digest
    p.exchange(a, "rose", f"{SITE}/rose", text("rose", 5_000), fate=Copy("arc-rose"))
    # digests in other forms; digest of nothing; no block digest
    p.exchange(a, "oak-hex", f"{SITE}/oak-hex", text("oak", 6_000), fate=Copy("oak"), digest_form="sha1 hex")
    p.exchange(a, "oak-256", f"{SITE}/oak-256", text("oak", 6_000), fate=Copy("oak"), digest_form="sha256")
    p.exchange(
        a, "oak-none", f"{SITE}/oak-none", text("oak", 6_000), fate=Copy("oak"), digest_form=None,
        block_digest=False,
    )  # fmt: skip
    # non-ASCII and spaces in URIs, on both sides
    p.exchange(a, "lime", f"{SITE}/große linde?ö=ä b", text("lime", 4_000))
    p.exchange(a, "lime-2", f"{SITE}/kleine linde é", text("lime", 4_000), fate=Copy("lime"))
    # an original without a digest, and copies of it that have one
    p.exchange(a, "fir", f"{SITE}/fir", text("fir", 3_000), digest_form=None, block_digest=False)
    p.exchange(a, "fir-2", f"{SITE}/fir-2", text("fir", 3_000), fate=Copy("fir"))
    p.exchange(a, "fir-3", f"{SITE}/fir", text("fir", 3_000), fate=Copy("fir"), digest_form=None)


def _second_folder(p: Planting) -> None:
    # the same name as in the other folder; request before response; links the other way; angle brackets
    b = "crawl b/first.warc"
    p.file(b, "plain")
    p.warcinfo(b, b"WARC/1.0")
    way = {"order": "request response", "link": "response names request", "version": b"WARC/1.0"}
    p.exchange(b, "b-oak", f"{SITE}/oak", text("oak", 6_000), fate=Copy("oak"), brackets=True, **way)  # type: ignore[arg-type]
    p.exchange(b, "b-elm", f"{SITE}/elm", text("elm", 4_000), brackets=True, **way)  # type: ignore[arg-type]
    p.exchange(b, "b-elm-2", f"{SITE}/elm-2", text("elm", 4_000), fate=Copy("b-elm"), **way)  # type: ignore[arg-type]
    # transfer coding: a copy in chunks of one that is not, and the other way round; chunks announced and not there
    p.exchange(b, "b-oak-chunked", f"{SITE}/oak-c", text("oak", 6_000), fate=Copy("oak"), chunked=True)
    p.exchange(b, "b-ash", f"{SITE}/ash", text("ash", 4_000), chunked=True, digest_of="stored")
    # a replay program would show the chunks of the original here, so this one is that of those without chunks
    p.exchange(b, "b-ash-2", f"{SITE}/ash-2", text("ash", 4_000))
    p.exchange(
        b, "b-ash-3", f"{SITE}/ash-3", text("ash", 4_000), fate=Copy("b-ash-2"), head_only_says_chunked=True
    )
    p.exchange(b, "b-ash-4", f"{SITE}/ash-4", text("ash", 4_000), fate=Copy("b-ash"), chunked=True)
    # content coding is part of the payload
    p.exchange(b, "b-oak-gzip", f"{SITE}/oak", text("oak", 60_000), coding="gzip")
    p.exchange(
        b,
        "b-oak-gzip-2",
        f"{SITE}/oak",
        text("oak", 60_000),
        coding="gzip",
        chunked=True,
        fate=Copy("b-oak-gzip"),
    )
    p.exchange(b, "b-oak-deflate", f"{SITE}/oak", text("oak", 60_000), coding="deflate")
    # a file whose name has to be quoted; an earlier capture in a later file; dates of which one has a fraction
    c = "crawl b/zweite läufe 100%.warc.gz"
    p.file(c, level=1)
    p.exchange(
        c, "c-fig-late", f"{SITE}/fig", text("fig", 4_000), date="2019-05-05T05:05:05.25Z", fate=Copy("c-fig")
    )
    p.exchange(c, "c-fig", f"{SITE}/fig-2", text("fig", 4_000), date="2019-05-05T05:05:05Z")
    p.exchange(
        c,
        "c-fig-later",
        f"{SITE}/fig",
        text("fig", 4_000),
        date="2019-05-05T05:05:05.123456789Z",
        fate=Copy("c-fig"),
    )
    # one date: the first by name and offset
    p.exchange(c, "c-nut", f"{SITE}/nut", text("nut", 4_000), date="2019-06-06T06:06:06Z")
    p.exchange(
        c, "c-nut-2", f"{SITE}/nut", text("nut", 4_000), date="2019-06-06T06:06:06Z", fate=Copy("c-nut")
    )
    # requests on their own, and lines of the HTTP head that end in LF
    p.exchange(
        c, "c-oak", f"{SITE}/oak", text("oak", 6_000), fate=Copy("oak"), order="response", line_end=b"\n"
    )


def _left_alone(p: Planting) -> None:
    d = "crawl d/left.warc.gz"
    p.file(d)
    for number, size in enumerate((0, 10, 1_023)):
        for copy in "ab":
            p.exchange(d, f"small-{number}{copy}", f"{SITE}/small/{number}{copy}", text("small", size))
    for copy in "ab":
        p.exchange(d, f"part-{copy}", f"{SITE}/part/{copy}", text("part", 3_000), status=206)
        p.exchange(d, f"lost-{copy}", f"{SITE}/lost/{copy}", text("lost", 3_000), status=404)
        p.exchange(d, f"cut-{copy}", f"{SITE}/cut/{copy}", text("cut", 3_000), truncated="length")
        p.exchange(d, f"post-{copy}", f"{SITE}/post/{copy}", text("post", 3_000), method="POST")
        p.other(d, f"resource-{copy}", "resource", f"{SITE}/file/{copy}", text("resource", 3_000))
        p.other(d, f"conversion-{copy}", "conversion", f"{SITE}/file/{copy}", text("conversion", 3_000))
        p.other(d, f"note-{copy}", "metadata", f"{SITE}/file/{copy}", text("note", 3_000))
    # parts of whole pages: neither copies nor originals, though the bytes are the same
    oak = text("oak", 6_000)
    p.exchange(d, "oak-part", f"{SITE}/oak", oak, status=206, date="2010-01-01T00:00:00Z")
    p.exchange(d, "oak-cut", f"{SITE}/oak", oak, truncated="disconnect", date="2010-01-01T00:00:00Z")
    # later than their original, but not fit to be revisits
    p.exchange(d, "oak-lost", f"{SITE}/oak", oak, status=404)
    p.exchange(d, "oak-post", f"{SITE}/oak", oak, method="POST")
    p.exchange(
        d, "oak-post-2", f"{SITE}/oak", oak, method="POST", order="request response",
        link="response names request",
    )  # fmt: skip
    p.exchange(d, "oak-no-id", f"{SITE}/oak", oak, has_id=False, order="response")
    # just large enough
    p.exchange(d, "least", f"{SITE}/least", text("least", 1_024))
    p.exchange(d, "least-2", f"{SITE}/least", text("least", 1_024), fate=Copy("least"))


def _referring(p: Planting) -> None:
    """Records that refer to others, of which some become revisits."""
    e = "crawl e/referring.warc.gz"
    p.file(e)
    get = p.records.__getitem__
    # revisits of what stays
    p.revisit(e, "e-oak", f"{SITE}/oak", get("oak"))
    p.revisit(e, "e-elm-bare", f"{SITE}/elm", get("b-elm"), names=())
    p.other(
        e,
        "e-note-oak",
        "metadata",
        f"{SITE}/oak",
        b"seen",
        fields=((b"WARC-Refers-To", get("oak").id or b""),),
    )
    # revisits of what becomes one: by id, by URI and date, by URI and digest alone
    p.revisit(e, "e-copy", f"{SITE}/oak-3", get("oak-elsewhere"), fate=Pointed("oak"))
    p.revisit(e, "e-copy-id", f"{SITE}/oak-4", get("oak-256"), names=("id",), fate=Pointed("oak"))
    p.revisit(e, "e-copy-uri", f"{SITE}/oak-5", get("oak-hex"), names=("uri", "date"), fate=Pointed("oak"))
    p.revisit(e, "e-copy-bare", get("fir-2").uri.decode(), get("fir-2"), names=(), fate=Pointed("fir"))
    # the original of these has no id
    p.revisit(e, "e-rose", f"{SITE}/rose-9", get("rose"), fate=Pointed("arc-rose"))
    p.other(
        e, "e-note-rose", "metadata", f"{SITE}/rose", b"seen", fields=((b"WARC-Refers-To", get("rose").id or b""),),
        fate=Linked("rose"),
    )  # fmt: skip
    for label in ("oak-256", "b-elm-2"):
        of = p.fates[label]
        assert isinstance(of, Copy)
        for kind in ("metadata", "conversion"):
            refers = ((b"WARC-Refers-To", get(label).id or b""),)
            p.other(
                e,
                f"e-{kind}-{label}",
                kind,
                get(label).uri.decode(),
                text(kind, 2_000),
                fields=refers,
                fate=Pointed(of.of),
            )
    # a metadata record of the same capture, in another file than the response
    link = ((b"WARC-Concurrent-To", get("oak-again").id or b""),)
    p.other(
        e, "e-link", "metadata", f"{SITE}/oak", b"fetchTimeMs: 12\r\n", fields=link, fate=Linked("oak-again")
    )


def _twins(p: Planting) -> None:
    """Two files with the same bytes, ids included: in the second one all become revisits of the first."""
    first, second = "twins/a.warc.gz", "twins/b.warc.gz"
    p.file(first)
    p.exchange(first, "twin", f"{SITE}/twin", text("twin", 4_000))
    p.exchange(first, "twin-oak", f"{SITE}/oak", text("oak", 6_000), fate=Copy("oak"))
    p.file(second)
    for record in p.files[first].records:
        fate: Fate | None = p.fates.get(record.label)
        if record.label == "twin":
            fate = Copy("twin")
        elif record.label == "twin?":
            fate = Linked("twin = b")
        elif isinstance(fate, Linked):
            fate = Linked(f"{fate.to} = b")
        p.add(second, replace(record, label=f"{record.label} = b"), fate)


def _ancient(p: Planting) -> None:
    """Drafts of the format."""
    for number, version in enumerate((b"WARC/0.17", b"WARC/0.18")):
        name = f"versions/{number}.warc"
        p.file(name, "plain")
        p.exchange(
            name, f"v-oak-{number}", f"{SITE}/oak", text("oak", 6_000), version=version, fate=Copy("oak")
        )
        p.exchange(name, f"v-own-{number}", f"{SITE}/own", text(f"own {number}", 2_000), version=version)
