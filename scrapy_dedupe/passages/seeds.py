"""Seeds: the keys that occur in enough documents, from which shared runs are found.

A run of the length that the blotter guarantees contains a blot that the index keeps of every text with the run. So a run
in *n* documents contains a key in *n* documents. A text with several names counts once per name, unless copies are skipped.
Boilerplate and the windows of taboo texts are excluded.

With *sigma*, a seed must occur in at least round(mean + sigma x standard deviation) documents. Mean and deviation are
taken over all keys, including boilerplate and taboo. The program dupi uses the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from .blots import Blotter, keys
from .boilerplate import Boilerplate
from .characters import mixed
from .groups import group_bounds
from .tokens import tokens_of_all

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.progress import Progress

    from .snapshot import IndexSnapshot
    from .tokens import Tokeniser
    from .values import Posts

    Keys = NDArray[np.uint64]
    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_SIEVE_BITS: Final = 24
_POST_BYTES: Final = 5


class KeySet:
    """Sorted distinct keys of *bits* bits, with a table that rejects most other keys quickly."""

    def __init__(self, values: Keys, bits: int) -> None:
        self.values = values
        self._shift = np.uint64(max(0, bits - _SIEVE_BITS))
        self._may_be_there = np.zeros(1 << min(bits, _SIEVE_BITS), np.bool_)
        self._may_be_there[values >> self._shift] = True

    def __len__(self) -> int:
        return len(self.values)

    def find(self, wanted: Keys) -> tuple[Numbers, Numbers]:
        """Which of the *wanted* keys are in the set, and their indexes in the set."""
        if not len(self.values):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        may_be = np.flatnonzero(self._may_be_there[wanted >> self._shift])
        wanted = wanted[may_be]
        numbers = np.minimum(np.searchsorted(self.values, wanted), len(self.values) - 1)
        is_there = self.values[numbers] == wanted
        return may_be[is_there], numbers[is_there]


def on_hosts(values: Keys, hosts: Numbers) -> Keys:
    """One 64-bit number for each pair of key and host; different pairs are equal as rarely as 64-bit hashes."""
    return mixed(hosts.astype(np.uint64)) ^ values


@dataclass(frozen=True, slots=True)
class Seeds:
    """The seed *keys*, the *texts* with at least one of them, and the excluded keys.

    *hidden* are the keys that are boilerplate, with their hosts (see `on_hosts`); *taboo* are those of taboo texts.
    """

    keys: KeySet
    texts: Numbers
    hidden: KeySet
    taboo: KeySet


class SeedSearch:
    """Finds the seeds in one pass over the posts of *snapshot*. Found keys are stored in the file *path*.

    *weights* is the number of documents for which each text counts.
    """

    def __init__(
        self, snapshot: IndexSnapshot, weights: Numbers, path: Path, boilerplate_share: float | None
    ) -> None:
        self._snapshot = snapshot
        self._weights = weights
        self._path = path
        self._boilerplate = None if boilerplate_share is None else Boilerplate(snapshot, boilerplate_share)
        self._bits = snapshot.parameters.key_bits
        self._hidden = [np.zeros(0, np.uint64)]
        self._has_seed = np.zeros(snapshot.text_count, np.bool_)
        self._count, self._sum, self._squares = 0, 0, 0

    def seeds(self, least: int, sigma: float | None, taboo: Keys, watch: Progress) -> Seeds:
        """The seeds: keys in at least *least* documents that are not *taboo*."""
        tabooed = KeySet(taboo, self._bits)
        with self._path.open("wb") as file:
            watch.begin("posts", sum(entry.posts for entry in self._snapshot.manifest.segments) * _POST_BYTES)
            for posts in self._snapshot.scan():
                chosen, documents = self._chosen(posts, least, tabooed)
                file.write(np.stack((chosen, documents.astype(np.uint64)), axis=1).tobytes())
                watch.advance(len(posts.keys) * _POST_BYTES)
            watch.end()
        rows = mapped(self._path, np.uint64).reshape(-1, 2)
        values = rows[:, 0]
        if sigma is not None and self._count:
            values = values[rows[:, 1] >= self._threshold(sigma)]
        hidden = KeySet(np.unique(np.concatenate(self._hidden)), 64)
        return Seeds(KeySet(np.array(values), self._bits), np.flatnonzero(self._has_seed), hidden, tabooed)

    def _chosen(self, posts: Posts, least: int, taboo: KeySet) -> tuple[Keys, Numbers]:
        """The keys of some posts that may be seeds, and the number of documents with each."""
        once, heads, documents = counted(posts, self._weights)
        self._count += len(documents)
        self._sum += int(documents.sum())
        self._squares += int((documents * documents).sum())
        if self._boilerplate is not None:
            is_hidden = self._boilerplate.is_boilerplate(numbered(posts.keys), posts.texts)
            if is_hidden.any():
                hosts = self._snapshot.text_host[posts.texts[is_hidden]]
                self._hidden.append(np.unique(on_hosts(posts.keys[is_hidden], hosts)))
                once, heads, documents = counted(posts.picked(~is_hidden), self._weights)
        is_chosen = documents >= least
        tabooed, _ = taboo.find(once.keys[heads])
        is_chosen[tabooed] = False
        sizes = np.diff(heads, append=len(once))
        self._has_seed[once.texts[np.repeat(is_chosen, sizes)]] = True
        return once.keys[heads[is_chosen]], documents[is_chosen]

    def _threshold(self, sigma: float) -> int:
        mean = self._sum / self._count
        deviation = max(0.0, self._squares / self._count - mean * mean) ** 0.5
        return round(mean + sigma * deviation)


def taboo_keys(texts: Sequence[str], tokeniser: Tokeniser, blotter: Blotter) -> Keys:
    """The sorted distinct keys of all windows of *texts*."""
    tokens, bounds = tokens_of_all(texts, tokeniser)
    return np.unique(keys(blotter.all_blots(tokens.hashes, bounds).values, blotter))


def counted(posts: Posts, weights: Numbers) -> tuple[Posts, Numbers, Numbers]:
    """Posts with each pair of key and text once, the start of each key, and the number of documents with it."""
    # An index without texts has a post for each occurrence.
    is_first = np.ones(len(posts), np.bool_)
    is_first[1:] = (posts.keys[1:] != posts.keys[:-1]) | (posts.texts[1:] != posts.texts[:-1])
    posts = posts.picked(is_first)
    heads = group_bounds(posts.keys[1:] != posts.keys[:-1], len(posts))[:-1]
    return posts, heads, np.add.reduceat(weights[posts.texts], heads) if len(posts) else heads


def numbered(values: Keys) -> Numbers:
    """Number the distinct *values*, which are sorted, from 0, and return the number of each item."""
    numbers = np.zeros(len(values), np.int64)
    numbers[1:] = np.cumsum(values[1:] != values[:-1])
    return numbers


def mapped(path: Path, dtype: type) -> NDArray:
    """Map a file as an array. Its items are read when they are used."""
    if not path.stat().st_size:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)
