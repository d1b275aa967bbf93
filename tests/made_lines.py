"""Lines of manifests for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from scrapy_dedupe.offline.manifest import ManifestLine

texts = st.one_of(
    st.text(max_size=12),
    st.text(alphabet='ab% -/!"20é\u2028\x85\xa0\n\r\t\x00\x7f', max_size=8),
    st.binary(max_size=6).map(lambda data: data.decode("utf-8", "surrogateescape")),
).filter(lambda text: text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") == text)
dates = st.builds(
    lambda second, fraction: f"2012-04-08T20:13:{second:02}{fraction}Z",
    st.integers(0, 3),
    st.sampled_from(["", ".5", ".000000001", ".123", ".50"]),
) | st.sampled_from(["2012", "2012-04", "2012-04-08", "2012-04-08T20:13Z"])
digests = st.sampled_from(
    [f"sha1:{'0a' * 20}", f"md5:{'ff' * 16}", f"sha256:{'01' * 32}", f"decoded-sha512:{'ab' * 64}"]
)
numbers = st.integers(0, 30) | st.integers(0, (1 << 63) - 1)
counts = st.integers(1, 12)


@st.composite
def manifest_lines(draw: st.DrawFn, columns: int) -> ManifestLine:
    copy = draw(counts) if columns == 10 else None
    is_copy = copy is not None and copy > 1
    return ManifestLine(
        draw(texts.filter(bool)),
        draw(numbers),
        draw(numbers),
        draw(texts),
        draw(dates),
        draw(digests),
        draw(counts) if columns > 6 else None,
        copy,
        draw(texts) if is_copy else None,
        draw(dates) if is_copy else None,
    )


def a_line(file: str = "a.warc.gz", offset: int = 0, **others: object) -> ManifestLine:
    """A line with usual values."""
    values: dict[str, object] = {
        "length": 635,
        "uri": "http://a.example/",
        "date": "2012-04-08T20:13:38Z",
        "digest": f"sha1:{'aa' * 20}",
    }
    return ManifestLine(file, offset, **(values | others))  # type: ignore[arg-type]
