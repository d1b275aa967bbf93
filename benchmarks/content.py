"""Benchmarks of the content layer: speed and size.

    python benchmarks/content.py FOLDER… [--only PART]… [--redis URL] [--quick]

FOLDER contains HTML files, such as those of a ``*-doc`` package of Debian under /usr/share/doc. Each folder is a site
with its own host. The benchmark starts Redis or Valkey, or uses an empty database of the server at URL, and empties it
afterwards. The accuracy of near verdicts is measured by ``content_quality.py``.

Each part prints its own tables. Without ``--only`` all parts run, in about ten minutes, or two with ``--quick``:

chain    From HTML to verdict, for real pages in random order, which are read and decoded beforehand: pages per second by
         the CPU time of this process and by wall-clock time, and the durations of single calls, on SQLite and on Redis.
         Then a literal implementation of the usual recipe on the same pages (text nodes joined by a space, lower case, a
         Python set of shingles, SHA-1, datasketch's index on Redis, SELECT and INSERT with one commit per page), and the
         ratio of the speeds.
exact    The exact layer only, in batches: digests per second, and bytes per row without the URL.
near     Memory of the near index on Redis, with and without its first half, and without the exact rows; and the numbers
         of script calls and socket reads per page on the server.
memory   Bytes per document on Redis by kind of key: for random texts, and for the pages of the FOLDERs.
hostile  Pages that are made to keep a parser busy: the duration of one check, and how long the other pages of a crawl
         wait for their verdict. Needs a FOLDER.

Figures are medians if a part runs several times. The column "goal" is a target of the project; a missed target is not a
failure. Wrong usage ends with exit code 2.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from content_hostile import check_shape, crawl, hostile, serve
from content_shared import Options, stop
from content_speed import chain, exact, memory, near

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS: dict[str, Callable[[Options], None]] = {
    "chain": chain,
    "exact": exact,
    "near": near,
    "memory": memory,
    "hostile": hostile,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--only", action="append", choices=PARTS, metavar="PART", help="may be repeated")
    parser.add_argument("--redis", metavar="URL", help="redis://HOST:PORT/DB, an empty database")
    parser.add_argument(
        "--pages", type=int, help="the number of pages or page names, instead of the default of the part"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of chain (3)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of samples and orders (1)")
    parser.add_argument("--limit", type=float, help="seconds for one hostile page (5, with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="smaller inputs: two minutes")
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
    options = Options(
        folders=folders,
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
    """Check at startup what a later part needs."""
    for folder in options.folders:
        if not folder.is_dir():
            raise stop(
                f"{folder} is not a folder. Name folders of HTML files, such as /usr/share/doc/libboost1.81-doc."
            )
    if not options.folders and {"chain", "hostile"} & set(parts):
        raise stop("chain and hostile need at least one FOLDER of HTML files. Other parts: --only PART.")
    if options.redis is not None and not options.redis.startswith("redis://"):
        raise stop(f"--redis is {options.redis!r}. Allowed: redis://HOST:PORT/DB.")


if __name__ == "__main__":
    main()
