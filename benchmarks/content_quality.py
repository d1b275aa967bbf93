"""The part ``quality`` of ``content.py``: which copies are found, and which pages are wrongly called copies.

The reference is the exact Jaccard similarity of the sets of 7-code-point shingles of the canonical texts, for all pairs.
A shingle is represented by a 64-bit hash: among 20 million, the probability of a collision is one in 100,000.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from content_shared import (
    Options,
    knows_template_guard,
    paths_of,
    percent,
    read_page,
    sqlite_url,
    stop,
    table,
)

from scrapy_dedupe.content import Deduplicator, Document, canonical_text
from scrapy_dedupe.content.signature import minhash

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_SIZE = 7
_NEAR = 0.85
_UNLIKE = 0.80
_MIN_CHARS = 200
_BANDS, _ROWS = 16, 8

# Shingles that this many documents have are counted by a product of dense matrices, the others pair by pair.
_FREQUENT = 48


@dataclass(frozen=True, slots=True)
class Page:
    """A page of one of the two sites. Pages of the same *name* are versions of one page."""

    site: int
    name: str
    document: Document
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The counts of one pass over all pages. Each first field is a part of the second one, as shown in the table."""

    missed: int  # kept although a twin was kept before
    had_twin: int  # a twin was kept when the page came
    missed_text: int  # the same two without the pages whose exact text was seen before
    had_twin_text: int
    kept_twins: int  # kept pages with a twin among the kept pages
    twins: int  # pages with a twin among all pages
    unlike: int  # near verdicts with a similarity under 0.80 to the original
    near: int
    found: int  # changed but similar second versions that were called a copy of the first
    versions: int
    called: int  # pages that were called near to another page of their site
    alike: int  # pages with a similar page on their site


def quality(options: Options) -> None:
    begun = time.monotonic()
    pages = sample(options, 250 if options.quick else 1_500)
    jaccard = similarities([shingles(page.text) for page in pages])
    show_truth(pages, jaccard, time.monotonic() - begun)
    show_bands(pages, jaccard)
    show_streams(options, pages, jaccard)


def sample(options: Options, names: int) -> list[Page]:
    """Both versions of *names* file names, chosen by the seed, including names that only one version has."""
    if options.versions is None:
        raise stop(
            "quality compares two versions of a documentation set: name them with --versions OLD NEW, such as"
            " /usr/share/doc/libboost1.74-doc /usr/share/doc/libboost1.81-doc."
        )
    sides: list[dict[str, tuple[Path, Path]]] = []
    for folder in options.versions:
        named = (
            "/".join(p for p in path.relative_to(folder).parts if p != folder.name)
            for path in paths_of(folder)
        )
        sides.append({name: (folder, path) for name, path in zip(named, paths_of(folder), strict=True)})
    if not sides[0].keys() & sides[1].keys():
        raise stop(f"{options.versions[0]} and {options.versions[1]} have no file name in common.")
    chosen = sorted(sides[0].keys() | sides[1].keys())
    random.Random(options.seed).shuffle(chosen)
    pages = []
    for name in chosen[: options.pages or names]:
        for site, side in enumerate(sides):
            if name in side:
                document = read_page(*side[name])
                # The near layer ignores shorter texts.
                if len(text := canonical_text(document.html)) >= _MIN_CHARS:
                    pages.append(Page(site, name, document, text))
    return pages


# Exact similarities


def shingles(text: str) -> NDArray[np.uint64]:
    """The distinct shingles of a text, 64 bits each."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.uint64)
    count = len(codes) - _SIZE + 1
    hashes = np.zeros(count, dtype=np.uint64)
    for place in range(_SIZE):
        # Not the hash of the package: the reference must not share its errors.
        hashes ^= codes[place : place + count] + np.uint64(0x9E3779B97F4A7C15)
        hashes *= np.uint64(0xD6E8FEB86659FD93)
        hashes ^= hashes >> np.uint64(32)
    return np.unique(hashes)


def similarities(sets: list[NDArray[np.uint64]]) -> NDArray[np.float32]:
    """The Jaccard similarity of every pair of sets, 0 on the diagonal."""
    from scipy import sparse  # type: ignore[import-untyped]

    count = len(sets)
    sizes = np.array([len(each) for each in sets])
    owners = np.repeat(np.arange(count, dtype=np.int32), sizes)
    _, columns = np.unique(np.concatenate(sets), return_inverse=True)
    carriers = np.bincount(columns)
    ones = np.ones(len(columns), dtype=np.float32)
    whole = sparse.csr_matrix((ones, (owners, columns)), shape=(count, len(carriers))).tocsc()
    rare = whole[:, (carriers > 1) & (carriers < _FREQUENT)].tocsr()
    shared = (rare @ rare.T).toarray()
    frequent = np.flatnonzero(carriers >= _FREQUENT)
    for first in range(0, len(frequent), 8_192):
        block = whole[:, frequent[first : first + 8_192]].toarray()
        shared += block @ block.T
    jaccard = shared / (sizes[:, None] + sizes[None, :] - shared)
    np.fill_diagonal(jaccard, 0)
    return jaccard.astype(np.float32)


def show_truth(pages: list[Page], jaccard: NDArray[np.float32], took_s: float) -> None:
    first, second = np.triu_indices(len(pages), 1)
    values = jaccard[first, second]
    sites = np.array([page.site for page in pages])
    names = np.array([page.name for page in pages])
    is_version = names[first] == names[second]
    is_site = sites[first] == sites[second]
    rows = []
    for low, high in ((0.5, 0.7), (0.7, 0.8), (0.8, 0.85), (0.85, 0.9), (0.9, 1.0), (1.0, 2.0)):
        here = (values >= low) & (values < high)
        rows.append(
            (
                "1" if low == 1 else f"{low:g} to {high:g}",
                f"{np.count_nonzero(here):,}",
                f"{np.count_nonzero(here & is_version):,}",
                f"{np.count_nonzero(here & is_site):,}",
                f"{np.count_nonzero(here & ~is_version & ~is_site):,}",
            )
        )
    table(
        f"quality: {len(pages):,} pages, all {len(values):,} pairs compared, in {took_s:.0f} s",
        ("Jaccard", "pairs", "versions of a page", "pages of a site", "others"),
        rows,
    )


def show_bands(pages: list[Page], jaccard: NDArray[np.float32]) -> None:
    """The share of the similar pairs that share one of 16 bands of 8 rows."""
    rows = np.array([minhash(page.text) for page in pages]).reshape(len(pages), _BANDS, _ROWS)
    lines = []
    for name, low, high, goal in (
        ("all from 0.85 on", _NEAR, 2.0, "0.995"),
        ("0.85 to 0.9", 0.85, 0.9, ""),
        ("0.9 to 1", 0.9, 1.0, ""),
        ("0.8 to 0.85", 0.8, 0.85, ""),
    ):
        first, second = np.nonzero(np.triu((jaccard >= low) & (jaccard < high)))
        is_candidate = (rows[first] == rows[second]).all(axis=2).any(axis=1)
        theory = 1 - (1 - jaccard[first, second].astype(float) ** _ROWS) ** _BANDS
        found = int(is_candidate.sum())
        lines.append(
            (
                name,
                f"{len(first):,}",
                f"{found:,}",
                f"{found / len(first):.4f}" if len(first) else "-",
                f"{theory.mean():.4f}" if len(first) else "-",
                goal,
            )
        )
    table(
        f"quality: candidates by {_BANDS} bands of {_ROWS} rows",
        ("Jaccard", "pairs", "candidates", "recall", "in theory", "goal"),
        lines,
    )


# Streams


def show_streams(options: Options, pages: list[Page], jaccard: NDArray[np.float32]) -> None:
    guards: dict[str, dict[str, Any]] = {"as it is": {}}
    if knows_template_guard():
        guards = {"guard off": {"template_guard": False}, "guard on": {"template_guard": True}}
    else:
        print("\nquality: this version has no option template_guard; its default is measured.")
    near_rows, guard_rows = [], []
    for guard, extra in guards.items():
        for kind in ("mixed", "site by site"):
            outcomes = [
                judged(pages, jaccard, order, extra)
                for order in orders(pages, kind, options.seed, 2 if options.quick else 4)
            ]
            one = {field.name: sum(getattr(o, field.name) for o in outcomes) for field in fields(Outcome)}
            spread = [100 * o.missed / o.had_twin for o in outcomes if o.had_twin]
            if guard != "guard on":  # the guard separates pages whose whole texts are similar
                near_rows.append(
                    (
                        f"{guard}, {kind}",
                        percent(one["missed"], one["had_twin"]),
                        f"{min(spread):.1f}-{max(spread):.1f}" if spread else "-",
                        percent(one["missed_text"], one["had_twin_text"]),
                        percent(one["kept_twins"], one["twins"]),
                        "2.5 %",
                        f"{one['near'] // len(outcomes):,}",
                        percent(one["unlike"], one["near"]),
                        "0.6 %",
                    )
                )
            guard_rows.append(
                (
                    f"{guard}, {kind}",
                    f"{one['versions'] // len(outcomes):,}",
                    percent(one["found"], one["versions"]),
                    "75 %",
                    f"{one['alike'] // len(outcomes):,}",
                    percent(one["called"], one["alike"]),
                    "10 %",
                    percent(one["called"], len(pages) * len(outcomes)),
                    percent(one["unlike"], one["near"]),
                    "0.6 %",
                )
            )
    table(
        "quality: each page against those kept before it, twins from 0.85 on, sums over several random orders",
        (
            "", "missed", "of single orders", "less exact copies", "kept with a kept twin", "goal",
            "near", "near under 0.80", "goal",
        ),
        near_rows,
    )  # fmt: skip
    table(
        "quality: found second versions (changed, and similar from 0.85 on); pages that are called near to a different"
        "\npage of their site, of those with a similar page there, and of all; near verdicts under 0.80",
        ("", "versions", "found", "goal", "alike", "called near", "goal", "of all", "under 0.80", "goal"),
        guard_rows,
    )


def orders(pages: list[Page], kind: str, seed: int, count: int) -> Iterator[list[int]]:
    for number in range(count):
        order = list(range(len(pages)))
        random.Random(seed + number).shuffle(order)
        if kind == "site by site":
            order.sort(key=lambda index: pages[index].site)
        yield order


def judged(
    pages: list[Page], jaccard: NDArray[np.float32], order: list[int], extra: dict[str, Any]
) -> Outcome:
    """Check all pages with a new Deduplicator in this order, and compare its verdicts with the exact similarities."""
    by_url = {page.document.url: index for index, page in enumerate(pages)}
    with (
        tempfile.TemporaryDirectory() as folder,
        Deduplicator(sqlite_url(folder, "q.sqlite"), **extra) as deduplicator,
    ):
        verdicts = dict(
            zip(order, deduplicator.check_many(pages[index].document for index in order), strict=True)
        )
    originals = {
        index: by_url[verdict.original_url]
        for index, verdict in verdicts.items()
        if verdict.original_url is not None
    }
    if unknown := sum(verdict.kind == "unknown" for verdict in verdicts.values()):
        print(f"quality: {unknown} pages were not judged (unknown); they count as kept.")
    is_twin = jaccard >= _NEAR
    kept = np.zeros(len(pages), dtype=bool)
    had_twin, had_twin_text, missed = [], [], []
    for index in order:
        if (is_twin[index] & kept).any():
            had_twin.append(index)
            if verdicts[index].kind in ("near", "unique", "unknown"):
                had_twin_text.append(index)
            if not verdicts[index].is_duplicate:
                missed.append(index)
        kept[index] = not verdicts[index].is_duplicate
    near = [index for index in order if verdicts[index].kind == "near"]
    seconds = second_versions(pages, jaccard, order)
    sites = np.array([page.site for page in pages])
    on_site = is_twin & (sites[:, None] == sites[None, :]) & (jaccard < 1)
    return Outcome(
        missed=len(missed),
        had_twin=len(had_twin),
        missed_text=len(missed),
        had_twin_text=len(had_twin_text),
        kept_twins=int(np.count_nonzero(kept & (is_twin & kept[None, :]).any(axis=1))),
        twins=int(np.count_nonzero(is_twin.any(axis=1))),
        unlike=sum(bool(jaccard[index, originals[index]] < _UNLIKE) for index in near),
        near=len(near),
        found=sum(originals.get(second) == first for first, second in seconds),
        versions=len(seconds),
        called=sum(
            pages[originals[index]].site == pages[index].site
            and pages[originals[index]].name != pages[index].name
            for index in near
        ),
        alike=int(np.count_nonzero(on_site.any(axis=1))),
    )


def second_versions(
    pages: list[Page], jaccard: NDArray[np.float32], order: list[int]
) -> list[tuple[int, int]]:
    """The pairs of versions of one page that are similar and not equal, in the order in which they are checked."""
    first: dict[str, int] = {}
    pairs = []
    for index in order:
        name = pages[index].name
        if name not in first:
            first[name] = index
        elif _NEAR <= jaccard[first[name], index] < 1:
            pairs.append((first[name], index))
    return pairs
