"""A plain model in memory of what a crawl index holds, and the steps that change it.

A step is one call of :class:`~scrapy_dedupe.stores.base.CrawlIndex`. It says whether the index may take it, what it
changes in the model, and what may be done in its place if it was cut off. The size of an original depends on its
payload alone, so that counts do not depend on which of several crawls owns a payload.
"""

from __future__ import annotations

import hashlib
import uuid
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import CrawlStateError
from scrapy_dedupe.stores.base import Counts, Need, Original, Source, UrlCapture, Waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.stores.crawl_index import CrawlIndex

CRAWLS = ("a", "b", "c")
STRANGER = "stranger"
SIZES = (900, 1_500, 2_100, 2_700, 3_300)
DIGESTS = tuple(hashlib.sha256(b"%d" % number).hexdigest() for number in range(len(SIZES)))
URLS = ("https://example.org/", "https://example.org/page")


def _source(name: str, crawl: str) -> Source:
    if not name.endswith(".wacz"):
        return Source(name, crawl, f"/archive/{name}")
    digest = hashlib.sha256(name.encode()).hexdigest()
    return Source(name, crawl, f"/archive/{name}", True, digest, 1_000 + len(name))


SOURCES = tuple(
    _source(name, crawl)
    for name, crawl in (
        ("first.wacz", "a"),
        ("second.wacz", "a"),
        ("third.cdxj", "a"),
        ("fourth.wacz", "b"),
        ("fifth.warc.gz", "b"),
        ("sixth.wacz", "c"),
    )
)


@dataclass
class Life:
    """One crawl."""

    state: str
    is_concurrent: bool = False
    is_imported: bool = False
    is_incomplete: bool = False
    counts: Counts = field(default_factory=Counts)
    # Of one payload several, if sources that were imported side by side have it: any of them is the crawl's then.
    records: dict[str, list[Original]] = field(default_factory=dict)
    urls: dict[str, set[UrlCapture]] = field(default_factory=dict)
    needs: set[Need] = field(default_factory=set)
    waiting: list[Waiting] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    # What containers are known to be at which place; at other places there may be what was dropped.
    containers: dict[int, dict[str, object]] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    # How many sources had ended when it was started, and when the last one of its own did.
    ends_before: int = 0
    last_end: int = 0

    @property
    def is_visible(self) -> bool:
        return self.state == "committed" or (self.is_concurrent and self.state == "uncommitted")

    @property
    def is_being_imported(self) -> bool:
        return self.is_imported and self.state == "uncommitted"


@dataclass
class Hidden:
    """A source that was begun. ``place`` is that of its container, None while it is not known."""

    place: int | None
    records: dict[str, Original] = field(default_factory=dict)
    urls: list[UrlCapture] = field(default_factory=list)
    # What another source had first: until this one ends its crawl itself need not find it.
    second: set[str] = field(default_factory=set)
    token: str = ""


@dataclass
class Model:
    """All crawls."""

    crawls: dict[str, Life] = field(default_factory=dict)
    hidden: dict[str, Hidden] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    queue: list[str] = field(default_factory=list)
    claimed: list[str] = field(default_factory=list)
    # Of the last claim of each source; None for one that was cut off, which nobody can use.
    tokens: dict[str, str | None] = field(default_factory=dict)
    ends: int = 0

    def held(self, source: Source) -> Source:
        """A source as its last claimer has it."""
        return replace(source, token=self.tokens.get(source.name) or "")

    def is_held(self, source: Source) -> bool:
        return self.tokens.get(source.name, "") is not None

    def state_of(self, crawl: str) -> str:
        return self.crawls[crawl].state if crawl in self.crawls else "unknown"

    def open(self, crawl: str) -> Life | None:
        """A crawl that is crawled here and is not committed."""
        life = self.crawls.get(crawl)
        return life if life and life.state == "uncommitted" and not life.is_imported else None

    def begun(self, crawl: str) -> list[Source]:
        return [source for source in SOURCES if source.crawl == crawl and source.name in self.hidden]

    def visible(self, digest: str, reader: str) -> list[Original]:
        """The originals with a payload that the crawl *reader* may be given of other crawls."""
        return [
            original
            for crawl, life in self.crawls.items()
            if crawl != reader and life.is_visible
            for original in life.records.get(digest, ())
        ]

    def forget(self, crawl: str) -> None:
        """What a canceled or purged crawl leaves behind."""
        for source in self.begun(crawl):
            del self.hidden[source.name]
        self.done -= {source.name for source in SOURCES if source.crawl == crawl}

    def drop(self, source: Source) -> None:
        """Forget a source that has not ended. Its container's place stays taken if there are others behind it."""
        hidden = self.hidden.pop(source.name, None)
        if hidden is None:
            return
        life = self.crawls[source.crawl]
        if life.state == "uncommitted" and not self.begun(source.crawl):
            del self.crawls[source.crawl]
        elif source.is_container and hidden.place is not None:
            life.containers.pop(hidden.place, None)
            if any(place > hidden.place for place in [*life.containers, *life.taken]):
                life.taken.add(hidden.place)

    @property
    def totals(self) -> Counts:
        return sum((life.counts for life in self.crawls.values() if life.state == "committed"), Counts())


# What is seen of the index


def differences(index: CrawlIndex, model: Model, dirty: frozenset[str] = frozenset()) -> list[str]:
    """In what the index differs from the model. What is hidden in *dirty* crawls may be there in part."""
    return [text for look in _LOOKS for text in look(index, model, dirty)]


def _differs(what: str, found: object, expected: object) -> Iterator[str]:
    if found != expected:
        yield f"{what}: found {found}, expected {expected}"


def _crawls(index: CrawlIndex, model: Model, dirty: frozenset[str]) -> Iterator[str]:
    infos = {info.id: info for info in index.crawls()}
    yield from _differs(
        "states",
        {crawl: info.state for crawl, info in infos.items()},
        {crawl: life.state for crawl, life in model.crawls.items()},
    )
    for crawl, life in model.crawls.items():
        info = infos.get(crawl)
        if info is None or (crawl in dirty and life.state == "canceled"):
            continue
        yield from _differs(f"counts of {crawl}", info.counts, life.counts)
        if crawl not in dirty:
            waiting = len({waiting.digest for waiting in life.waiting})
            yield from _differs(f"waiting of {crawl}", info.waiting, waiting)
        if life.state != "canceled":
            yield from _differs(f"imported {crawl}", info.imported, life.is_imported)
            yield from _differs(f"incomplete {crawl}", info.incomplete, life.is_incomplete)
        if life.state == "uncommitted":
            yield from _differs(f"concurrent {crawl}", info.concurrent, life.is_concurrent)
        if not life.files <= set(info.files):
            yield f"files of {crawl}: found {info.files}, expected {life.files}"
    yield from _differs("totals", index.counts, model.totals)


def _payloads(index: CrawlIndex, model: Model, dirty: frozenset[str]) -> Iterator[str]:
    for reader in (*CRAWLS, STRANGER):
        own = model.crawls[reader].records if reader in model.crawls else {}
        for digest, found in zip(DIGESTS, index.find(reader, DIGESTS), strict=True):
            hidden = [
                model.hidden[source.name].records[digest]
                for source in model.begun(reader)
                if digest in model.hidden[source.name].records
            ]
            allowed: list[Original | None] = [*own.get(digest, ()), *hidden]
            is_second = not any(
                digest in model.hidden[source.name].records.keys() - model.hidden[source.name].second
                for source in model.begun(reader)
            )
            if not allowed or (hidden and (reader in dirty or is_second) and digest not in own):
                others = model.visible(digest, reader)
                allowed += others
                # What a concurrent crawl forgets goes bit by bit.
                if all(other.crawl in dirty and model.open(other.crawl) for other in others):
                    allowed.append(None)
            if found not in allowed and not (
                reader in dirty and found is not None and found.crawl == reader and digest not in own
            ):
                yield f"{reader} looks for {digest[:4]}: found {found}, expected one of {allowed}"


def _urls(index: CrawlIndex, model: Model, dirty: frozenset[str]) -> Iterator[str]:
    for reader in (*(crawl for crawl in CRAWLS if crawl not in dirty), STRANGER):
        for url, found in zip(URLS, index.find_urls(reader, URLS), strict=True):
            life = model.crawls.get(reader)
            own = life.urls.get(url) if life else None
            others = [
                captures
                for crawl, other in model.crawls.items()
                if crawl != reader and other.state == "committed" and (captures := other.urls.get(url))
            ]
            hidden = {
                capture
                for source in model.begun(reader)
                for capture in model.hidden[source.name].urls
                if capture.url == url
            }
            allowed: set[UrlCapture | None] = set(own or ())
            if own is None:
                # Of several captures of one imported crawl any may be its last.
                first = max((min(captures, key=_date) for captures in others), key=_date, default=None)
                allowed = (
                    {None}
                    if first is None
                    else {
                        capture
                        for captures in others
                        for capture in captures
                        if _date(capture) >= _date(first)
                    }
                )
            if found not in allowed | hidden:
                yield f"{reader} looks for {url}: found {found}, expected one of {allowed}"


def _rest(index: CrawlIndex, model: Model, dirty: frozenset[str]) -> Iterator[str]:
    for crawl in CRAWLS:
        life = model.crawls.get(crawl)
        if crawl in dirty and model.state_of(crawl) != "committed":
            continue
        if crawl not in dirty:
            yield from _differs(f"needs of {crawl}", set(index.needs(crawl)), life.needs if life else set())
        records = list(index.records(crawl))
        known = life.records if life else {}
        yield from _differs(f"payloads of {crawl}", {record.digest for record in records}, set(known))
        for record in records:
            if record not in known.get(record.digest, [record]):
                yield f"records of {crawl}: found {record}, expected one of {known[record.digest]}"
        if len(records) != len({record.digest for record in records}):
            yield f"records of {crawl}: some came twice"
        if crawl in dirty:
            continue
        containers = index.containers(crawl)
        for place, container in (life.containers if life else {}).items():
            found = containers[place] if place < len(containers) else None
            yield from _differs(f"container {place} of {crawl}", found, container)
        places = [*life.containers, *life.taken] if life else []
        yield from _differs(f"containers of {crawl}", len(containers), max(places, default=-1) + 1)
    # Those of a crawl that is being forgotten go with the rest of it.
    names = sorted(
        source.name
        for source in SOURCES
        if source.crawl not in dirty or model.state_of(source.crawl) in ("uncommitted", "committed")
    )
    yield from _differs(
        "done sources",
        {name for name, is_done in zip(names, index.done_sources(names), strict=True) if is_done},
        model.done.intersection(names),
    )
    yield from _differs(
        "unfinished sources",
        [source.name for source in index.unfinished_sources() if source.name in names],
        [name for name in names if name in model.hidden],
    )
    yield from _differs("queue", index.queue_length(), (len(model.queue), len(model.claimed)))


READING = (_payloads, _urls)
_LOOKS = (_crawls, *READING, _rest)


def _date(capture: UrlCapture) -> str:
    return capture.date.ljust(17, "0")


# Steps


@dataclass(frozen=True)
class Step:
    """One call. ``crawls`` are those that it is about."""

    @property
    def crawls(self) -> tuple[str, ...]:
        raise NotImplementedError

    def is_offered(self, model: Model) -> bool:
        """Whether the step says something about the index in this state."""
        return True

    def is_allowed(self, model: Model) -> bool:
        """Whether the index takes it; if not, it raises CrawlStateError."""
        return True

    def call(self, index: CrawlIndex, model: Model) -> Any:
        raise NotImplementedError

    def change(self, model: Model, answer: Any) -> None:
        raise NotImplementedError

    def changed(self, model: Model, answer: Any) -> Model:
        copy = deepcopy(model)
        self.change(copy, answer)
        return copy

    def instead(self, model: Model) -> list[Step]:
        """What may follow once the step was cut off: it again, or another one. Empty: anything may."""
        return [self]

    @property
    def dirty(self) -> tuple[str, ...]:
        """The crawls of which something may be there in part, for themselves alone, while the step is cut off."""
        return ()

    # Once it was cut off it is done again before anything else.
    is_urgent = False
    is_repeatable = True


@dataclass(frozen=True)
class Nothing(Step):
    """What may follow a step that had no effect."""

    @property
    def crawls(self) -> tuple[str, ...]:
        return ()

    def call(self, index: CrawlIndex, model: Model) -> None:
        pass

    def change(self, model: Model, answer: Any) -> None:
        pass


@dataclass(frozen=True)
class OnCrawl(Step):
    crawl: str

    @property
    def crawls(self) -> tuple[str, ...]:
        return (self.crawl,)


@dataclass(frozen=True)
class OnOpenCrawl(OnCrawl):
    """A step that a crawl takes which is crawled here and is not committed."""

    def is_allowed(self, model: Model) -> bool:
        return model.open(self.crawl) is not None

    def is_offered(self, model: Model) -> bool:
        # What becomes of an import is for the importer alone to say.
        life = model.crawls.get(self.crawl)
        return life is None or not life.is_being_imported


@dataclass(frozen=True)
class Start(OnCrawl):
    is_concurrent: bool = False

    def is_allowed(self, model: Model) -> bool:
        life = model.crawls.get(self.crawl)
        return life is None or life.state == "canceled" or model.open(self.crawl) is not None

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.start(self.crawl, "stored", concurrent=self.is_concurrent)

    def change(self, model: Model, answer: Any) -> None:
        if model.open(self.crawl) is None:
            model.crawls.pop(self.crawl, None)
            model.crawls[self.crawl] = Life("uncommitted", self.is_concurrent, ends_before=model.ends)


@dataclass(frozen=True)
class Add(OnOpenCrawl):
    """Records of some payloads, and whatever else one addition may bring. ``serial`` makes it unlike others."""

    serial: int
    payloads: tuple[int, ...] = ()
    url: int | None = None
    needed: str | None = None
    waiting: tuple[int, ...] = ()
    is_repeatable = False

    @property
    def counts(self) -> Counts:
        return Counts(len(self.payloads) + len(self.waiting), len(self.waiting), self.serial, 7)

    def _parts(
        self,
    ) -> tuple[list[Original], Counts, list[UrlCapture], list[Need], list[Waiting]]:
        file = f"{self.crawl}-{self.serial % 2}.warc.gz"
        originals = [
            original_of(self.crawl, number, self.serial, file=file, record_id=record_id(self.serial, number))
            for number in self.payloads
        ]
        urls = [] if self.url is None else [capture_of(self.url, self.serial)]
        needs = [] if self.needed is None else [Need(self.needed, 0, f"{self.needed}-0.warc.gz")]
        waiting = [Waiting(DIGESTS[number], 400 + self.serial) for number in self.waiting]
        return originals, self.counts, urls, needs, waiting

    def is_offered(self, model: Model) -> bool:
        return super().is_offered(model) and self.needed != self.crawl

    def call(self, index: CrawlIndex, model: Model) -> None:
        originals, counts, urls, needs, waiting = self._parts()
        index.add(self.crawl, originals, counts, urls, needs, waiting)

    def change(self, model: Model, answer: Any) -> None:
        originals, counts, urls, needs, waiting = self._parts()
        life = model.crawls[self.crawl]
        for original in originals:
            life.records.setdefault(original.digest, [original])
            life.files.add(str(original.file))
        life.counts += counts
        life.urls.update((capture.url, {capture}) for capture in urls)
        life.needs.update(needs)
        life.waiting += waiting

    def instead(self, model: Model) -> list[Step]:
        return []


@dataclass(frozen=True)
class AddFile(OnOpenCrawl):
    serial: int

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.add_file(self.crawl, f"{self.crawl}-{self.serial % 3}.warc.gz")

    def change(self, model: Model, answer: Any) -> None:
        model.crawls[self.crawl].files.add(f"{self.crawl}-{self.serial % 3}.warc.gz")


@dataclass(frozen=True)
class Rename(OnCrawl):
    """The file of a crawl with a number, in the order of names."""

    number: int
    serial: int

    is_urgent = True

    def _old(self, model: Model) -> str:
        files = sorted(model.crawls[self.crawl].files)
        return files[self.number % len(files)]

    def is_offered(self, model: Model) -> bool:
        life = model.crawls.get(self.crawl)
        return (
            life is not None
            and bool(life.files)
            and life.state in ("uncommitted", "committed")
            and not life.is_being_imported
        )

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.rename_file(self.crawl, self._old(model), f"moved/{self.serial}.warc.gz")

    def change(self, model: Model, answer: Any) -> None:
        old, new = self._old(model), f"moved/{self.serial}.warc.gz"
        life = model.crawls[self.crawl]
        life.files = {new if name == old else name for name in life.files}
        for originals in life.records.values():
            originals[:] = [
                replace(original, file=new) if original.file == old else original for original in originals
            ]
        for other in model.crawls.values():
            other.needs = {
                replace(need, file=new) if (need.crawl, need.file) == (self.crawl, old) else need
                for need in other.needs
            }


@dataclass(frozen=True)
class SetContainer(OnOpenCrawl):
    """The one container of a crawl; ``is_packed`` gives it hash and size."""

    is_packed: bool

    def call(self, index: CrawlIndex, model: Model) -> None:
        if self.is_packed:
            index.set_container(self.crawl, f"{self.crawl}.wacz", "ab" * 32, 77)
        else:
            index.add_container(self.crawl, f"{self.crawl}.wacz")

    def change(self, model: Model, answer: Any) -> None:
        packed = {"filename": f"{self.crawl}.wacz", "hash": "ab" * 32, "size": 77}
        containers = model.crawls[self.crawl].containers
        if self.is_packed:
            containers[0] = packed
        else:
            containers.setdefault(0, {"filename": f"{self.crawl}.wacz"})


@dataclass(frozen=True)
class SetCounts(OnOpenCrawl):
    serial: int

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.set_counts(self.crawl, Counts(self.serial, 3, 2, 1))

    def change(self, model: Model, answer: Any) -> None:
        model.crawls[self.crawl].counts = Counts(self.serial, 3, 2, 1)


@dataclass(frozen=True)
class Mark(OnOpenCrawl):
    flag: bool

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.mark_incomplete(self.crawl, self.flag)

    def change(self, model: Model, answer: Any) -> None:
        model.crawls[self.crawl].is_incomplete = self.flag


@dataclass(frozen=True)
class Reset(OnOpenCrawl):
    @property
    def dirty(self) -> tuple[str, ...]:
        return (self.crawl,)

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.reset(self.crawl)

    def change(self, model: Model, answer: Any) -> None:
        life = model.crawls[self.crawl]
        life.records, life.counts, life.urls = {}, Counts(), {}
        life.needs, life.waiting = set(), []

    def instead(self, model: Model) -> list[Step]:
        return [self, Cancel(self.crawl)]


@dataclass(frozen=True)
class Commit(OnCrawl):
    def is_allowed(self, model: Model) -> bool:
        return model.state_of(self.crawl) == "committed" or model.open(self.crawl) is not None

    def call(self, index: CrawlIndex, model: Model) -> None:
        # Without resolving, which is a step of its own.
        index._commit(self.crawl, None, None)

    def change(self, model: Model, answer: Any) -> None:
        model.crawls[self.crawl].state = "committed"

    def instead(self, model: Model) -> list[Step]:
        if model.state_of(self.crawl) == "committed":
            return [self]
        return [self, Cancel(self.crawl), Start(self.crawl)]


@dataclass(frozen=True)
class Cancel(OnCrawl):
    @property
    def dirty(self) -> tuple[str, ...]:
        return (self.crawl,)

    def is_allowed(self, model: Model) -> bool:
        return model.state_of(self.crawl) in ("uncommitted", "canceled")

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.cancel(self.crawl)

    def change(self, model: Model, answer: Any) -> None:
        if model.state_of(self.crawl) != "canceled":
            model.forget(self.crawl)
            model.crawls[self.crawl] = Life("canceled")

    def instead(self, model: Model) -> list[Step]:
        return [self] if model.state_of(self.crawl) == "canceled" else [self, Nothing()]


@dataclass(frozen=True)
class Replace(Step):
    crawl: str
    by: str

    @property
    def crawls(self) -> tuple[str, ...]:
        return (self.crawl, self.by)

    @property
    def dirty(self) -> tuple[str, ...]:
        return (self.by,)

    def is_offered(self, model: Model) -> bool:
        by = model.open(self.by)
        return (
            self.crawl != self.by
            and model.state_of(self.crawl) == "committed"
            and by is not None
            and not by.is_concurrent
            and not model.begun(self.crawl)
            and model.crawls[self.crawl].last_end <= by.ends_before
            and self.crawl not in {need.crawl for need in by.needs}
        )

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.replace(self.crawl, self.by)

    def change(self, model: Model, answer: Any) -> None:
        if self.by not in model.crawls:
            return  # it was done before it was cut off
        by, life = model.crawls.pop(self.by), model.crawls[self.crawl]
        life.records = {
            digest: [replace(original, crawl=self.crawl) for original in originals]
            for digest, originals in by.records.items()
        }
        life.counts, life.urls, life.needs = by.counts, by.urls, by.needs
        life.waiting, life.files = by.waiting, by.files


@dataclass(frozen=True)
class Purge(Step):
    purged: tuple[str, ...]

    @property
    def crawls(self) -> tuple[str, ...]:
        return self.purged

    def is_allowed(self, model: Model) -> bool:
        return all(model.state_of(crawl) != "uncommitted" for crawl in self.purged)

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.purge(self.purged)

    def change(self, model: Model, answer: Any) -> None:
        for crawl in self.purged:
            if crawl in model.crawls:
                model.forget(crawl)
                del model.crawls[crawl]

    @property
    def dirty(self) -> tuple[str, ...]:
        return self.purged


@dataclass(frozen=True)
class Resolve(Step):
    is_urgent = True

    @property
    def crawls(self) -> tuple[str, ...]:
        return CRAWLS

    def is_offered(self, model: Model) -> bool:
        # Whether a crawl that is not committed may still lose what is referred to, the index cannot know.
        return not any(life.is_concurrent and life.state == "uncommitted" for life in model.crawls.values())

    def call(self, index: CrawlIndex, model: Model) -> tuple[int, dict[str, set[Need]]]:
        resolved = index.resolve()
        return resolved, {crawl: set(index.needs(crawl)) for crawl in model.crawls}

    def change(self, model: Model, answer: Any) -> None:
        resolved, needs = answer
        expected = 0
        for crawl, life in model.crawls.items():
            kept, allowed = [], set(life.needs)
            for revisit in life.waiting:
                own = life.records.get(revisit.digest)
                found = own or model.visible(revisit.digest, crawl)
                if not found:
                    kept.append(revisit)
                    continue
                expected += 1
                life.counts += Counts(conserved_size=max(0, found[0].size - revisit.size))
                if own is None:
                    possible = {Need(other.crawl, other.wacz_index, other.file) for other in found}
                    assert needs[crawl] & possible, f"{crawl} does not need any of {possible}"
                    allowed |= possible
            assert life.needs <= needs[crawl] <= allowed, f"{crawl} needs {needs[crawl]}, not {allowed}"
            life.waiting, life.needs = kept, needs[crawl]
        # One that was cut off before had resolved some.
        assert resolved <= expected, f"{resolved} revisits were resolved, not {expected}"


@dataclass(frozen=True)
class Rebuild(Step):
    """The merged index, made anew."""

    @property
    def crawls(self) -> tuple[str, ...]:
        return ()

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.rebuild_merged()

    def change(self, model: Model, answer: Any) -> None:
        pass


# Import


@dataclass(frozen=True)
class OnSource(Step):
    number: int

    @property
    def source(self) -> Source:
        return SOURCES[self.number]

    @property
    def crawls(self) -> tuple[str, ...]:
        return (self.source.crawl,)

    @property
    def dirty(self) -> tuple[str, ...]:
        return (self.source.crawl,)

    def is_offered(self, model: Model) -> bool:
        hidden = model.hidden.get(self.source.name)
        return (
            hidden is not None
            and model.is_held(self.source)
            and hidden.token == model.tokens.get(self.source.name, "")
        )


@dataclass(frozen=True)
class Begin(OnSource):
    def is_offered(self, model: Model) -> bool:
        return self.source.name not in model.done and model.is_held(self.source)

    def is_allowed(self, model: Model) -> bool:
        life = model.crawls.get(self.source.crawl)
        return life is None or life.state == "canceled" or life.is_imported

    def call(self, index: CrawlIndex, model: Model) -> int:
        return index.begin_source(model.held(self.source), "stored")

    def change(self, model: Model, answer: Any) -> None:
        crawl = self.source.crawl
        model.drop(self.source)
        if model.state_of(crawl) in ("unknown", "canceled"):
            model.crawls[crawl] = Life("uncommitted", is_imported=True)
        life = model.crawls[crawl]
        model.hidden[self.source.name] = Hidden(answer, token=model.held(self.source).token)
        if answer is not None and self.source.is_container:
            assert answer not in life.containers, f"{self.source.name} got the place {answer} of another one"
            life.containers[answer] = {"filename": self.source.name}
            life.taken.discard(answer)
        elif answer is not None:
            assert answer == 0

    def instead(self, model: Model) -> list[Step]:
        return [self, Drop(self.number)]


@dataclass(frozen=True)
class AddImported(OnSource):
    serial: int
    payloads: tuple[int, ...] = ()
    url: int | None = None

    def _originals(self, model: Model) -> list[Original]:
        place = model.hidden[self.source.name].place or 0
        return [
            original_of(
                self.source.crawl,
                number,
                self.serial,
                file=f"{self.source.place}/{number}.warc.gz",
                wacz_index=place,
                status=404 if number == 1 else None,
                form="sha-256 hex" if number == 2 else "",
            )
            for number in self.payloads
        ]

    def _urls(self) -> list[UrlCapture]:
        return [] if self.url is None else [capture_of(self.url, self.serial)]

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.add_imported(model.held(self.source), self._originals(model), self._urls())

    def change(self, model: Model, answer: Any) -> None:
        crawl, hidden = self.source.crawl, model.hidden[self.source.name]
        # The first one wins, also over one of another source, unless that may still be dropped.
        known = model.crawls[crawl].records
        for original in self._originals(model):
            if original.digest not in known:
                if any(original.digest in model.hidden[other.name].records for other in model.begun(crawl)):
                    hidden.second.add(original.digest)
                hidden.records.setdefault(original.digest, original)
        hidden.urls += self._urls()

    def instead(self, model: Model) -> list[Step]:
        return [self, Drop(self.number), Begin(self.number)]


@dataclass(frozen=True)
class End(OnSource):
    serial: int
    needed: str | None = None
    waiting: tuple[int, ...] = ()

    def _parts(self) -> tuple[Counts, list[Need], list[Waiting]]:
        counts = Counts(10 + len(self.waiting), len(self.waiting), self.serial, 1_000)
        needs = [] if self.needed in (None, self.source.crawl) else [Need(str(self.needed), 0, None)]
        return counts, needs, [Waiting(DIGESTS[number], 500 + self.serial) for number in self.waiting]

    def is_offered(self, model: Model) -> bool:
        return super().is_offered(model) or self.source.name in model.done

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.end_source(model.held(self.source), *self._parts())

    def change(self, model: Model, answer: Any) -> None:
        if self.source.name in model.done:
            return
        counts, needs, waiting = self._parts()
        hidden, life = model.hidden.pop(self.source.name), model.crawls[self.source.crawl]
        life.state = "committed"
        model.ends += 1
        life.last_end = model.ends
        for digest, original in hidden.records.items():
            life.records.setdefault(digest, []).append(original)
        for capture in hidden.urls:
            life.urls.setdefault(capture.url, set()).add(capture)
        life.files |= {str(original.file) for original in hidden.records.values()}
        life.counts += counts
        life.needs |= set(needs)
        life.waiting += waiting
        if self.source.is_container and hidden.place is not None:
            life.containers[hidden.place] = {
                "filename": self.source.name,
                "hash": self.source.hash,
                "size": self.source.size,
            }
        model.done.add(self.source.name)
        _leave_queue(model, self.source.name)

    def instead(self, model: Model) -> list[Step]:
        return [self] if self.source.name in model.done else [self, Drop(self.number), Begin(self.number)]


@dataclass(frozen=True)
class Drop(OnSource):
    def is_offered(self, model: Model) -> bool:
        return self.source.name not in model.done and model.is_held(self.source)

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.drop_source(model.held(self.source))

    def change(self, model: Model, answer: Any) -> None:
        model.drop(self.source)

    def instead(self, model: Model) -> list[Step]:
        return [self, Begin(self.number)]


# Queue


@dataclass(frozen=True)
class Queue(Step):
    numbers: tuple[int, ...]

    is_urgent = True

    @property
    def crawls(self) -> tuple[str, ...]:
        return ()

    def call(self, index: CrawlIndex, model: Model) -> int:
        return index.queue_sources([SOURCES[number] for number in self.numbers])

    def change(self, model: Model, answer: Any) -> None:
        added = 0
        for number in self.numbers:
            name = SOURCES[number].name
            if name not in model.queue and name not in model.claimed and name not in model.done:
                model.queue.append(name)
                added += 1
        assert answer is None or answer <= added


@dataclass(frozen=True)
class Claim(Step):
    @property
    def crawls(self) -> tuple[str, ...]:
        return ()

    def is_offered(self, model: Model) -> bool:
        return True

    def call(self, index: CrawlIndex, model: Model) -> Source | None:
        return index.claim_source(600)

    def change(self, model: Model, answer: Any) -> None:
        if not model.queue:
            assert answer is None, answer
            return
        name = model.queue.pop(0)
        model.claimed.append(name)
        model.tokens[name] = None if answer is None else answer.token
        assert answer is None or answer in SOURCES

    def instead(self, model: Model) -> list[Step]:
        return []

    is_repeatable = False


@dataclass(frozen=True)
class Release(Step):
    number: int

    @property
    def crawls(self) -> tuple[str, ...]:
        return ()

    def is_offered(self, model: Model) -> bool:
        return model.is_held(SOURCES[self.number])

    def call(self, index: CrawlIndex, model: Model) -> None:
        index.release_source(model.held(SOURCES[self.number]))

    def change(self, model: Model, answer: Any) -> None:
        _leave_queue(model, SOURCES[self.number].name)


def _leave_queue(model: Model, name: str) -> None:
    model.queue = [other for other in model.queue if other != name]
    model.claimed = [other for other in model.claimed if other != name]


# Values


def record_id(serial: int, number: int) -> str:
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{serial} {number}')}>"


def original_of(crawl: str, number: int, serial: int, **more: Any) -> Original:
    return Original(
        digest=DIGESTS[number],
        crawl=crawl,
        date=f"20260801{_clock(serial)}123",
        url=f"https://example.org/{number}?{serial}",
        size=SIZES[number],
        offset=serial,
        **more,
    )


def capture_of(url: int, serial: int) -> UrlCapture:
    digest = DIGESTS[serial % len(DIGESTS)]
    return UrlCapture(URLS[url], digest, f"20260801{_clock(serial)}", b"v%d" % serial)


def _clock(serial: int) -> str:
    return f"{serial // 3_600:02}{serial // 60 % 60:02}{serial % 60:02}"


def take(step: Step, index: CrawlIndex, model: Model) -> Model:
    """Do a step to its end; the model after it."""
    is_allowed = step.is_allowed(model)
    try:
        answer = step.call(index, model)
    except CrawlStateError as error:
        if is_allowed:
            raise AssertionError(f"{step} was refused.") from error
        return model
    assert is_allowed, f"{step} was not refused"
    return step.changed(model, answer)
