from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.passages import PassageIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Called

WORDS = " ".join(f"word{number}" for number in range(40))


def test_segments_become_one_and_deleted_documents_give_back_their_room(call: Callable[..., Called]) -> None:
    for name in "abc":
        with PassageIndex("index") as index:
            index.add(name, f"{WORDS} {name} " * 50)
            index.add(f"{name} beside", f"{WORDS} beside {name}")
    with PassageIndex("index") as index:
        index.delete("a")
    result = call("passages", "compact", "--root", "index", "--json").json
    assert (result["was_done"], result["segments_before"], result["segments"]) == (True, 3, 1)
    assert result["size_bytes"] < result["bytes_before"]
    sizes = [path.stat().st_size for path in Path("index").iterdir() if path.suffix == ".segment"]
    assert (len(sizes), sum(sizes)) == (1, result["size_bytes"])
    with PassageIndex("index", create=False) as index:
        assert [document.doc_id for document in index.documents] == [
            "a beside",
            "b",
            "b beside",
            "c",
            "c beside",
        ]
        assert index.text("b") == f"{WORDS} b " * 50


def test_a_compact_index_is_left_alone(call: Callable[..., Called]) -> None:
    with PassageIndex("index") as index:
        index.add("a", WORDS)
    called = call("passages", "compact", "--root", "index")
    assert (called.code, called.out) == (0, "index is already compact.\n")


def test_an_index_without_a_living_document_takes_no_room(call: Callable[..., Called]) -> None:
    with PassageIndex("index") as index:
        index.add("a", WORDS)
    call("passages", "delete", "a", "--root", "index")
    result = call("passages", "compact", "--root", "index", "--json").json
    assert (result["segments"], result["size_bytes"]) == (0, 0)
    assert not list(Path("index").glob("*.segment"))
    assert call("passages", "check", "--root", "index").code == 0


def test_the_text_tells_what_became_of_the_segments(call: Callable[..., Called]) -> None:
    for name in "ab":
        with PassageIndex("index") as index:
            index.add(name, f"{WORDS} {name}")
    assert "index: 2 segments with " in (out := call("passages", "compact", "--root", "index").out)
    assert " became 1 segment with " in out


def test_no_index_is_made_by_compacting_it(call: Callable[..., Called]) -> None:
    called = call("passages", "compact", "--root", "nowhere")
    assert called.code == 3
    assert "There is no passage index in nowhere" in called.err
    assert not Path("nowhere").exists()


def test_a_writer_is_waited_for_by_nobody(call: Callable[..., Called]) -> None:
    with PassageIndex("index") as index, index.writing("a test"):
        called = call("passages", "compact", "--root", "index")
    assert called.code == 3
    assert "a test" in called.err
