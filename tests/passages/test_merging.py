from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passages.segment_cases import Case, Name, Text, cases, parameters, posts_of, write, written

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.passages import merging
from scrapy_dedupe.passages.checking import check_segment
from scrapy_dedupe.passages.merging import merge
from scrapy_dedupe.passages.segments import Segment


@dataclass(frozen=True)
class Part:
    """A segment to be merged, and which of its documents and texts are alive."""

    case: Case
    alive: tuple[bool, ...]
    texts_alive: tuple[bool, ...]


def everything(case: Case) -> Part:
    return Part(case, (True,) * len(case.documents), (True,) * len(case.texts))


@st.composite
def parts(draw: st.DrawFn) -> list[Part]:
    """Draw segments; texts and names repeat between them, and a name may be of a text in another one of them."""
    some = []
    for case in draw(st.lists(cases(), max_size=4)):
        texts_alive = tuple(draw(st.booleans()) for _ in case.texts)
        alive = tuple(
            draw(st.booleans()) and (isinstance(document.text, bytes) or texts_alive[document.text])
            for document in case.documents
        )
        some.append(Part(case, alive, texts_alive))
    digests = [text.digest for part in some for text in part.case.texts]
    if digests:
        aliases = draw(st.lists(st.sampled_from(digests), max_size=3))
        for number, digest in enumerate(aliases):
            last = some[-1]
            case = Case(last.case.texts, (*last.case.documents, Name(f"alias {number}\n", "a.org", digest)))
            some[-1] = Part(case, (*last.alive, True), last.texts_alive)
    return some


def joined(some: list[Part]) -> Case:
    """What a merge has to give, worked out one by one."""
    texts: dict[bytes, Text] = {}
    for part in some:
        for text, is_alive in zip(part.case.texts, part.texts_alive, strict=True):
            if is_alive:
                texts.setdefault(text.digest, text)
    numbers = {digest: number for number, digest in enumerate(texts)}
    documents = []
    for part in some:
        for document, is_alive in zip(part.case.documents, part.alive, strict=True):
            if is_alive:
                digest = (
                    document.text
                    if isinstance(document.text, bytes)
                    else part.case.texts[document.text].digest
                )
                documents.append(Name(document.doc_id, document.host, numbers.get(digest, digest)))
    return Case(tuple(texts.values()), tuple(documents))


def merged(folder: Path, some: list[Part], *, has_texts: bool) -> Segment:
    segments = [
        written(folder, part.case, has_texts=has_texts, name=f"part{number}")
        for number, part in enumerate(some)
    ]
    entry = merge(
        segments,
        [np.array(part.alive, bool) for part in some],
        [np.array(part.texts_alive, bool) for part in some],
        folder,
        "merged",
        parameters(has_texts=has_texts),
    )
    for segment in segments:
        segment.close()
    return Segment(folder, entry, parameters(has_texts=has_texts))


@given(parts(), st.booleans(), st.sampled_from([10, 60, 1 << 19]))
@settings(deadline=None, max_examples=10)
def test_a_merged_segment_is_byte_for_byte_the_one_written_at_once(
    some: list[Part], has_texts: bool, at_a_time: int
) -> None:
    # The same text has the same keys wherever it stands.
    keys: dict[bytes, tuple[int, ...]] = {}
    for part in some:
        for text in part.case.texts:
            keys.setdefault(text.digest, text.keys)
    some = [
        Part(
            Case(tuple(Text(text.text, keys[text.digest]) for text in part.case.texts), part.case.documents),
            part.alive,
            part.texts_alive,
        )
        for part in some
    ]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "_POSTS", at_a_time)
        folder = Path(name)
        segment = merged(folder, some, has_texts=has_texts)
        entry = write(folder, "once", joined(some), has_texts=has_texts)
        assert (folder / "merged.segment").read_bytes() == (folder / "once.segment").read_bytes()
        assert replace(segment.entry, name="once") == entry
        assert list(check_segment(segment)) == []
        segment.close()


def test_a_text_that_only_another_segment_names_stays(tmp_path: Path) -> None:
    part = Part(
        Case((Text("kept", (1, 2)), Text("gone", (2, 3))), (Name("a", "", 0),)), (False,), (True, False)
    )
    segment = merged(tmp_path, [part], has_texts=True)
    assert (segment.text_count, segment.document_count) == (1, 0)
    found = segment.posts_between(0, 4096)
    assert posts_of(found.keys, found.texts, found.where) == [(1, 0, 0), (2, 0, 0)]


def test_a_name_finds_the_copy_of_its_text_that_is_alive(tmp_path: Path) -> None:
    text = Text("twice", (1, 2))
    some = [
        Part(Case((text,), ()), (), (False,)),
        Part(Case((Text("first", ()), text), ()), (), (True, True)),
        everything(Case((), (Name("alias", "", text.digest),))),
    ]
    segment = merged(tmp_path, some, has_texts=True)
    assert segment.documents.texts.tolist() == [1]
    assert segment.blob(1) == b"twice"


def test_nothing_merges_to_an_empty_segment(tmp_path: Path) -> None:
    segment = merged(tmp_path, [], has_texts=True)
    assert (segment.post_count, segment.text_count, segment.document_count) == (0, 0, 0)
    assert list(check_segment(segment)) == []


def test_a_living_document_of_a_dead_text_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    part = Part(Case((Text("dead", ()),), (Name("a", "", 0),)), (True,), (False,))
    with pytest.raises(ValueError, match="the document 'a' is alive, but its text is not"):
        merged(tmp_path, [part], has_texts=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part0.segment"]


def test_damage_is_refused_and_not_given_a_new_checksum(tmp_path: Path) -> None:
    case = Case(tuple(Text(str(number), tuple(range(50))) for number in range(20)), (Name("a", "", 0),))
    entry = write(tmp_path, "one", case, has_texts=True)
    path = tmp_path / "one.segment"
    data = bytearray(path.read_bytes())
    data[entry.sections["posts"][0] + 50] ^= 1
    path.write_bytes(data)
    segment = Segment(tmp_path, entry, parameters(has_texts=True))
    with pytest.raises(StoreRefused, match=r"one\.segment cannot be used: its section 'posts' is damaged"):
        merge(
            [segment], [np.ones(1, bool)], [np.ones(20, bool)], tmp_path, "merged", parameters(has_texts=True)
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.segment"]


def test_a_damaged_blob_is_still_told_as_damaged_after_a_merge(tmp_path: Path) -> None:
    case = Case(tuple(Text(str(number) * 100, ()) for number in range(3)), ())
    entry = write(tmp_path, "one", case, has_texts=True)
    path = tmp_path / "one.segment"
    data = bytearray(path.read_bytes())
    data[18] ^= 1
    path.write_bytes(data)
    segment = Segment(tmp_path, entry, parameters(has_texts=True))
    none = np.zeros(0, bool)
    new = merge([segment], [none], [np.ones(3, bool)], tmp_path, "merged", parameters(has_texts=True))
    (problem,) = check_segment(Segment(tmp_path, new, parameters(has_texts=True)))
    assert "merged.segment cannot be used: the blob of text 0 is damaged" in problem
