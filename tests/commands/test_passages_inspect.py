"""``passages inspect`` through the command line, and its figures."""

from __future__ import annotations

from statistics import mean, pstdev
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.passages.index import PassageIndex
from scrapy_dedupe.passages.inspection import inspect
from scrapy_dedupe.passages.queries import blots_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from commands.conftest import Called

MENU = " ".join(f"menu{number}" for number in range(30))


@pytest.mark.parametrize("store_text", [True, False])
def test_figures_are_those_of_counting_one_by_one(tmp_path: Path, store_text: bool) -> None:
    texts = {f"https://a.example/{number}": f"{MENU} {number} {MENU} {'x ' * number}" for number in range(12)}
    texts["https://a.example/copy"] = texts["https://a.example/3"]
    texts["plain"] = " ".join(f"plain{number}" for number in range(40))
    with PassageIndex(tmp_path / "index", store_text=store_text) as index:
        for doc_id, text in {**texts, "gone": f"{MENU} gone"}.items():
            index.add(doc_id, text)
        index.delete("gone")
        snapshot = index.snapshot()
        told = inspect(snapshot)
        of_documents = {
            doc_id: [row.blot for row in blots_of(text, snapshot.parameters)]
            for doc_id, text in texts.items()
        }
        sizes = [path.stat().st_size for path in (tmp_path / "index").glob("*.segment")]
    counts: dict[int, int] = {}
    on_host: dict[int, int] = {}
    for doc_id, blots in of_documents.items():
        for blot in set(blots):
            counts[blot] = counts.get(blot, 0) + 1
            on_host[blot] = on_host.get(blot, 0) + doc_id.startswith("https")
    different = {text: doc_id for doc_id, text in texts.items()}
    posts = [len(set(of_documents[i]) if store_text else of_documents[i]) for i in different.values()]
    assert (told.documents, told.deleted, told.copies, told.texts, told.hosts) == (14, 1, 1, 13, 1)
    assert told.tokens == sum(len(text.split()) for text in different)
    assert told.characters == sum(map(len, different))
    assert (told.posts, told.distinct_keys) == (sum(posts), len(counts))
    assert told.documents_a_key_mean == pytest.approx(mean(counts.values()))
    assert told.documents_a_key_sigma == pytest.approx(pstdev(counts.values()))
    assert told.boilerplate_keys == sum(count >= 10 for count in on_host.values()) > 0
    assert told.posts_bytes + told.texts_bytes == sum(sizes)
    assert told.texts_bytes > 0


def test_an_index_is_shown_with_its_documents(call: Callable[..., Called], tmp_path: Path) -> None:
    root = str(tmp_path / "index")
    with PassageIndex(root) as index:
        index.add("https://a.example/", MENU)
        index.add("b", "short")
    called = call("passages", "inspect", "--root", root, "--documents")
    assert called.code == 0
    assert "made with   words/1, rolling/1 (k 8, window 8), keys of 40 bits, with texts" in called.out
    assert "documents   2, 0 of them copies, of 1 host;" in called.out
    assert called.out.splitlines()[-2:] == [
        f"30 tokens, {len(MENU)} characters  https://a.example/",
        "1 tokens, 5 characters  b",
    ]
    told = call("passages", "inspect", "--root", root, "--json").json
    assert told["documents"] is None
    assert told["index"]["documents"] == 2
    assert told["index"]["segments"][0]["posts"] == told["index"]["posts"]


def test_an_empty_index_has_figures_as_well(call: Callable[..., Called], tmp_path: Path) -> None:
    root = str(tmp_path / "index")
    with PassageIndex(root) as index:
        index.add("a", "")
        index.flush()
        index.delete("a")
        index.compact()
    called = call("passages", "inspect", "--root", root, "--json")
    assert called.code == 0
    assert called.json["index"]["posts"] == 0
    assert called.json["index"]["share_of_text"] is None
