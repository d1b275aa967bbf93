"""How fast the content layer judges pages, how much it keeps, and how often it errs.

    python benchmarks/content.py FOLDER… [--versions OLD NEW] [--only PART]… [--redis URL] [--quick]

FOLDER holds HTML files, such as those of a ``*-doc`` package of Debian under /usr/share/doc. OLD and NEW hold two
versions of one documentation set, such as libboost1.74-doc and libboost1.81-doc; without them the first two FOLDERs
are taken. Each folder is a site on a host of its own. Redis or Valkey is started for the benchmark, or it works on an
empty database of the server at URL, which it empties again.

Parts, each with tables of its own; without ``--only`` all of them run, in some ten minutes, or two with ``--quick``:

chain    HTML in, verdict out, over real pages in random order, read and decoded before: pages a second by CPU of this
         process and by the clock, and the times of single calls; on SQLite and on Redis. Then the usual recipe taken
         literally (text nodes joined by a space, lower case, a Python set of shingles, SHA-1, datasketch's index on
         Redis, SELECT and INSERT with a commit a page) on the same pages, and how many times faster ours is.
exact    the exact layer alone, by batches: digests a second, and bytes a row beside the URL.
near     memory of the near index on Redis, its first cost included and without it, the exact rows taken off; and how
         many scripts and reads from the socket a page costs the server.
quality  two versions of a documentation set, all pairs compared by exact Jaccard similarity: how many similar pairs
         share a band; then all pages are shown to a Deduplicator, mixed and one site after the other, and what it
         says is held against the truth.
hostile  pages that are made to keep a parser busy: how long one check takes, and how long the other pages of a crawl
         wait for their verdict. Needs a FOLDER.

Figures are medians where a part is run several times. The column "goal" is what the project has set itself; nothing
fails when it is missed. Wrong use ends with exit code 2.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from content_hostile import check_shape, crawl, hostile, serve
from content_quality import quality
from content_shared import Options, stop
from content_speed import chain, exact, near

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS: dict[str, Callable[[Options], None]] = {
    "chain": chain,
    "exact": exact,
    "near": near,
    "quality": quality,
    "hostile": hostile,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--versions", nargs=2, type=Path, metavar=("OLD", "NEW"), help="the first two FOLDERs by default"
    )
    parser.add_argument("--only", action="append", choices=PARTS, metavar="PART", help="may be repeated")
    parser.add_argument("--redis", metavar="URL", help="redis://HOST:PORT/DB, an empty database")
    parser.add_argument(
        "--pages", type=int, help="how many pages or page names, instead of the part's own number"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of chain (3)")
    parser.add_argument("--seed", type=int, default=1, help="of samples and orders (1)")
    parser.add_argument("--limit", type=float, help="seconds for one hostile page (5, with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="fewer of everything: two minutes")
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    parser.add_argument("--crawl", help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.shape:
        check_shape(parsed.shape)
        return
    if parsed.crawl:
        crawl(parsed.crawl)
        return
    if parsed.serve:
        serve(parsed.serve)
        return
    folders = tuple(parsed.folders)
    versions = parsed.versions or folders[:2]
    options = Options(
        folders=folders,
        versions=(versions[0], versions[1]) if len(versions) == 2 else None,
        pages=parsed.pages,
        rounds=parsed.rounds,
        redis=parsed.redis,
        seed=parsed.seed,
        limit_s=parsed.limit or (2.0 if parsed.quick else 5.0),
        quick=parsed.quick,
    )
    parts = parsed.only or list(PARTS)
    check_use(options, parts)
    for name in parts:
        begun = time.monotonic()
        PARTS[name](options)
        print(f"({name} took {time.monotonic() - begun:.0f} s)", flush=True)


def check_use(options: Options, parts: list[str]) -> None:
    """Find out now, not after minutes, what a later part would miss."""
    for folder in (*options.folders, *(options.versions or ())):
        if not folder.is_dir():
            raise stop(
                f"{folder} is no folder. Name folders of HTML files, such as /usr/share/doc/libboost1.81-doc."
            )
    if not options.folders and {"chain", "hostile"} & set(parts):
        raise stop("chain and hostile need at least one FOLDER of HTML files. Other parts: --only PART.")
    if options.versions is None and "quality" in parts:
        raise stop("quality needs two versions of a documentation set: --versions OLD NEW, or two FOLDERs.")
    if options.redis is not None and not options.redis.startswith("redis://"):
        raise stop(f"--redis is {options.redis!r}. Allowed: redis://HOST:PORT/DB.")


if __name__ == "__main__":
    main()
