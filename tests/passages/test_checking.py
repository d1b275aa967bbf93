from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from deflate import deflate_compress
from passages.segment_cases import add_text
from passages.small_segments import WITH_TEXTS, deleted, digest_of, write_index, write_segment

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.passages import snapshot
from scrapy_dedupe.passages.catalogue import MANIFEST, begin, read_manifest
from scrapy_dedupe.passages.checking import check
from scrapy_dedupe.passages.preparation import prepare
from scrapy_dedupe.passages.segment_layout import new_segment
from scrapy_dedupe.passages.snapshot import IndexSnapshot
from scrapy_dedupe.passages.values import Parameters

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.passages.catalogue import Manifest
    from scrapy_dedupe.passages.segment_layout import SegmentEntry

WORDS = [f"word{number}" for number in range(40)]
TEXTS = [" ".join(WORDS), " ".join(WORDS[5:] * 3), "", "short", " ".join(reversed(WORDS))]


def write_real(folder: Path, parameters: Parameters, *, shift: int = 0, tokens: int = 0) -> SegmentEntry:
    """A segment of TEXTS, the posts of which have keys that are *shift* too large; *tokens* are told too many."""
    prepared = prepare([(f"d{number}", "", text) for number, text in enumerate(TEXTS)], parameters)
    with new_segment(folder, "s", parameters) as writer:
        for number, digest in enumerate(prepared.digests):
            start, stop = prepared.blob_bounds[number : number + 2].tolist()
            add_text(
                writer,
                digest.tobytes(),
                int(prepared.token_counts[number]) + tokens,
                int(prepared.char_counts[number]),
                int(prepared.post_counts[number]),
                prepared.blobs[start:stop],
                int(prepared.raw_sizes[number]),
            )
        texts = np.repeat(np.arange(len(TEXTS)), prepared.post_counts)
        writer.add_posts(prepared.keys ^ np.uint64(shift), texts)
        for number in range(len(TEXTS)):
            writer.add_document(f"d{number}", "", number)
    return writer.entry


@pytest.mark.parametrize("has_texts", [True, False])
def test_a_sound_index_has_no_problems(tmp_path: Path, has_texts: bool) -> None:
    parameters = Parameters("words/1", {"name": "rolling/1", "k": 8, "window": 8}, has_texts)
    entry = write_real(tmp_path, parameters)
    write_index(tmp_path, parameters, [entry], {"s": deleted(len(TEXTS), 1)})
    for full in (False, True):
        checked = check(tmp_path, full)
        assert checked.problems == ()
        assert (checked.segments, checked.documents, checked.texts) == (1, len(TEXTS) - 1, len(TEXTS))
        assert checked.posts == entry.posts > 20
        assert checked.orphans == ()


def test_an_empty_index_is_sound(tmp_path: Path) -> None:
    begin(tmp_path, WITH_TEXTS)
    assert check(tmp_path, full=True).problems == ()


def test_where_there_is_no_sound_manifest_nothing_is_checked(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="There is no passage index"):
        check(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(StoreRefused, match="damaged"):
        check(tmp_path)


def test_posts_of_other_blots_are_found_in_full_alone(tmp_path: Path) -> None:
    write_index(tmp_path, WITH_TEXTS, [write_real(tmp_path, WITH_TEXTS, shift=1)])
    assert check(tmp_path).problems == ()
    problems = check(tmp_path, full=True).problems
    assert len(problems) == 3
    assert problems[0].startswith("s, text 0: its posts do not match its blots")


def test_a_wrong_count_of_tokens_is_found_in_full(tmp_path: Path) -> None:
    write_index(tmp_path, WITH_TEXTS, [write_real(tmp_path, WITH_TEXTS, tokens=1)])
    problems = check(tmp_path, full=True).problems
    assert "s, text 3: it has 1 tokens instead of 2" in problems
    assert len(problems) == len(TEXTS)


def test_a_damaged_file_is_a_problem_that_names_it(tmp_path: Path) -> None:
    entry = write_real(tmp_path, WITH_TEXTS)
    write_index(tmp_path, WITH_TEXTS, [entry], {"s": deleted(len(TEXTS), 1)})
    path = tmp_path / "s.segment"
    data = path.read_bytes()
    spoilt = {
        "flipped": data[:-3] + bytes([data[-3] ^ 4]) + data[-2:],
        "cut": data[: len(data) // 2],
        "empty": b"",
        "missing": None,
    }
    for how, content in spoilt.items():
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        problems = check(tmp_path).problems
        assert problems, how
        assert path.name in problems[0], how
        path.write_bytes(data)
    assert check(tmp_path).problems == ()


def test_a_document_without_a_text_is_a_problem(tmp_path: Path) -> None:
    entry = write_segment(tmp_path, "s", WITH_TEXTS, ["abc"], [("a", "", "abc"), ("b", "", "lost")])
    write_index(tmp_path, WITH_TEXTS, [entry])
    (problem,) = check(tmp_path).problems
    assert "has no text for document 1 of the segment s" in problem


def test_a_name_that_is_there_twice_is_a_problem_unless_one_is_deleted(tmp_path: Path) -> None:
    first = write_segment(tmp_path, "s", WITH_TEXTS, ["abc"], [("a", "", "abc"), ("b", "", "abc")])
    second = write_segment(tmp_path, "t", WITH_TEXTS, ["de"], [("a", "", "de")])
    write_index(tmp_path, WITH_TEXTS, [first, second])
    (problem,) = check(tmp_path).problems
    assert problem.endswith("the document 'a' occurs more than once")
    write_index(tmp_path, WITH_TEXTS, [first, second], {"s": deleted(2, 0)})
    assert check(tmp_path).problems == ()


def test_a_text_that_is_not_that_of_its_digest_is_a_problem(tmp_path: Path) -> None:
    with new_segment(tmp_path, "s", WITH_TEXTS) as writer:
        add_text(writer, digest_of("other"), 1, 3, 0, deflate_compress(b"abc", 1), 3)
        writer.add_document("a", "", 0)
    write_index(tmp_path, WITH_TEXTS, [writer.entry])
    assert check(tmp_path, full=True).problems == ("s, text 0: it does not match its digest",)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        (replace(WITH_TEXTS, tokeniser="words/2"), "the tokeniser 'words/2'"),
        (replace(WITH_TEXTS, blotter={"name": "rolling/2"}), "the blotter"),
        (replace(WITH_TEXTS, blotter={"name": "rolling/1", "k": 8, "window": 8, "more": 1}), "the blotter"),
        (replace(WITH_TEXTS, key_bits=48), "keys of 48 bits"),
    ],
)
def test_an_index_made_in_an_unknown_way_is_refused_as_one_of_another_version(
    tmp_path: Path, parameters: Parameters, named: str
) -> None:
    write_index(tmp_path, parameters, [])
    for open_ in (check, IndexSnapshot.open):
        with pytest.raises(StoreRefused, match="Use the version that made it") as raised:
            open_(tmp_path)
        assert named in str(raised.value)


class Writer:
    """Gives the index another segment, and removes the one before, whenever its manifest is read."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, turns: int) -> None:
        self.folder, self.left, self.turns = folder, turns, 0
        entry = write_segment(folder, "s0", WITH_TEXTS, ["abc"], [("a", "", "abc")])
        write_index(folder, WITH_TEXTS, [entry])
        patch.setattr(snapshot, "read_manifest", self.read_manifest)

    def read_manifest(self, folder: Path) -> Manifest | None:
        found = read_manifest(folder)
        if self.left:
            self.left -= 1
            self.turns += 1
            entry = write_segment(folder, f"s{self.turns}", WITH_TEXTS, ["abc"], [("a", "", "abc")])
            write_index(folder, WITH_TEXTS, [entry], generation=1 + self.turns)
            (folder / f"s{self.turns - 1}.segment").unlink()
        return found


def test_an_index_that_is_written_meanwhile_is_checked_as_it_is_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(tmp_path, monkeypatch, 5)
    assert check(tmp_path).problems == ()


def test_an_index_that_is_written_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, monkeypatch, 1_000)
    with pytest.raises(StoreUnavailable, match="is being written continuously"):
        check(tmp_path)
    assert writer.turns < 200


def test_damage_is_told_at_once_whoever_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = write_segment(tmp_path, "damaged", WITH_TEXTS, ["de"], [("b", "", "de")])
    (tmp_path / "damaged.segment").write_bytes(bytes(damaged.size))
    reads = 0

    def read(folder: Path) -> Manifest | None:
        nonlocal reads
        reads += 1
        write_index(folder, WITH_TEXTS, [damaged], generation=reads)
        return read_manifest(folder)

    monkeypatch.setattr(snapshot, "read_manifest", read)
    (problem,) = check(tmp_path).problems
    assert "damaged.segment" in problem
    assert reads == 2


def test_what_a_killed_writer_left_is_told_and_is_no_problem(tmp_path: Path) -> None:
    begin(tmp_path, WITH_TEXTS)
    (tmp_path / "00000009.segment.new").touch()
    checked = check(tmp_path)
    assert checked.problems == ()
    assert checked.orphans == ("00000009.segment.new",)
