"""Which pages of a site are versions of one page, and which are different pages with similar texts.

The similarity of two texts is the exact Jaccard similarity of their sets of 7-code-point shingles, for all pairs of a
site. A shingle is represented by a 64-bit hash: among 20 million, the probability of a collision is one in 100,000.

Some pairs of similar pages are neither versions nor different pages, and are left out: a page and its copy in the folder
of another language, which is often not translated, and a page that has another name in the new version.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from content_corpus import Page, Site
    from numpy.typing import NDArray

NEAR = 0.85
UNLIKE = 0.80
_KNOWN_FROM = 0.70
_SIZE = 7

# Shingles that this many documents have are counted by a product of dense matrices, the others pair by pair.
_FREQUENT = 48

# Languages and locales in paths, such as de, pt_BR, zh-tw and sr.utf8
_LANGUAGE = re.compile(
    r"(?<![A-Za-z])(?:[a-z]{2}[-_][A-Z]{2}"
    r"|(?:ar|ca|cs|da|de|el|en|es|eu|fa|fi|fr|he|hr|hu|id|it|ja|ko|nb|nl|no|pl|pt|ro|ru|sk|sl|sr|sv|th|tr|uk|vi|zh)"
    r"(?:[-_.](?:br|cn|tw|utf-?8|hans|hant))?)(?![A-Za-z])",
)


@dataclass(slots=True)
class Truth:
    """The pages of a site by number.

    ``similar`` are all pairs with a similarity of at least 0.70, smaller number first. ``page`` is the number of the
    page that a document is a version of, ``text`` the number of its text.
    """

    similar: dict[tuple[int, int], float]
    page: list[int]
    text: list[int]
    left_out: set[tuple[int, int]]
    texts_of_page: dict[int, set[int]]
    neighbours: dict[int, list[int]]

    def similarity(self, first: int, second: int) -> float:
        """0 if it is less than 0.70."""
        return self.similar.get((min(first, second), max(first, second)), 0.0)

    def is_same(self, first: int, second: int) -> bool:
        """Whether both are versions of one page, or one of them has the text of a version of the other."""
        return (
            self.page[first] == self.page[second]
            or self.text[second] in self.texts_of_page[self.page[first]]
            or self.text[first] in self.texts_of_page[self.page[second]]
        )

    def is_left_out(self, first: int, second: int) -> bool:
        return (min(first, second), max(first, second)) in self.left_out


def truth_of(site: Site, cache: Path | None) -> Truth:
    similar = _similar_pairs(site, cache)
    neighbours: dict[int, list[int]] = {index: [] for index in range(len(site.pages))}
    for first, second in similar:
        neighbours[first].append(second)
        neighbours[second].append(first)
    names = [page.name for page in site.pages]
    page = _numbers(names)
    text = _numbers([each.text for each in site.pages])
    texts_of_page: dict[int, set[int]] = {}
    for number, its_text in zip(page, text, strict=True):
        texts_of_page.setdefault(number, set()).add(its_text)
    bare = [_LANGUAGE.sub("", each.name) for each in site.pages]
    translated = {(a, b) for a, b in similar if bare[a] == bare[b] and page[a] != page[b]}
    if site.is_renumbered:
        renamed = _unpaired(site.pages, similar)
    else:
        renamed = _renamed(site.pages, similar, neighbours)
    return Truth(similar, page, text, renamed | translated, texts_of_page, neighbours)


def _numbers(values: list[str]) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _best_in_other_version(
    pages: list[Page], similar: dict[tuple[int, int], float], neighbours: dict[int, list[int]]
) -> dict[int, int]:
    """For each page the most similar page of the other version, if no second one is about as similar."""
    best = {}
    for index, others in neighbours.items():
        ranked = sorted(
            (
                (similar[min(index, other), max(index, other)], other)
                for other in others
                if pages[other].version != pages[index].version
            ),
            reverse=True,
        )
        if ranked and (len(ranked) == 1 or ranked[0][0] > ranked[1][0]):
            best[index] = ranked[0][1]
    return best


def _unpaired(pages: list[Page], similar: dict[tuple[int, int], float]) -> set[tuple[int, int]]:
    """Similar pages of two versions of which one was not paired: it may be a version of any of them."""
    count = Counter(page.name for page in pages)
    return {
        (first, second)
        for first, second in similar
        if pages[first].version != pages[second].version
        and pages[first].name != pages[second].name
        and (count[pages[first].name] == 1 or count[pages[second].name] == 1)
    }


def _renamed(
    pages: list[Page], similar: dict[tuple[int, int], float], neighbours: dict[int, list[int]]
) -> set[tuple[int, int]]:
    """Similar pages of two versions of which one has no page of its name in the other version."""
    count = Counter(page.name for page in pages)
    best = _best_in_other_version(pages, similar, neighbours)
    return {
        (min(index, other), max(index, other))
        for index, other in best.items()
        if best.get(other) == index
        and pages[index].name != pages[other].name
        and (count[pages[index].name] == 1 or count[pages[other].name] == 1)
    }


def partners(old: list[str], new: list[str]) -> dict[int, int]:
    """Which of the texts *new* is the later version of each of the texts *old*, by number.

    Two texts are versions if each has more shingles in common with the other than with any other text of the other
    list, relative to the number of both. Only shingles that at most 16 texts have are counted: the others are template.
    """
    sets = [shingles(text) for text in (*old, *new)]
    whole, _ = _matrix(sets)
    carriers = np.diff(whole.indptr)
    rare = whole[:, (carriers > 1) & (carriers <= 16)].tocsr()
    sizes = np.diff(rare.indptr)
    shared = (rare[: len(old)] @ rare[len(old) :].T).tocoo()
    score = shared.data / (sizes[shared.row] + sizes[len(old) + shared.col] - shared.data)
    best: list[dict[int, tuple[float, int]]] = [{}, {}]
    for first, second, value in zip(shared.row.tolist(), shared.col.tolist(), score.tolist(), strict=True):
        best[0][first] = max(best[0].get(first, (0.0, 0)), (value, second))
        best[1][second] = max(best[1].get(second, (0.0, 0)), (value, first))
    return {first: second for first, (_, second) in best[0].items() if best[1][second][1] == first}


# Exact similarities


def _similar_pairs(site: Site, cache: Path | None) -> dict[tuple[int, int], float]:
    path = cache / f"{site.name}-{site.key}.npz" if cache is not None else None
    if path is not None and path.exists():
        with np.load(path) as stored:
            first, second, values = stored["first"], stored["second"], stored["values"]
    else:
        jaccard = _similarities([shingles(page.text) for page in site.pages])
        first, second = np.nonzero(np.triu(jaccard >= _KNOWN_FROM, 1))
        values = jaccard[first, second]
        if path is not None:
            partial = path.with_suffix(".part.npz")
            np.savez(partial, first=first, second=second, values=values)
            partial.replace(path)
    return dict(zip(zip(first.tolist(), second.tolist(), strict=True), values.tolist(), strict=True))


def shingles(text: str) -> NDArray[np.uint64]:
    """The distinct shingles of a text, 64 bits each."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
    count = len(codes) - _SIZE + 1
    hashes = np.zeros(count, dtype=np.uint64)
    for place in range(_SIZE):
        # Not the hash of the package: the reference must not share its errors.
        hashes ^= codes[place : place + count] + np.uint64(0x9E3779B97F4A7C15)
        hashes *= np.uint64(0xD6E8FEB86659FD93)
        hashes ^= hashes >> np.uint64(32)
    return np.unique(hashes)


def jaccard_of(first: str, second: str) -> float:
    one, other = shingles(first), shingles(second)
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared)


def _matrix(sets: list[NDArray[np.uint64]]) -> tuple[Any, NDArray[np.int64]]:
    """A sparse matrix with a row per set and a column per shingle, and the sizes of the sets."""
    from scipy import sparse  # type: ignore[import-untyped]

    sizes = np.array([len(each) for each in sets])
    owners = np.repeat(np.arange(len(sets), dtype=np.int32), sizes)
    values, columns = np.unique(np.concatenate(sets), return_inverse=True)
    ones = np.ones(len(columns), dtype=np.float32)
    return sparse.csr_matrix((ones, (owners, columns)), shape=(len(sets), len(values))).tocsc(), sizes


def _similarities(sets: list[NDArray[np.uint64]]) -> NDArray[np.float32]:
    """The Jaccard similarity of every pair of sets, 0 on the diagonal."""
    whole, sizes = _matrix(sets)
    carriers = np.diff(whole.indptr)
    rare = whole[:, (carriers > 1) & (carriers < _FREQUENT)].tocsr()
    shared = (rare @ rare.T).toarray()
    frequent = np.flatnonzero(carriers >= _FREQUENT)
    for start in range(0, len(frequent), 8_192):
        block = whole[:, frequent[start : start + 8_192]].toarray()
        shared += block @ block.T
    jaccard: NDArray[np.float32] = shared / (sizes[:, None] + sizes[None, :] - shared)
    np.fill_diagonal(jaccard, 0)
    return jaccard.astype(np.float32)
