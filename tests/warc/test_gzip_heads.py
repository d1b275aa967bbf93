"""What is looked at before a decompressor is set up hides no member that the decompressor alone would find."""

from __future__ import annotations

import gzip
import zlib

from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.sources import GzipSource, begins_record, deflate_start

FTEXT, FHCRC, FEXTRA, FNAME, FCOMMENT = 1, 2, 4, 8, 16
TRIED = 1 << 16
RECORD = b"WARC/1.0\r\nWARC-Type: metadata\r\nContent-Length: 2\r\n\r\nhi\r\n\r\n"
ARC = b"http://a/b 192.0.2.1 20080430204825 text/html 2\nhi\n"


def head(flags: int, extra: bytes = b"", name: bytes = b"", comment: bytes = b"", damage: int = 0) -> bytes:
    data = b"\x1f\x8b\x08" + bytes([flags]) + b"\0\0\0\0\0\xff"
    data += (len(extra).to_bytes(2, "little") + extra) * bool(flags & FEXTRA)
    data += (name + b"\0") * bool(flags & FNAME) + (comment + b"\0") * bool(flags & FCOMMENT)
    return data + (zlib.crc32(data) + damage & 0xFFFF).to_bytes(2, "little") * bool(flags & FHCRC)


def member(
    head: bytes, text: bytes, level: int = 6, strategy: int = zlib.Z_DEFAULT_STRATEGY, cut: int = 0
) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
    data = packer.compress(text) + packer.flush()
    trailer = zlib.crc32(text).to_bytes(4, "little") + len(text).to_bytes(4, "little")
    return (head + data + trailer)[: -cut or None]


def found_by_decompressing(data: bytes) -> int:
    """Where the first member begins with a record, all that look like one being decompressed."""
    at = data.find(b"\x1f\x8b\x08")
    while at >= 0:
        try:
            out = zlib.decompressobj(31).decompress(data[at : at + TRIED], 1 << 14)
        except zlib.error:
            out = b""
        if begins_record(out.partition(b"\n")[0] + b"\n"):
            return at
        at = data.find(b"\x1f\x8b\x08", at + 1)
    return len(data)


texts = st.one_of(
    st.sampled_from([RECORD, ARC, b"", b"WARC/1\rodd", b"WARC/1.0", b" " + ARC, ARC[:-4], b"no\n" + RECORD]),
    st.builds(
        lambda count: b"http://a/" + b"a" * count + ARC[10:], st.sampled_from([20, 70, 300, 5000, 17_000])
    ),
    st.binary(max_size=300),
)
heads = st.builds(
    head,
    st.one_of(st.integers(0, 31), st.integers(0, 255)),
    st.binary(max_size=20),
    st.sampled_from([b"", b"a.warc.gz", b"n" * 70_000]),
    st.sampled_from([b"", b"made by hand"]),
    st.sampled_from([0, 0, 0, 1]),
)
members = st.builds(
    member,
    heads,
    texts,
    st.sampled_from([0, 1, 9]),
    st.sampled_from([zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY]),
    st.sampled_from([0, 0, 1, 8, 9, 30]),
)
noise = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda end: b"\x1f\x8b\x08" + end, st.binary(max_size=30)),
    st.builds(lambda size: b"\x1f\x8b\x08" * size, st.integers(1, 60)),
    # The file is read in pieces.
    st.builds(
        lambda size: b"x" * size, st.sampled_from([TRIED - 9, TRIED, 2 * TRIED - 2, 2 * TRIED, 3 * TRIED - 1])
    ),
)


@given(st.lists(st.one_of(noise, members), max_size=6))
@example([b"x" * (TRIED - 2), member(head(0), RECORD)])
@example([b"x" * (2 * TRIED - 1), member(head(FNAME, name=b"n" * (TRIED - 60)), RECORD)])
@example([member(head(FTEXT | FHCRC | FEXTRA | FNAME | FCOMMENT, b"AB\x02\0xy", b"a", b"b"), RECORD)])
@example([member(head(FHCRC, damage=1), RECORD), member(head(0), ARC, 0)])
@example([member(head(0), b"WARC/1\rodd"), member(head(0), RECORD)])
def test_the_next_member_with_a_record_is_the_one_that_decompressing_all_of_them_finds(
    tmp_path_factory, parts
):
    data = b"".join(parts)
    path = tmp_path_factory.mktemp("heads") / "a.warc.gz"
    path.write_bytes(data)
    with path.open("rb") as file:
        source = GzipSource(file, 0)
        source.find_next(0)
        assert source.offset == found_by_decompressing(data)


@given(heads, st.binary(min_size=9, max_size=9))
def test_a_head_ends_where_a_decompressor_takes_it_to_end(made, rest):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = made + packer.compress(rest) + packer.flush()
    start = deflate_start(data, 0, len(data))
    try:
        is_good = zlib.decompressobj(31).decompress(data) == rest
    except zlib.error:
        is_good = False
    assert start == (len(made) if is_good else -1)


def test_a_record_is_found_behind_very_many_beginnings_of_members(tmp_path):
    path = tmp_path / "a.warc.gz"
    whole = gzip.compress(RECORD)
    path.write_bytes(whole + b"\x1f\x8b\x08" * 50_000 + whole)
    damages = []
    assert len(list(read_records(path, on_damage=damages.append))) == 2
    assert [damage.offset for damage in damages] == [len(whole)]
