from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.urls.forgotten import Forgotten

ITEMS = st.sampled_from([bytes([n]) for n in range(8)])


@given(st.lists(ITEMS), st.lists(st.tuples(st.booleans(), ITEMS)))
def test_each_fingerprint_is_taken_once(noted: list[bytes], steps: list[tuple[bool, bytes]]) -> None:
    forgotten = Forgotten(noted)
    known, taken = set(noted), set[bytes]()
    for is_take, item in steps:
        if is_take:
            assert forgotten.take(item) == (item in known and item not in taken)
            taken |= {item} & known
        else:
            forgotten.add_many([item])
            known.add(item)
        assert (item in forgotten) == (item in known - taken)
        assert forgotten.was_taken(item) == (item in taken)
        assert forgotten.has_taken == bool(taken)
    assert len(forgotten) == len(known - taken)
