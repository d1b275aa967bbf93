"""The ``--json`` output of every verb, compared with files in ``golden/``.

``WRITE_GOLDEN=1 pytest -n 0 tests/commands/test_golden.py`` writes the files anew. Values that differ between runs,
such as times and temporary paths, are replaced by placeholders.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from import_files import line, record, request_record, response_record, revisit, warcinfo, write_wacz
from offline.planted import SITE, Planting, text
from recorded_crawls import page, record_crawl

from scrapy_dedupe.commands.verbs import VerbParser, add_verbs
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import Counts, Original, SeenText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Called

GOLDEN = Path(__file__).parent / "golden"

PROSE = "The water level of the lake rises when the snow melts in spring, and falls again until the end of the summer."
OTHER = "Nobody who walks along the northern shore of that lake in autumn meets more than a handful of other people."

# What differs between two runs.
VOLATILE = (
    (re.compile(r"urn:uuid:[0-9a-f-]{36}"), "urn:uuid:ID"),
    (re.compile(r"\b20(2[6-9]|[3-9]\d)-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r'("[a-z_]*(seconds|_s|duration|mtime)": )[0-9.e-]+'), r"\1SECONDS"),
    (re.compile(r'"/[^"]*/scrapy-dedupe-\w{8}"'), '"TEMPORARY"'),
    (re.compile(r'("seed": )\d+'), r"\1SEED"),
    (re.compile(r'("version": "|scrapy-dedupe )\d+\.\d+\.\d+\w*'), r"\1VERSION"),
    (re.compile(r"\b20\d{12}(\d{3})?-(\d{5})-[A-Za-z0-9.-]+?(?=\.warc)"), r"STAMP-\2-HOST"),
)
# The sizes of compressed records depend on random ids, the host name and the version of zlib.
SIZES = (
    (re.compile(r'("sha256": ")\w+'), r"\1DIGEST"),
    (re.compile(r'("(\w*bytes\w*|\w*[sS]ize|offset|length)": )[1-9]\d*'), r"\1SIZE"),
    (re.compile(r"\b\d+( bytes| on disk)"), r"SIZE\1"),
    (re.compile(r"\b\d+(\.\d+)? (kB|MB|GB|ms)\b"), "SIZE"),
)


@dataclass(frozen=True)
class Step:
    """A call of the command line. ``code`` is its exit code, ``golden`` the name of the file."""

    golden: str
    words: str
    code: int = 0


STORE_VERBS = {
    "stats", "report", "crawls", "commit", "cancel", "import", "purge", "check", "content", "warc", "doctor"
}  # fmt: skip

# In this order: later steps see what earlier ones have changed.
STEPS = (
    Step("crawls", "crawls"),
    Step("crawls-show", "crawls show second"),
    Step("crawls-graph", "crawls graph"),
    Step("stats", "stats --per-crawl"),
    Step("report", "report first second"),
    Step("check", "check first"),
    Step("check-faulty", "check --payloads second third", 4),
    Step("urls-learn", "urls learn first second -o learnt.toml"),
    Step("urls-check-rules", "urls check-rules rules.toml first second"),
    Step("urls-explain", "urls explain http://example.org/1?sid=1 --rules rules.toml"),
    Step("import", "import a.wacz"),
    Step("import-faulty", "import faulty.cdxj cut.wacz", 4),
    Step("import-known", "import a.wacz"),
    Step("purge-dry", "purge --dry-run --force first"),
    Step("warc-pack", "warc pack third --warc-dir warcs/third", 4),
    Step("commit", "commit third"),
    Step("cancel", "cancel fourth"),
    Step("check-repair", "check --repair --forget-missing", 4),
    Step("purge", "purge first second third"),
    Step("warc-salvage", "warc salvage open"),
    Step("warc-upload", "warc upload moved uploads"),
    Step("content-stats", "content stats"),
    Step("content-check", "content check page.html --url https://example.com/new"),
    Step("content-explain", "content explain https://example.com/"),
    Step("content-curve", "content curve"),
    Step("content-import", "content import quarry.db --crawl-id quarry"),
    Step("content-purge", "content purge --crawl quarry --yes"),
    Step("urls-import", "urls import requests.seen --jobdir job"),
    Step("urls-stats", "urls stats --jobdir job"),
    Step("urls-check", "urls check --jobdir job https://example.com/1 https://example.com/new"),
    Step("urls-forget", "urls forget --jobdir job https://example.com/1 https://example.com/new"),
    Step("urls-export", "urls export --jobdir job -o exported.seen --format text"),
    Step("warcsum", "warcsum in -r -o sums.txt"),
    Step("warccollres", "warccollres sums.txt --root . -o resolved.txt"),
    Step("warcsumproc", "warcsumproc resolved.txt -o clustered.txt"),
    Step("warcsumsplit", "warcsumsplit resolved.txt -c 2 -o part"),
    Step("warcrefs-dry", "warcrefs clustered.txt --root . --dry-run"),
    Step("warcrefs", "warcrefs clustered.txt --root . -o refs"),
    Step("dedupe-dry", "dedupe in -r --dry-run"),
    Step("dedupe", "dedupe in -r -o out"),
    Step("near", "near in -r -o groups.parquet"),
    Step("verify", "verify in refs"),
    Step("verify-different", "verify in out-changed", 4),
    Step("restore", "restore refs -o restored"),
    Step("arc2warc", "arc2warc arc -r -o converted --hash sha256"),
    Step("passages-index", "passages index texts pages.jsonl"),
    Step("passages-inspect", "passages inspect --documents"),
    Step("passages-check", "passages check --full"),
    Step("passages-like", "passages like question.txt"),
    Step("passages-blot", "passages blot question.txt --offsets"),
    Step("passages-unblot", "passages unblot 00000000 {blot}"),
    Step("passages-extract", "passages extract --min-tokens 5 -o passages.txt"),
    Step("passages-delete", "passages delete https://example.com/page"),
    Step("passages-compact", "passages compact"),
    Step("doctor", "doctor"),
)


def prepare(folder: Path, store_url: str) -> None:
    """Make the input of all steps in *folder*."""
    _fill_store(folder, store_url)
    _write_imports(folder)
    _write_archives(folder)
    _write_texts(folder)
    with closing(sqlite3.connect(folder / "quarry.db")) as table:
        table.execute(
            "CREATE TABLE hash_dedup (hash TEXT PRIMARY KEY, url TEXT, timestamp REAL, created_at DATETIME)"
        )
        table.execute(
            "INSERT INTO hash_dedup VALUES (?, ?, ?, NULL)",
            ("ab" * 32, "https://example.com/q", 1_753_000_000.25),
        )
        table.commit()
    (folder / "page.html").write_text(f"<title>Lake</title><p>{PROSE} {OTHER}")
    prints = [sha256(b"%d" % number).hexdigest()[:40] for number in range(5)]
    rule = '[[rule]]\nhost = "example.org"\nkind = "ignore-parameter"\nparameter = "sid"\n'
    (folder / "rules.toml").write_text(f"version = 1\n{rule}")
    (folder / "requests.seen").write_text("\n".join(prints) + "\n")


def _fill_store(folder: Path, store_url: str) -> None:
    with closing(open_index(store_url)) as index:
        record_crawl(index, folder / "warcs", "first", [1, 2, 3])
        record_crawl(index, folder / "warcs", "second", [1, 2, 4, page(4)])
        (last,) = record_crawl(index, folder / "warcs", "third", [4, 5], commit=False)
        shutil.copy(last, folder / "warcs" / "kept.warc.gz")
    with closing(open_store(store_url)) as store:
        store.index.start("fourth", "stored")
        store.index.add_file("fourth", "fourth.warc.gz")
        entry = Original("ab" * 32, "fourth", "20260801120000123", "https://example.com/", 1234)
        store.index.add("fourth", [entry], Counts(10, 4, 2_500, 70_000))
        texts = [
            SeenText(bytes([number]) * 16, f"https://example.com/{number or ''}", "first", 1_750_000_000_000)
            for number in range(3)
        ]
        store.content.claim(texts, pending=False)


def _write_imports(folder: Path) -> None:
    write_wacz(folder / "a.wacz", [line(1), line(2), revisit(3, 1)], crawl="imported")
    write_wacz(folder / "cut.wacz", [line(1), line(2)], gzipped=True, cut=4)
    (folder / "faulty.cdxj").write_bytes(line(7) + b"no line of an index\n" + line(8, digest=None))


def _write_archives(folder: Path) -> None:
    opened = folder / "open"
    opened.mkdir()
    exchange = response_record(1, b"one" * 500, uri=f"{SITE}/1") + request_record(2, "GET", uri=f"{SITE}/1")
    last = response_record(3, b"two" * 500, uri=f"{SITE}/2")
    (opened / "a-20260801120000000-00000-host.warc.gz.open").write_bytes(warcinfo() + exchange + last[:-10])
    uploads = folder / "uploads"
    uploads.mkdir()
    (uploads / "done.warc.gz").write_bytes(record("warcinfo", 5, b"software: other\r\n"))
    (folder / "moved").mkdir()
    planting = Planting()
    for name in ("a.warc", "b.warc"):
        planting.file(name, "plain")
        planting.warcinfo(name)
        for number in range(3):
            label = f"{name}/{number}"
            planting.exchange(name, label, f"{SITE}/{number}", text(str(number % 2), 3_000))
    planting.write(folder / "in")
    planting.exchange("b.warc", "more", f"{SITE}/more", text("more", 3_000))
    planting.write(folder / "out-changed")
    old = Planting()
    old.file("old.arc", "arc")
    old.arc_capture("old.arc", "old", f"{SITE}/old", text("old", 3_000))
    old.write(folder / "arc")


def _write_texts(folder: Path) -> None:
    texts = folder / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text(f"First. {PROSE} The end of the first.")
    (texts / "b.txt").write_text(f"Second. {PROSE} {OTHER}")
    (texts / "c.html").write_text(f"<title>Third</title><p>{OTHER}")
    (folder / "pages.jsonl").write_text(json.dumps({"url": "https://example.com/page", "text": PROSE}) + "\n")
    (folder / "question.txt").write_text(f"{OTHER} And a question.")


def test_json_output_of_every_verb_equals_its_golden_file(call: Callable[..., Called]) -> None:
    folder = Path.cwd()
    store_url = f"sqlite:///{folder / 'golden.sqlite'}"
    prepare(folder, store_url)
    wanted, found = {}, {}
    blot = "0"
    for step in STEPS:
        verb, *words = step.words.format(blot=blot).split()
        has_store = (verb in STORE_VERBS and words != ["curve"]) or {"learn", "check-rules"}.intersection(
            words
        )
        store = ["--store", store_url] if has_store else []
        root = ["--root", "index"] if verb == "passages" else []
        called = call(verb, *words, *store, *root, "--json")
        assert called.code == step.code, (step, called)
        if step.golden == "passages-blot":
            blot = called.json["files"][0]["blots"][0]["blot"]
        found[step.golden] = normalised(step.golden, called.out, folder.parent)
        path = GOLDEN / f"{step.golden}.json"
        if os.environ.get("WRITE_GOLDEN"):
            path.write_text(found[step.golden])
        wanted[step.golden] = path.read_text()
    assert found == wanted


def test_every_verb_with_json_has_a_golden_file() -> None:
    tested = [f"{step.words} " for step in STEPS]
    assert [
        verb for verb in verbs_with_json() if not any(words.startswith(f"{verb} ") for words in tested)
    ] == []
    assert {path.stem for path in GOLDEN.iterdir()} == {step.golden for step in STEPS}


def normalised(golden: str, output: str, folder: Path) -> str:
    output = output.replace(str(folder), "FOLDER")
    is_store_verb = golden.split("-")[0] in STORE_VERBS
    for pattern, placeholder in (*VOLATILE, *(SIZES if is_store_verb else ())):
        output = pattern.sub(placeholder, output)
    if golden == "doctor":
        # Its findings depend on the machine.
        output = re.sub(r'"(level|sentence|remedy)": ".*"', r'"\1": ""', output)
        output = re.sub(r'("(problem|warning|note|ok)": )\d+', r"\1COUNT", output)
        output = "},\n".join(dict.fromkeys(output.split("},\n")))
    return output


def verbs_with_json() -> Iterator[str]:
    """The verbs and sub-verbs that have --json."""
    parser = argparse.ArgumentParser()
    add_verbs(parser, "scrapy-dedupe")
    found = [("", parser)]
    while found:
        name, verb = found.pop()
        if isinstance(verb, VerbParser):
            verb.complete()
        if name and any("--json" in action.option_strings for action in verb._actions):
            yield name.strip()
        for action in verb._actions:
            if isinstance(action, argparse._SubParsersAction):
                found += [(f"{name} {word}", child) for word, child in action._name_parser_map.items()]
