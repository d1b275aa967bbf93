"""Accuracy of near verdicts on real documentation sites and on generated sites.

    python benchmarks/content_quality.py CORPUS [--half choosing|reporting] [--orders N] [--examples N] [--sites SITE…]

CORPUS is a folder, which may be empty. The benchmark downloads 62 sites into it: 99 documentation packages of Debian,
490 MB, with ``apt-get download`` (run ``apt-get update`` before). Their HTML files are kept, nothing is installed. What
the benchmark has read and compared is kept in CORPUS too: the first run takes about five minutes of CPU time more than
the others. If Debian has newer versions of the packages, the figures differ a little.

A Deduplicator checks the pages of all sites of one half, in random order. Its verdicts are compared with the exact
similarities of the texts (``content_truth.py``):

found     Pages with an earlier version whose text has changed but is similar (Jaccard similarity of at least 0.85): the
          share that is called a copy of a version of the same page.
siblings  Pages with a similar text on a different page of their site: the share that is called near to a different page.
wrong     Near verdicts with a similarity below 0.80.

All figures are sums over the random orders; intervals are 95 % bootstraps over sites. The hash of its name decides in which
half a site is: choose rules and thresholds on the half *choosing*, and report figures of the half *reporting*.

The runs (``--runs``, default: all):

real       The packages. Both versions of a site are on one host, below different folders.
hosts      The same with each version on its own host, at the same path.
recrawl    The same with both versions at the same URL.
opaque     The same on one host with a random id instead of each path.
layer      The same with each page on its own host, without the template guard and without titles and URLs: the share of
           pages that are kept although a similar page was kept before (missed twins).
generated  Shops, forums, calendars, lists, news, wikis, short pages, other scripts, tables of numbers.

The run ``real`` also shows how much the result depends on the order: the number of kept versions of each page is counted
in each order, and the share of pairs of orders with the same number is shown.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from content_corpus import PACKAGES, Package, Page, Site, fetch, halves, load
from content_generated import SITES, generated_sites
from content_shared import sqlite_url, stop, table
from content_truth import NEAR, UNLIKE, Truth, jaccard_of, truth_of

from scrapy_dedupe.content import Deduplicator, Document
from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scrapy_dedupe.content import Verdict

_RUNS = ("real", "hosts", "recrawl", "opaque", "layer", "generated")
_BOOTSTRAPS = 2_000


@dataclass(frozen=True, slots=True)
class Example:
    kind: str
    page: Page
    other: Page | None
    similarity: float
    estimate: float | None


@dataclass(slots=True)
class Outcome:
    """The counts of one site, summed over orders."""

    pages: int = 0
    found: int = 0
    versions: int = 0
    called: int = 0
    siblings: int = 0
    wrong: int = 0
    near: int = 0
    elsewhere: int = 0  # near to a page of another site
    missed: int = 0
    twins: int = 0
    changed_twins: int = 0  # without pages whose exact text was seen before

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(slots=True)
class Result:
    """The outcomes of a run per site, the numbers of kept versions per page in each order, and examples of faults.

    ``resembling`` are the pages that have another version or are similar to another page, without exact copies.
    """

    outcomes: dict[str, Outcome]
    kept: dict[tuple[str, int], list[int]]
    resembling: set[tuple[str, int]]
    examples: dict[str, list[Example]]
    cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, metavar="CORPUS", help="a folder for the packages; may be empty")
    parser.add_argument(
        "--half", choices=("choosing", "reporting"), help="default: both, one after the other"
    )
    parser.add_argument("--runs", nargs="+", choices=_RUNS, default=_RUNS, metavar="RUN")
    parser.add_argument("--sites", nargs="+", metavar="SITE", help="only these sites, of both halves")
    parser.add_argument("--orders", type=int, default=20, help="random orders of the run real (20)")
    parser.add_argument("--examples", type=int, default=0, help="faults to show per site and kind (0)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE",
                        help="an option of the Deduplicator, such as template_guard=false; may be repeated")  # fmt: skip
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the counts of all sites to FILE"
    )
    parser.add_argument("--seed", type=int, default=1, help="of orders and generated sites (1)")
    parsed = parser.parse_args()
    if parsed.orders < 1:
        raise stop(f"--orders is {parsed.orders}. Allowed: a whole number of at least 1.")
    known = [it.site for it in PACKAGES] + list(SITES)
    if unknown := set(parsed.sites or ()) - set(known):
        raise stop(f"There is no site {', '.join(sorted(unknown))}. Sites: {', '.join(known)}.")
    options = dict(_option(text) for text in parsed.option)
    written = {}
    for run in parsed.runs:
        for half, sites in _sites_of(run, parsed).items():
            orders = parsed.orders if run == "real" else min(2, parsed.orders)
            truths = [truth_of(site, parsed.corpus / "cache" if site.key else None) for site in sites]
            result = judge_sites(run, sites, truths, orders, parsed.seed, options)
            show(run, half, sites, result, parsed.examples)
            written[f"{run} {half}"] = {
                name: {field: getattr(outcome, field) for field in outcome.__slots__}
                for name, outcome in result.outcomes.items()
            }
    if parsed.json:
        parsed.json.write_text(json.dumps(written, indent=1))


def _sites_of(run: str, parsed: argparse.Namespace) -> dict[str, list[Site]]:
    """The sites of a run by half; generated sites and those of ``--sites`` are not divided."""
    if run == "generated":
        sites = generated_sites(parsed.seed)
        return {"all": [it for it in sites if parsed.sites is None or it.name in parsed.sites]}
    half_of = halves()
    packages: dict[str, list[Package]] = {}
    for it in PACKAGES:
        half = "all" if parsed.sites else half_of[it.site]
        if (it.site in parsed.sites) if parsed.sites else parsed.half in (None, half):
            packages.setdefault(half, []).append(it)
    fetch(parsed.corpus, [it for some in packages.values() for it in some])
    found = {half: [load(parsed.corpus, it) for it in some] for half, some in packages.items()}
    return {half: [it for it in sites if it is not None] for half, sites in sorted(found.items())}


def _option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise stop(f"--option is {text!r}. Allowed: NAME=VALUE.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


# Runs


def judge_sites(
    run: str, sites: list[Site], truths: list[Truth], orders: int, seed: int, options: dict[str, object]
) -> Result:
    if run == "layer":
        options = {**options, "template_guard": False, **_without_identity()}
    documents: list[tuple[int, int, Document]] = []
    by_url: dict[str, tuple[int, int]] = {}
    for number, site in enumerate(sites):
        for index, page in enumerate(site.pages):
            url = _url(run, page)
            by_url.setdefault(url, (number, index))
            documents.append((number, index, Document(url, page.html)))
    resembling = {
        (site.name, truth.page[index])
        for site, truth in zip(sites, truths, strict=True)
        for pair, similarity in truth.similar.items()
        for index in pair
        if NEAR <= similarity < 1
    }
    result = Result(
        {site.name: Outcome() for site in sites}, {}, resembling, {site.name: [] for site in sites}, 0.0
    )
    for order in range(orders):
        random.Random(seed + order).shuffle(documents)
        begun = time.process_time()
        with (
            tempfile.TemporaryDirectory() as folder,
            Deduplicator(sqlite_url(folder, "q.sqlite"), **options) as deduplicator,
        ):
            verdicts = deduplicator.check_many(document for _, _, document in documents)
        result.cpu_s += time.process_time() - begun
        judged: list[list[tuple[int, Verdict, tuple[int, int] | None]]] = [[] for _ in sites]
        for (number, index, _), verdict in zip(documents, verdicts, strict=True):
            original = None if verdict.original_url is None else by_url[verdict.original_url]
            judged[number].append((index, verdict, original))
        for number, site in enumerate(sites):
            outcome, kept, examples = _compare(site, truths[number], judged[number], number, sites)
            result.outcomes[site.name] += outcome
            for identity, count in kept.items():
                result.kept.setdefault((site.name, identity), []).append(count)
            if order == 0:
                result.examples[site.name] = examples
    return result


def _without_identity() -> dict[str, object]:
    """The option that turns off titles and URLs, if this version has it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            Deduplicator(sqlite_url(folder, "probe.sqlite"), near_identity=False).close()
        except SettingError:
            return {}
    return {"near_identity": False}


def _url(run: str, page: Page) -> str:
    host = f"{page.site}.example"
    opaque = hashlib.sha256(page.url.encode()).hexdigest()[:12]
    if run == "hosts":
        return page.url.replace(f"{host}/{page.version + 1}/", f"v{page.version + 1}.{host}/", 1)
    if run == "recrawl":
        return f"http://{host}/{page.name}"
    if run == "opaque":
        return f"http://{host}/{opaque}"
    if run == "layer":
        return f"http://{opaque}.{page.url.partition('://')[2]}"
    return page.url


def _compare(
    site: Site,
    truth: Truth,
    judged: Sequence[tuple[int, Verdict, tuple[int, int] | None]],
    number: int,
    sites: list[Site],
) -> tuple[Outcome, dict[int, int], list[Example]]:
    """Compare the verdicts on the pages of one site, in the order of the checks, with the truth."""
    outcome = Outcome(pages=len(site.pages))
    kept_of_page = dict.fromkeys(truth.page, 0)
    before: set[int] = set()
    kept: set[int] = set()
    examples = []
    for index, verdict, original in judged:
        page = site.pages[index]
        earlier = [it for it in truth.neighbours[index] if it in before]
        is_exact = verdict.kind in ("exact", "unchanged")
        is_right, is_wrong, is_left_out = False, False, False
        if verdict.kind == "near" and original is not None:
            other = sites[original[0]].pages[original[1]]
            similarity = truth.similarity(index, original[1]) if original[0] == number else 0.0
            if not similarity:
                similarity = jaccard_of(page.text, other.text)
            outcome.near += 1
            if similarity < UNLIKE:
                outcome.wrong += 1
                examples.append(Example("wrong", page, other, similarity, verdict.similarity))
            if original[0] != number:
                outcome.elsewhere += 1
            elif truth.is_same(index, original[1]):
                is_right = True
            elif truth.is_left_out(index, original[1]):
                is_left_out = True
            else:
                is_wrong = True
                examples.append(Example("sibling", page, other, similarity, verdict.similarity))
        if any(it in kept and truth.similarity(index, it) >= NEAR for it in earlier):
            outcome.twins += 1
            outcome.missed += not verdict.is_duplicate
            outcome.changed_twins += not is_exact
        if not is_exact:
            if is_wrong or any(_is_sibling(truth, index, it) for it in truth.neighbours[index]):
                outcome.siblings += 1
                outcome.called += is_wrong
            versions = [it for it in earlier if _is_version(truth, index, it)]
            if versions and not is_left_out:
                outcome.versions += 1
                outcome.found += is_right
                if not is_right:
                    best = max(versions, key=lambda it: truth.similarity(index, it))
                    examples.append(
                        Example(
                            "missed",
                            page,
                            site.pages[best],
                            truth.similarity(index, best),
                            verdict.similarity,
                        )
                    )
        before.add(index)
        if not verdict.is_duplicate:
            kept.add(index)
            kept_of_page[truth.page[index]] += 1
    return outcome, kept_of_page, examples


def _is_version(truth: Truth, first: int, second: int) -> bool:
    return truth.page[first] == truth.page[second] and NEAR <= truth.similarity(first, second) < 1


def _is_sibling(truth: Truth, first: int, second: int) -> bool:
    return (
        NEAR <= truth.similarity(first, second) < 1
        and not truth.is_same(first, second)
        and not truth.is_left_out(first, second)
    )


# Tables


def show(run: str, half: str, sites: list[Site], result: Result, examples: int) -> None:
    rows = []
    for site in sites:
        it = result.outcomes[site.name]
        rows.append((site.name, site.generator, f"{it.pages:,}", *_cells(it)))
    outcomes = list(result.outcomes.values())
    total = sum(outcomes, Outcome())
    rows.append(("all", "", f"{total.pages:,}", *_cells(total)))
    table(
        f"{run}, {half}: {len(sites)} sites, {total.near:,} near verdicts, {total.elsewhere:,} of them to another site;"
        f" checked in {result.cpu_s:.0f} s of CPU time\nThe numbers of pages are those of all orders.",
        ("site", "generator", "pages", "versions", "found", "with siblings", "siblings near", "wrong"),
        rows,
    )
    if run == "layer":
        print(f"missed twins: {_interval(outcomes, 'missed', 'twins')}")
        print(f"missed twins without exact copies: {_interval(outcomes, 'missed', 'changed_twins')}")
    else:
        print(f"found: {_interval(outcomes, 'found', 'versions')}")
        print(f"siblings near: {_interval(outcomes, 'called', 'siblings')}")
    print(f"wrong: {_interval(outcomes, 'wrong', 'near')}", flush=True)
    if run == "real" and (agreement := _agreement(result.kept.values())) is not None:
        resembling = _agreement(counts for page, counts in result.kept.items() if page in result.resembling)
        print(
            f"kept versions of a page, agreement of two orders: {100 * agreement:.2f} %;"
            f" of pages with a similar one: {100 * (resembling or 0):.2f} %",
            flush=True,
        )
    for site in sites:
        for kind in ("sibling", "missed", "wrong"):
            shown = [it for it in result.examples[site.name] if it.kind == kind]
            if examples and shown:
                print(f"\n{site.name}: {kind}, {len(shown)} in the first order")
                for fault in random.Random(site.name).sample(shown, min(examples, len(shown))):
                    print(f"  similarity {fault.similarity:.3f}, estimate {fault.estimate}")
                    for page in (fault.page, fault.other):
                        if page is not None:
                            print(f"    {page.url}  {_title(page)!r}  {len(page.text)} characters")


def _cells(it: Outcome) -> tuple[str, ...]:
    return (
        f"{it.versions:,}",
        _percent(it.found, it.versions),
        f"{it.siblings:,}",
        _percent(it.called, it.siblings),
        _percent(it.wrong, it.near),
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _interval(outcomes: list[Outcome], part: str, whole: str) -> str:
    """The pooled share with the interval that contains 95 % of the shares of resampled sites."""
    counts = [(getattr(it, part), getattr(it, whole)) for it in outcomes]
    drawn = random.Random(1)
    shares = []
    for _ in range(_BOOTSTRAPS):
        sample = drawn.choices(counts, k=len(counts))
        if total := sum(it[1] for it in sample):
            shares.append(100 * sum(it[0] for it in sample) / total)
    if not shares:
        return "-"
    shares.sort()
    low, high = shares[int(0.025 * len(shares))], shares[int(0.975 * len(shares))]
    share = _percent(sum(it[0] for it in counts), sum(it[1] for it in counts))
    return f"{share} [{low:.1f}-{high:.1f}] of {sum(it[1] for it in counts):,}"


def _agreement(kept: Iterable[list[int]]) -> float | None:
    """The share of pairs of orders in which the same number of versions of a page was kept."""
    same, pairs = 0, 0
    for counts in kept:
        same += sum(count * (count - 1) // 2 for count in Counter(counts).values())
        pairs += len(counts) * (len(counts) - 1) // 2
    return same / pairs if pairs else None


def _title(page: Page) -> str:
    found = re.search(r"<title[^>]*>(.*?)</title>", page.html, re.DOTALL | re.IGNORECASE)
    return "" if found is None else " ".join(found[1].split())


if __name__ == "__main__":
    main()
