from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.snapshot import FilterSnapshot

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MAKER = "a.Maker"


def test_the_bytes_of_a_snapshot(tmp_path: Path) -> None:
    seen = GrowingBloomFilter(4, 0.1)
    seen.add(b"\x01\x02")
    geometry, _, (bits,) = seen.dump_layers()[0]
    head = (
        b'{"capacity":4,"done_bytes":17,"error_rate":0.1,"exact":null,"fingerprinter":"a.Maker","layers":[{"capacity"'
        b':4,"count":1,"error_rate":0.06999999999999999,"hashes":%d,"slice_bits":%d}],"seen_bytes":29}'
        % (geometry.hashes, geometry.slice_bits)
    )
    body = b"sd-bloom\x03\x00\x00\x00" + struct.pack("<I", len(head)) + head + bits
    FilterSnapshot(seen, MAKER, 17, 29).write(tmp_path / "urls.bloom")
    assert (tmp_path / "urls.bloom").read_bytes() == body + hashlib.sha256(body).digest()
    assert [path.name for path in tmp_path.iterdir()] == ["urls.bloom"]


@given(
    st.lists(st.binary(min_size=1, max_size=30), max_size=60),
    st.integers(1, 20),
    st.sampled_from([1e-6, 1e-3, 0.01, 0.3]),
    st.none() | st.integers(0, 2**40),
)
@settings(max_examples=examples(40), deadline=None)
def test_a_snapshot_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    items: list[bytes],
    capacity: int,
    rate: float,
    exact: int | None,
) -> None:
    path = tmp_path_factory.mktemp("snapshot") / "urls.bloom"
    seen = GrowingBloomFilter(capacity, rate)
    seen.add_many(items)
    FilterSnapshot(seen, MAKER, 1, 2, exact).write(path)
    found = FilterSnapshot.read(path, MAKER)
    assert (found.done_bytes, found.seen_bytes, found.exact, len(found.filter)) == (1, 2, exact, len(seen))
    for (*head, parts), (*head_before, parts_before) in zip(
        found.filter.dump_layers(), seen.dump_layers(), strict=True
    ):
        assert (head, list(parts)) == (head_before, list(parts_before))
    assert found.filter.add_many(items) == [False] * len(items)
