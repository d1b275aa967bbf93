from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passages.segment_cases import Case, Name, Text, cases, parameters, posts_of, write
from passages.small_segments import deleted, write_index

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.passages import writer
from scrapy_dedupe.passages.segments import Segment
from scrapy_dedupe.passages.snapshot import IndexSnapshot
from scrapy_dedupe.passages.writer import merge

OTHERS = Case(tuple(Text(chr(number), ()) for number in range(4)), ())
"""The texts of other segments that `cases` names."""


@dataclass(frozen=True)
class Part:
    """A segment to be merged, and which of its documents are alive."""

    case: Case
    alive: tuple[bool, ...]

    def digest_of(self, document: Name) -> bytes:
        return document.text if isinstance(document.text, bytes) else self.case.texts[document.text].digest


@st.composite
def parts(draw: st.DrawFn) -> list[Part]:
    """Draw segments; names repeat between them, and a name may be of a text in another one of them."""
    some: list[Part] = []
    held = {text.digest for text in OTHERS.texts}
    for case in draw(st.lists(cases(), max_size=4)):
        texts = tuple(text for text in case.texts if text.digest not in held)
        numbers = {text.digest: number for number, text in enumerate(texts)}
        digests = [Part(case, ()).digest_of(document) for document in case.documents]
        documents = tuple(
            replace(document, text=numbers.get(digest, digest))
            for document, digest in zip(case.documents, digests, strict=True)
        )
        some.append(Part(Case(texts, documents), tuple(draw(st.booleans()) for _ in documents)))
        held |= set(numbers)
    return some


def joined(some: list[Part]) -> Case:
    """What a merge has to give, worked out one by one."""
    living = [
        (document, part.digest_of(document))
        for part in some
        for document, is_alive in zip(part.case.documents, part.alive, strict=True)
        if is_alive
    ]
    needed = {digest for _, digest in living}
    texts = tuple(text for part in some for text in part.case.texts if text.digest in needed)
    numbers = {text.digest: number for number, text in enumerate(texts)}
    documents = (replace(document, text=numbers.get(digest, digest)) for document, digest in living)
    return Case(texts, tuple(documents))


def merged(folder: Path, some: list[Part], *, has_texts: bool, others: Case = OTHERS) -> Segment:
    names = [f"part{number}" for number in range(len(some))]
    entries = [
        write(folder, name, part.case, has_texts=has_texts) for name, part in zip(names, some, strict=True)
    ]
    gone = {
        name: deleted(
            len(part.alive), *(number for number, is_alive in enumerate(part.alive) if not is_alive)
        )
        for name, part in zip(names, some, strict=True)
    }
    entries.append(write(folder, "others", others, has_texts=has_texts))
    write_index(folder, parameters(has_texts=has_texts), entries, gone)
    with IndexSnapshot.open(folder) as snapshot:
        entry = merge(snapshot, slice(0, len(some)), "merged")
    return Segment(folder, entry, parameters(has_texts=has_texts))


@given(parts().filter(bool), st.booleans(), st.sampled_from([10, 60, 1 << 19]))
@settings(deadline=None, max_examples=10)
def test_a_merged_segment_is_byte_for_byte_the_one_written_at_once(
    some: list[Part], has_texts: bool, at_a_time: int
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_POSTS", at_a_time)
        folder = Path(name)
        segment = merged(folder, some, has_texts=has_texts)
        entry = write(folder, "once", joined(some), has_texts=has_texts)
        assert (folder / "merged.segment").read_bytes() == (folder / "once.segment").read_bytes()
        assert replace(segment.entry, name="once") == entry
        assert segment.damage() is None
        segment.close()


def test_a_text_that_only_another_segment_names_stays(tmp_path: Path) -> None:
    kept = Text("kept", (1, 2))
    part = Part(Case((kept, Text("gone", (2, 3))), (Name("a", "", 0),)), (False,))
    others = Case((), (Name("b", "", kept.digest),))
    segment = merged(tmp_path, [part], has_texts=True, others=others)
    assert (segment.text_count, segment.document_count) == (1, 0)
    found = segment.posts_between(0, 4096)
    assert posts_of(found.keys, found.texts, found.where) == [(1, 0, 0), (2, 0, 0)]


@pytest.mark.parametrize("section", ["posts", "blobs"])
def test_damage_is_refused_and_not_given_a_new_checksum(tmp_path: Path, section: str) -> None:
    texts = tuple(Text(str(number) * 100, tuple(range(50))) for number in range(20))
    entry = write(tmp_path, "one", Case(texts, (Name("a", "", 0),)), has_texts=True)
    write_index(tmp_path, parameters(has_texts=True), [entry])
    path = tmp_path / "one.segment"
    data = bytearray(path.read_bytes())
    data[entry.sections[section][0] + 50] ^= 1
    path.write_bytes(data)
    with (
        IndexSnapshot.open(tmp_path) as snapshot,
        pytest.raises(
            StoreRefused, match=rf"one\.segment cannot be used: its section '{section}' is damaged"
        ),
    ):
        merge(snapshot, slice(0, 1), "merged")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "one.segment"]
