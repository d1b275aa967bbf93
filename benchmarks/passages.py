"""Measure speed, size and accuracy of the passage index on real text.

    python benchmarks/passages.py FOLDER [--only index|like|append|extract] [--rounds 3] [--most 400] [--keep DIR]

FOLDER contains text (``.txt``) or HTML files. The canonical text of HTML is used. For comparable figures, use at least
190 MB of text, for example these packages of Debian 12, unpacked with ``dpkg-deb -x``: linux-doc-6.1, openjdk-17-doc,
libboost1.74-doc, libboost1.81-doc, llvm-14-doc, llvm-15-doc, postgresql-doc-15, git-doc, python3.11-doc,
libstdc++-12-doc, cmake-doc. At most ``--most`` MB are used.

The texts are written to one file of JSON lines, each page under a host that is named after its package, as in a crawl. 60
passages are planted, 20 each of 15, 25 and 50 words that are drawn from the texts. Each passage is inserted unchanged into
the middle of one page, and in upper case with different punctuation into the middle of another page.

index
    Runs ``passages index`` with one and two jobs, and with ``--no-text``, in separate processes. Prints MB of text per
    second of wall-clock time and of CPU time, the maximum memory of all processes together (proportional set size), and
    the size of the index; the size without the stored texts is compared with the size of the texts. Alternates with a peer
    that keeps everything in memory: `Prototype`, winnowed 64-bit fingerprints of 10 words in 40 lines of NumPy. Medians.
like
    Queries the open index with texts of 2, 6 and 90 kB from the pages, alternating with the prototype. Prints
    milliseconds: the median and the maximum of ten texts, five queries each.
append
    Opens the index, adds one document and closes it, 40 times. Then adds 14 MB, compared with a new index of the same
    texts.
extract
    Runs ``passages extract``. Prints seconds and memory, the number of planted passages that are reported as one passage,
    and how many of the first 100 passages have the same words at all places, according to ``re`` and ``str.casefold``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scrapy_dedupe.content.canonical import canonical_text
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.passages.catalogue import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

PROGRAM = (
    sys.executable,
    "-c",
    "import sys; from scrapy_dedupe.commands.console import main; sys.exit(main())",
)
LENGTHS = (15, 25, 50)
EACH = 20
SIZES = (2_000, 6_000, 90_000)
GOALS_MS = (5, 20, 100)
WORD = re.compile(r"[^\W_]+")
PUNCTUATION = (", ", ". ", "; ", " - ", "\n", " (", ") ", ": ", "… ")


@dataclass(frozen=True, slots=True)
class Planted:
    """A planted passage, with its pages and characters."""

    words: tuple[str, ...]
    places: tuple[tuple[str, int, int], ...]


@dataclass
class Corpus:
    """Pages by their URL, in the order in which they are indexed."""

    pages: dict[str, str] = field(default_factory=dict)
    planted: list[Planted] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def size_mb(self) -> float:
        return self.size_bytes / 1e6


def read_corpus(folder: Path, most_bytes: int) -> Corpus:
    """The texts below *folder*, in the order of their names."""
    corpus = Corpus()
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(base) / name
            if path.is_symlink() or not name.endswith((".txt", ".html")):
                continue
            text = path.read_text("utf-8", "replace")
            if name.endswith(".html"):
                text = canonical_text(text)
            corpus.size_bytes += len(text.encode())
            corpus.pages[f"https://{_package(path)}.example/{path.relative_to(folder).as_posix()}"] = text
            if corpus.size_bytes >= most_bytes:
                return corpus
    if not corpus.pages:
        sys.exit(f"There are no .txt and .html files below {folder}.")
    return corpus


def _package(path: Path) -> str:
    parts = path.parts
    return parts[parts.index("doc") + 1] if "doc" in parts[:-2] else path.parent.name


def plant(corpus: Corpus) -> None:
    """Insert `EACH` passages of each of the `LENGTHS`, each into two pages."""
    rng = random.Random(7)
    urls = list(corpus.pages)
    vocabulary = WORD.findall(
        " ".join(corpus.pages[url][:5_000] for url in rng.sample(urls, min(400, len(urls))))
    )
    large = [url for url in urls if 2_000 <= len(corpus.pages[url]) <= 200_000]
    chosen = iter(rng.sample(large, 2 * EACH * len(LENGTHS)))
    for length in LENGTHS:
        for _ in range(EACH):
            words = tuple(word.casefold() for word in rng.choices(vocabulary, k=length))
            copy = "".join(word.upper() + rng.choice(PUNCTUATION) for word in words).rstrip(" \n.,;:()-…")
            places = []
            for written in (" ".join(words), copy):
                url = next(chosen)
                text = corpus.pages[url]
                at = text.index(" ", len(text) // 2) if " " in text[len(text) // 2 :] else len(text)
                corpus.pages[url] = f"{text[:at]} {written} {text[at:]}"
                corpus.size_bytes += len(written.encode()) + 2
                places.append((url, at + 1, at + 1 + len(written)))
            corpus.planted.append(Planted(words, tuple(places)))


def write_lines(pages: Iterable[tuple[str, str]], path: Path) -> None:
    with path.open("w") as stream:
        for url, text in pages:
            stream.write(json.dumps({"url": url, "text": text}, ensure_ascii=False) + "\n")


# Processes


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a process, including its child processes."""

    seconds: float
    cpu_seconds: float
    memory_mb: float


def run(work: Path, *words: str) -> Cost:
    """Run a command. The memory of all processes is sampled every 100 ms; shared memory counts once."""
    begun = time.perf_counter()
    process = subprocess.Popen([*PROGRAM, *words], cwd=work, stdout=subprocess.DEVNULL)
    most = 0
    has_ended = threading.Event()

    def sample() -> None:
        nonlocal most
        while not has_ended.wait(0.1):
            most = max(most, sum(map(_pss_bytes, _process_tree(process.pid))))

    sampler = threading.Thread(target=sample)
    sampler.start()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    has_ended.set()
    sampler.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 4):
        sys.exit(f"{' '.join(words)} failed with exit code {process.returncode}.")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, most / 1e6)


def _process_tree(pid: int) -> list[int]:
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return [pid, *(member for child in children for member in _process_tree(child))]


def _pss_bytes(pid: int) -> int:
    try:
        found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


# The peer


class Prototype:
    """An index in memory: 64-bit fingerprints of 10 words, of which the smallest of every 8 consecutive ones is kept.

    Words are not compared.
    """

    def __init__(self, k: int = 10, window: int = 8) -> None:
        self.k = k
        self.window = window
        self._factors = np.uint64(0x9E3779B97F4A7C15) ** np.arange(k, dtype=np.uint64)
        self._numbers: dict[str, int] = {}
        self._rng = random.Random(1)
        self._keys: list[NDArray[np.uint64]] = []
        self._sizes: list[int] = []

    def add(self, text: str) -> None:
        kept = self.fingerprints(text)
        self._keys.append(kept)
        self._sizes.append(len(kept))

    def close(self) -> None:
        keys = np.concatenate(self._keys)
        order = np.argsort(keys, kind="stable")
        self.keys = keys[order]
        self.texts = np.repeat(np.arange(len(self._sizes)), self._sizes)[order]

    def fingerprints(self, text: str) -> NDArray[np.uint64]:
        numbers = self._numbers
        hashes = np.array(
            [numbers.get(word) or self._number(word) for word in WORD.findall(text.casefold())], np.uint64
        )
        if len(hashes) < self.k:
            return np.empty(0, np.uint64)
        rolled = np.lib.stride_tricks.sliding_window_view(hashes, self.k) @ self._factors
        rolled ^= rolled >> np.uint64(29)
        rolled *= np.uint64(0xBF58476D1CE4E5B9)
        if len(rolled) >= self.window:
            rolled = np.lib.stride_tricks.sliding_window_view(rolled, self.window).min(axis=1)
        return np.unique(rolled)

    def like(self, text: str) -> NDArray[np.int64]:
        asked = self.fingerprints(text)
        first, last = np.searchsorted(self.keys, asked), np.searchsorted(self.keys, asked, "right")
        found = [self.texts[start:end] for start, end in zip(first, last, strict=True)]
        counts = np.bincount(np.concatenate(found) if found else np.empty(0, np.int64))
        return np.argsort(-counts)[:10]

    def _number(self, word: str) -> int:
        number = self._numbers[word] = self._rng.getrandbits(64) | 1
        return number


# index


def sizes(folder: Path) -> tuple[int, int]:
    """The bytes of the stored texts, and of all other files of the index."""
    manifest = read_manifest(folder)
    assert manifest is not None
    blobs = sum(entry.texts_size for entry in manifest.segments)
    return blobs, sum(path.stat().st_size for path in folder.iterdir()) - blobs


def indexing(work: Path, corpus: Corpus, rounds: int) -> None:
    """Run the part ``index``."""
    variants = {
        "1 job": ("--root", "one"),
        "2 jobs": ("--root", "two", "--jobs", "2"),
        "1 job, --no-text": ("--root", "none", "--no-text"),
        "2 jobs, --no-text": ("--root", "none-two", "--no-text", "--jobs", "2"),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in variants}
    peer: list[float] = []
    for _ in range(rounds):
        for name, words in variants.items():
            shutil.rmtree(work / words[1], ignore_errors=True)
            costs[name].append(run(work, "passages", "index", "pages.jsonl", *words))
        begun = time.process_time()
        made_prototype(corpus)
        peer.append(time.process_time() - begun)
    print(f"index: {len(corpus.pages):,} pages, {corpus.size_mb:.1f} MB of text, medians of {rounds}")
    for name, measured in costs.items():
        seconds = statistics.median(cost.seconds for cost in measured)
        cpu = statistics.median(cost.cpu_seconds for cost in measured)
        memory = max(cost.memory_mb for cost in measured)
        print(
            f"  {name:18} {seconds:6.2f} s  {corpus.size_mb / seconds:6.1f} MB/s   CPU {cpu:6.2f} s"
            f"  {corpus.size_mb / cpu:6.1f} MB/s   {memory:5.0f} MB of memory"
        )
        blobs, rest = sizes(work / variants[name][1])
        share = (rest + blobs * ("--no-text" in variants[name])) / corpus.size_bytes
        print(
            f"  {'':18} {rest / 1e6:6.1f} MB, {'outlines' if '--no-text' in variants[name] else 'texts'}"
            f" {blobs / 1e6:.1f} MB; without texts {100 * share:.1f} % of the text (goal: 20 %)"
        )
    middle = statistics.median(peer)
    ours = statistics.median(cost.cpu_seconds for cost in costs["1 job"])
    print(
        f"  {'prototype, CPU':18} {middle:6.2f} s  {corpus.size_mb / middle:6.1f} MB/s   ours is {middle / ours:.2f}x"
    )


def made_prototype(corpus: Corpus) -> Prototype:
    prototype = Prototype()
    for text in corpus.pages.values():
        prototype.add(text)
    prototype.close()
    return prototype


def index_of(work: Path) -> Path:
    """The folder of the index with texts. It is created if the part ``index`` has not been run."""
    if not (work / "one").exists():
        run(work, "passages", "index", "pages.jsonl", "--root", "one")
    return work / "one"


# like


def asking(work: Path, corpus: Corpus) -> None:
    """Run the part ``like``."""
    rng = random.Random(3)
    prototype = made_prototype(corpus)
    whole = list(corpus.pages.values())
    print("like: milliseconds, median and maximum of ten texts")
    with PassageIndex(index_of(work), create=False) as index:
        for size, goal in zip(SIZES, GOALS_MS, strict=True):
            long_enough = [text for text in whole if len(text) >= size]
            if len(long_enough) < 10:
                print(f"  {size // 1000:3} kB  fewer than ten texts have this length")
                continue
            texts = [text[:size] for text in rng.sample(long_enough, 10)]
            ours = [_milliseconds(index.like, text) for text in texts]
            theirs = [_milliseconds(prototype.like, text) for text in texts]
            print(
                f"  {size // 1000:3} kB  {statistics.median(ours):7.2f}  {max(ours):7.2f}   goal {goal:3}   prototype,"
                f" without comparing words: {statistics.median(theirs):.2f}"
            )


def _milliseconds(call: Callable[[str], object], text: str) -> float:
    call(text)
    spent = []
    for _ in range(5):
        begun = time.perf_counter()
        call(text)
        spent.append(1000 * (time.perf_counter() - begun))
    return statistics.median(spent)


# append


def appending(work: Path, corpus: Corpus) -> None:
    """Run the part ``append``."""
    root = work / "appended"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(index_of(work), root)
    rng = random.Random(4)
    spent = []
    for number in range(40):
        text = rng.choice(list(corpus.pages.values()))[:20_000] + f" appended {number}"
        begun = time.perf_counter()
        with PassageIndex(root) as index:
            index.add(f"https://new.example/{number}", text)
        spent.append(1000 * (time.perf_counter() - begun))
    print(
        f"append: one document {statistics.median(spent):.1f} ms, maximum of 40: {max(spent):.1f} ms (goal: 100)"
    )

    pages = list(_some(corpus, 14_000_000))
    size_mb = sum(len(text.encode()) for _, text in pages) / 1e6
    write_lines(pages, work / "more.jsonl")
    fresh, added = [], []
    for _ in range(3):
        shutil.rmtree(work / "fresh", ignore_errors=True)
        fresh.append(run(work, "passages", "index", "more.jsonl", "--root", "fresh").seconds)
        shutil.rmtree(root)
        shutil.copytree(index_of(work), root)
        added.append(run(work, "passages", "index", "more.jsonl", "--root", root.name, "--append").seconds)
    new, more = statistics.median(fresh), statistics.median(added)
    print(
        f"  {size_mb:.1f} MB, including the startup of the program: new index {new:.2f} s, appended {more:.2f} s"
        f" ({more / new:.2f}x)"
    )


def _some(corpus: Corpus, size_bytes: int) -> Iterator[tuple[str, str]]:
    """About *size_bytes* of new texts: pages with an additional word after every sentence."""
    left = size_bytes
    for url, text in corpus.pages.items():
        if left <= 0:
            return
        changed = text.replace(". ", ". also ")
        left -= len(changed.encode())
        yield f"{url}?changed", changed


# extract


def extracting(work: Path, corpus: Corpus) -> None:
    """Run the part ``extract``."""
    root = index_of(work).name
    cost = run(work, "passages", "extract", "--root", root, "--format", "jsonl", "-o", "passages.jsonl")
    count = 0
    times_reported = dict.fromkeys(corpus.planted, 0)
    first: list[dict[str, Any]] = []
    sought: dict[str, list[Planted]] = {}
    for planted in corpus.planted:
        sought.setdefault(planted.places[0][0], []).append(planted)
    with (work / "passages.jsonl").open() as stream:
        for line in stream:
            passage: dict[str, Any] = json.loads(line)
            count += 1
            if len(first) < 100:
                first.append(passage)
            for place in passage["places"]:
                for planted in sought.get(place["doc_id"], ()):
                    times_reported[planted] += _is_reported(planted, passage["places"])
    print(f"extract: {count:,} passages in {cost.seconds:.1f} s, {cost.memory_mb:.0f} MB of memory")
    for length in LENGTHS:
        found = [number for planted, number in times_reported.items() if len(planted.words) == length]
        print(
            f"  planted, {length} words: {sum(number > 0 for number in found)} of {len(found)} found,"
            f" {sum(number == 1 for number in found)} as one passage"
        )
    right = sum(_is_right(passage, corpus) for passage in first)
    print(f"  the first {len(first)}: {right} with the same words at all places")


def _is_reported(planted: Planted, places: Sequence[dict[str, Any]]) -> bool:
    """Whether *places* cover both places of a planted passage completely, and no other document."""
    if {place["doc_id"] for place in places} != {url for url, _, _ in planted.places}:
        return False
    return all(
        any(
            place["doc_id"] == url and place["char_start"] <= start and end <= place["char_end"]
            for place in places
        )
        for url, start, end in planted.places
    )


def _is_right(passage: dict[str, Any], corpus: Corpus) -> bool:
    found = {
        tuple(
            word.casefold()
            for word in WORD.findall(corpus.pages[place["doc_id"]][place["char_start"] : place["char_end"]])
        )
        for place in passage["places"]
    }
    return len(found) == 1 and len({place["doc_id"] for place in passage["places"]}) > 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=("index", "like", "append", "extract"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=400, metavar="MB")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="work in this folder and keep it; an index of an earlier run is used again",
    )
    options = parser.parse_args()
    corpus = read_corpus(options.folder, options.most * 1_000_000)
    plant(corpus)
    with tempfile.TemporaryDirectory() as name:
        work = options.keep or Path(name)
        work.mkdir(parents=True, exist_ok=True)
        write_lines(corpus.pages.items(), work / "pages.jsonl")
        parts: dict[str, Callable[[], None]] = {
            "index": lambda: indexing(work, corpus, options.rounds),
            "like": lambda: asking(work, corpus),
            "append": lambda: appending(work, corpus),
            "extract": lambda: extracting(work, corpus),
        }
        for part, measure in parts.items():
            if options.only in (None, part):
                measure()


if __name__ == "__main__":
    main()
