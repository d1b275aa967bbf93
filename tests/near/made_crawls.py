"""Crawls with templates, later versions, neighbours and mirrors, as WARC files."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from listed_archives import ListedFile

from scrapy_dedupe.content import Deduplicator, Document
from scrapy_dedupe.live.responses import decoded_page
from scrapy_dedupe.warc.codings import DecodedPage
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.references import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from scrapy_dedupe.content import Verdict

HTML = ("Content-Type: text/html; charset=utf-8",)


def words(rng: random.Random, count: int) -> list[str]:
    return [f"w{rng.randrange(3_000)}" for _ in range(count)]


def html(title: str, *parts: Iterable[str]) -> bytes:
    body = "".join(f"<p>{' '.join(part)}</p>" for part in parts)
    return f"<html><title>{title}</title><body><h1>{title}</h1>{body}</body></html>".encode()


@dataclass
class Site:
    """A host whose pages share a template. Pages change between crawls."""

    host: str
    template: list[str]
    pages: dict[str, tuple[str, list[str]]]

    @classmethod
    def made(cls, rng: random.Random, host: str, count: int) -> Site:
        shared = words(rng, 60)
        pages = {}
        for number in range(count):
            kind = rng.random()
            if kind < 0.4:  # neighbours from one template
                title, text = f"Item {number}", [*shared, *words(rng, 8)]
            else:
                title, text = f"Page about {' '.join(words(rng, 2))}", words(rng, rng.randrange(5, 200))
            path = rng.choice(
                (f"{number}.html", f"doc/v{number}.{number}/{number}.html", f"show?id={number}")
            )
            pages[path] = title, text
        return cls(host, words(rng, rng.randrange(0, 120)), pages)

    def crawled(self, rng: random.Random) -> Iterator[tuple[str, bytes]]:
        """The URL and body of each page; then some pages change."""
        for path, (title, text) in self.pages.items():
            for host in (self.host, f"mirror.{self.host}")[: 1 + (rng.random() < 0.2)]:
                yield f"http://{host}/{path}", html(title, self.template, text)
            change = rng.random()
            if text and change < 0.4:
                changed = [*text]
                changed[rng.randrange(len(changed))] = "changed"
                self.pages[path] = title, changed
            elif change < 0.5:
                self.pages[path] = f"{title} again", words(rng, len(text))


def write_crawls(folder: Path, seed: int, *, crawls: int = 3, sites: int = 3, pages: int = 14) -> list[Path]:
    """Write one WARC file for each crawl, with the pages of all sites in a random order."""
    rng = random.Random(seed)
    made = [Site.made(rng, f"site{number}.example", pages) for number in range(sites)]
    files = []
    for crawl in range(crawls):
        found = [page for site in made for page in site.crawled(rng)]
        rng.shuffle(found)
        path = folder / f"crawl{crawl}.warc.gz"
        file = ListedFile(path, path.name)
        for number, (url, body) in enumerate(found):
            # Several pages have the same date.
            file.add(
                body, url, f"2024-0{crawl + 1}-01T00:{number // 120:02}:{number // 2 % 60:02}Z", headers=HTML
            )
        files.append(path)
    return files


def verdicts(files: Sequence[Path], **options: Any) -> list[tuple[str, int, Verdict]]:
    """What a crawl says that reads the documents one after the other: file, offset and verdict."""
    found = []
    for file in files:
        for record in read_records(file):
            if record.type == "response":
                page = decoded_page(record.target_uri or "", record.http_headers, record.payload())
                assert isinstance(page, DecodedPage)
                document = Document(record.target_uri or "", page.text, page.content_type)
                found.append((milliseconds(record.date), str(file), record.offset, document))
    found.sort(key=lambda it: it[:3])
    with Deduplicator("sqlite:///" + str(files[0].parent / "judged.sqlite"), **options) as judged:
        return [(file, offset, judged.check(document)) for _, file, offset, document in found]
