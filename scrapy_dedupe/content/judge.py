"""Judges texts: first whether the same text was seen before, then whether a similar one was.

The key of a text in the exact layer is the first 16 bytes of the SHA-256 of the canonicaliser's name and version and
the canonical text. The near layer (:mod:`.signature`) is used only for new texts of at least ``min_chars`` characters.
A text is compared only with kept texts, and a near copy is not kept. Therefore a chain of small changes never makes
two dissimilar pages copies of each other.

Neither two pages of one template nor two pages whose common text is on many pages of their host (:mod:`.template`) are
near copies: the whole texts must be similar, and the title, the URL and the rest of the texts must show that it is the
same page (:mod:`.identity`; :class:`.Signature` has the rule). Bands are therefore hashed together with the title, the
words of the URL or its tail. If the title or the words say nothing, bands of the rest replace theirs.

A page without text, or with text only in its title and ``<noscript>``, is not judged: otherwise all shells of pages
that JavaScript fills would be copies of each other. Its verdict is ``unknown`` with the reason ``no text``, and
nothing is stored. The same applies to a page whose markup would take too long to parse (reason ``markup``).

If texts of QuarryCore were imported into the store, new pages are also looked up among these texts
(:mod:`.quarrycore`).
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.stores.base import NearAnswer, SeenText, Signature, TextMatch
from scrapy_dedupe.stores.content_values import NO_REST, NOTHING, SameKeys, compared

from . import quarrycore, signature
from .banding import Banding
from .canonical import read, version
from .identity import Identity, identity_of, marks_of, names_of
from .markup import HostileMarkup
from .options import ALL_TYPES, JudgeOptions, NearOptions
from .template import MIN_RARE, TemplateGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from scrapy_dedupe.stores.base import ContentStore

    from .signature import Hashes

logger = logging.getLogger(__name__)

# If more texts than these are known, the store is asked for them first: a call takes less time than their signatures.
_FEW_KNOWN = 0.2

# The rests of two texts may differ this much more than the whole texts if their titles or the words of their URLs are equal.
NAMED_MARGIN = 0.15


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one page.

    ``kind``
        ``unique``: the text is new. ``unchanged``: this URL had this text before. ``exact``: another URL had this
        text. ``near``: a kept text is similar. ``unknown``: the page was not judged; ``reason`` gives the cause.
    ``original_url``, ``original_crawl``, ``original_seen``
        The first capture of the original text: its URL, the id of its crawl, and its time (an aware
        ``datetime`` in UTC). None for ``unique`` and ``unknown``.
    ``same_url``
        Whether this URL had the original text in an earlier capture.
    ``similarity``
        The estimated Jaccard similarity to the original: 1.0 for ``unchanged`` and ``exact``, None for
        ``unique`` and ``unknown``.
    ``pending``
        Whether the page with the original text is still being processed, and may fail.
    ``rest_similarity``, ``same_title``, ``same_path``, ``same_words``
        Why a page is ``near``: the estimated similarity of the texts without the templates of their hosts; whether the
        titles are equal except for numbers; whether the last two segments of the paths, and the queries are equal;
        whether the URLs contain the same words of the texts. Each is None for other verdicts, and if there is nothing to
        compare.
    """

    kind: str
    original_url: str | None = None
    original_crawl: str | None = None
    original_seen: datetime | None = None
    same_url: bool = False
    similarity: float | None = None
    reason: str | None = None
    pending: bool = False
    rest_similarity: float | None = None
    same_title: bool | None = None
    same_path: bool | None = None
    same_words: bool | None = None

    @property
    def is_duplicate(self) -> bool:
        """Whether a page that succeeded had the same or nearly the same text.

        False while the original is pending: it may fail, and then this page is the only one with the text.
        """
        return self.kind in ("unchanged", "exact", "near") and not self.pending

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for logs and JSON; the time is ISO 8601 in UTC with milliseconds."""
        seen = self.original_seen
        return {
            "kind": self.kind,
            "original_url": self.original_url,
            "original_crawl": self.original_crawl,
            "original_seen": None
            if seen is None
            else f"{seen:%Y-%m-%dT%H:%M:%S}.{seen.microsecond // 1000:03}Z",
            "same_url": self.same_url,
            "similarity": None if self.similarity is None else round(self.similarity, 4),
            "reason": self.reason,
            "pending": self.pending,
            "rest_similarity": None if self.rest_similarity is None else round(self.rest_similarity, 4),
            "same_title": self.same_title,
            "same_path": self.same_path,
            "same_words": self.same_words,
        }


@dataclass(frozen=True, slots=True)
class Page:
    """A page to judge: its decoded body, its kind (one of :data:`.canonical.KINDS`), and its origin.

    ``mime`` is its content type, ``seen_ms`` the time of the capture in milliseconds since the epoch (UTC). ``source`` is
    the key of the undecoded page (:meth:`Judge.source_of`), with which :meth:`Judge.recall` finds the text again.
    """

    url: str
    text: str
    crawl: str
    kind: str = "html"
    mime: str = "text/html"
    seen_ms: int | None = None
    source: bytes = b""


@dataclass(frozen=True, slots=True)
class PageReading:
    """The result of reading a page, before the store is used. Without ``capture`` the page is not judged: ``reason``.

    ``imported`` are the keys that the text has if it was imported. ``names`` are the title and the main heading, as far
    as the page has them, without numbers.
    """

    text: str = ""
    mime: str = ""
    capture: SeenText | None = None
    reason: str | None = None
    imported: tuple[bytes, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and the capture to pass to :meth:`Judge.settle` when the page has succeeded or failed.

    ``is_template``: a known text is similar, but it belongs to another page made from the same template. ``is_bare``: the
    page is new and has hardly any text outside the template of its host.
    """

    verdict: Verdict
    capture: SeenText | None = None
    is_template: bool = False
    is_bare: bool = False

    @classmethod
    def unknown(cls, reason: str | None) -> Judgement:
        return cls(Verdict("unknown", reason=reason))


class Judge:
    """Judges pages against one store. Raises :class:`StoreRefused` if its near layer has other parameters.

    ``measure`` is called with the name of a step (``canonical``, ``exact``, ``near``) and its duration in seconds, once
    per page. ``recalls``: the store has the texts of earlier pages, so :meth:`recall` may find some.
    """

    def __init__(
        self,
        store: ContentStore,
        options: JudgeOptions | None = None,
        measure: Callable[[str, float], None] | None = None,
    ) -> None:
        self._store = store
        self._options = options or JudgeOptions()
        self._namespace = version(self._options.canonicalizer)
        self._measure = measure
        stored = store.parameters()
        # A store of an earlier version goes on without identities, since its bands are of texts only.
        self._signature_version = signature.VERSION
        if signature.EARLIER_VERSION in stored.values():
            self._signature_version = signature.EARLIER_VERSION
            if self._options.near_identity:
                self._options = replace(self._options, near_identity=False)
                logger.warning(
                    "The texts in the store were remembered by an earlier version of scrapy-dedupe, so titles and URLs do"
                    " not help to decide which pages are near copies. To use them, start again with an empty store:"
                    " scrapy dedupe content purge --all"
                )
        self._has_imported = quarrycore.PARAMETERS.items() <= stored.items()
        self.recalls = store.has_sources()
        self._layers = self._open_layers(stored)
        self._guard = (
            TemplateGuard(store.load_template, store.save_template) if self._options.template_guard else None
        )
        self._known_share = 0.0
        store.remember_for(self._options.remember_for_s)

    def read(self, page: Page) -> PageReading:
        """Canonicalise *page*. Does not use the store."""
        start = time.perf_counter()
        try:
            canonical = read(page.kind, page.text, self._options.canonicalizer)
            looks_up_imported = self._has_imported and page.kind in quarrycore.KINDS
            imported = quarrycore.keys_of_page(page.text) if looks_up_imported else ()
        except HostileMarkup:
            return PageReading(reason="markup")
        if not canonical.text or canonical.is_shell or canonical.text.isspace():
            return PageReading(reason="no text")
        seen_ms = time.time_ns() // 1_000_000 if page.seen_ms is None else page.seen_ms
        digest = text_digest(self._namespace, canonical.text)
        capture = SeenText(digest, page.url, page.crawl, seen_ms, source=page.source)
        self._took("canonical", time.perf_counter() - start, 1)
        names = names_of(canonical.title, canonical.heading)
        return PageReading(canonical.text, page.mime, capture, imported=imported, names=names)

    def source_of(self, kind: str, encoding: str, body: bytes) -> bytes:
        """The key of an undecoded page: of everything that its canonical text depends on."""
        return sha256(f"{self._namespace}\0{kind}\0{encoding}\0".encode() + body).digest()[:16]

    def recall(self, pages: Sequence[tuple[str, str, bytes]]) -> list[Judgement | None]:
        """Return the verdict on each page whose text is known by its source, without reading the text; otherwise None.

        Each page is its URL, crawl and source (:meth:`source_of`). The verdict is that of :meth:`decide`.
        """
        now_ms = time.time_ns() // 1_000_000
        start = time.perf_counter()
        asked = [SeenText(b"", url, crawl, now_ms, source=source) for url, crawl, source in pages]
        found = self._store.recall(asked)
        known = [
            None if match is None else _exact(replace(capture, digest=match.digest), match)
            for capture, match in zip(asked, found, strict=True)
        ]
        recalled = len(known) - known.count(None)
        self._took("exact", time.perf_counter() - start, recalled)
        return known

    def decide(self, readings: Sequence[PageReading], *, pending: bool = True) -> list[Judgement]:
        """Return the verdict on each of *readings*, in their order, and remember new texts.

        New texts are pending until :meth:`settle` reports that their pages succeeded; with ``pending=False`` they
        are confirmed at once. This takes one call of the store for any number of pages, two if many texts are known;
        with ``pending=False`` more, if there are copies or a URL repeats. Raises :class:`~scrapy_dedupe.errors.StoreError`.
        """
        if pending:
            return self._decide(readings, True)
        judgements: list[Judgement] = []
        for some in _with_different_urls(readings):
            judged = self._decide(some, False)
            # New texts are confirmed already. This records the other URLs that had a known text.
            self.settle([it.capture for it in judged if it.capture and it.verdict.kind != "unique"])
            judgements += judged
        return judgements

    def find(self, readings: Sequence[PageReading]) -> list[Judgement]:
        """Like :meth:`decide`, but without writing to the store."""
        return self._decide(readings, None)

    def settle(
        self,
        passed: Sequence[SeenText],
        failed: Sequence[SeenText] = (),
        dropped: Sequence[SeenText] = (),
    ) -> None:
        """Confirm the texts of pages that succeeded; forget those of pages that failed or were dropped."""
        self._store.settle(passed, failed, dropped)

    def save(self) -> None:
        """Save the learned templates of hosts."""
        if self._guard is not None:
            self._guard.save()

    def template_share(self, reading: PageReading, url: str) -> float:
        """The share of a text's shingles that are template on the host of *url*. Does not learn from the text."""
        layer = self._layer_of(reading.mime)
        if self._guard is None or layer is None or not reading.text:
            return 0.0
        hashes = signature.shingle_hashes(reading.text, layer.options.shingle_size)
        return float(self._guard.template(f"{layer.namespace} {_host(url)}", hashes).mean())

    def compared(self, verdict: Verdict, reading: PageReading, kept: PageReading) -> Verdict:
        """The verdict ``near`` on a text with what was compared, by the templates as they are known now."""
        assert reading.capture is not None
        assert kept.capture is not None
        one, other = self._candidate(reading, reading.capture), self._candidate(kept, kept.capture)
        if one is None or other is None or one.signature is None or other.signature is None:
            return verdict
        return _with_parts(verdict, one, compared(one.signature, other.signature))

    def _decide(self, readings: Sequence[PageReading], pending: bool | None) -> list[Judgement]:
        judgements = [Judgement.unknown(reading.reason) for reading in readings]
        known = [
            (place, reading, reading.capture) for place, reading in enumerate(readings) if reading.capture
        ]
        if not known:
            return judgements
        answers, candidates = self._ask(known, pending)
        for number, (place, _, capture) in enumerate(known):
            answer, candidate = answers[number], candidates.get(number)
            if isinstance(answer, TextMatch):
                judgements[place] = _exact(capture, answer)
            elif candidate is None:
                judgements[place] = Judgement(Verdict("unique"), capture)
            else:
                judgements[place] = self._judge_near(candidate, capture, answer, pending is not None)
        self._judge_imported(judgements, known)
        return judgements

    def _ask(
        self, known: Sequence[tuple[int, PageReading, SeenText]], pending: bool | None
    ) -> tuple[list[TextMatch | NearAnswer | None], dict[int, _Candidate | None]]:
        """The answers of the store, and the near candidates by their position in *known*."""
        captures = [capture for _, _, capture in known]
        answers: list[TextMatch | NearAnswer | None] = [None] * len(known)
        started = time.perf_counter()
        if pending is None or self._known_share > _FEW_KNOWN:
            answers = [*self._store.find(captures)]
        exact_s = time.perf_counter() - started
        new = [number for number, answer in enumerate(answers) if answer is None]
        started = time.perf_counter()
        candidates = {number: self._candidate(known[number][1], captures[number]) for number in new}
        signatures = [None if it is None else it.signature for it in candidates.values()]
        near_s = time.perf_counter() - started
        started = time.perf_counter()
        asked = [captures[number] for number in new]
        if pending is None:
            claimed = self._store.find(asked, signatures)
        else:
            claimed = self._store.claim(asked, signatures, pending=pending)
        both_s = time.perf_counter() - started
        for number, answer in zip(new, claimed, strict=True):
            answers[number] = answer
        known_share = sum(isinstance(answer, TextMatch) for answer in answers) / len(answers)
        self._known_share += (known_share - self._known_share) / 8
        compared = sum(
            it is not None and not isinstance(answers[number], TextMatch) for number, it in candidates.items()
        )
        self._took("exact", exact_s + both_s, len(known))
        self._took("near", near_s + both_s, compared)
        return answers, candidates

    def _judge_imported(
        self, judgements: list[Judgement], known: Sequence[tuple[int, PageReading, SeenText]]
    ) -> None:
        """Look up the new texts among the imported ones. They have been judged as usual already."""
        asked = [
            (place, capture, key)
            for place, reading, capture in known
            if judgements[place].verdict.kind in ("unique", "near")
            for key in reading.imported
        ]
        if not asked:
            return
        found = self._store.find([replace(capture, digest=key) for _, capture, key in asked])
        for (place, capture, _), seen in zip(asked, found, strict=True):
            if isinstance(seen, TextMatch) and judgements[place].verdict.kind not in ("exact", "unchanged"):
                judgements[place] = _exact(capture, seen)

    def _judge_near(
        self, candidate: _Candidate, capture: SeenText, answer: NearAnswer | None, is_claim: bool
    ) -> Judgement:
        if answer is None:
            # All of the text is template: the store was not asked.
            answer = NearAnswer()
        seen = answer.seen
        # A page that is near to its own previous version is the same page: it must not be counted twice.
        if self._guard is not None and is_claim and not (seen is not None and seen.had_this_url):
            self._guard.count(candidate.host, candidate.counted)
        if seen is None:
            is_template = answer.is_template or not candidate.has_rest
            return Judgement(Verdict("unique"), capture, is_template, candidate.is_bare)
        # The store returns the share of equal row bytes, which includes equality by chance.
        rows = candidate.layer.options.num_perm
        similarity = signature.similarity(round(seen.similarity * rows), rows)
        judgement = _judgement("near", capture, seen, similarity)
        return replace(judgement, verdict=_with_parts(judgement.verdict, candidate, answer))

    def _candidate(self, reading: PageReading, capture: SeenText) -> _Candidate | None:
        layer = self._layer_of(reading.mime)
        if layer is None or len(reading.text) < layer.options.min_chars:
            return None
        hashes = signature.shingle_hashes(reading.text, layer.options.shingle_size)
        host = f"{layer.namespace} {_host(capture.url)}"
        is_template, is_bare, has_rest = None, False, True
        if self._guard is not None:
            is_template, is_bare = self._guard.classify(host, hashes)
            has_rest = len(hashes) - int(np.count_nonzero(is_template)) >= MIN_RARE
            if not is_template.any() or not has_rest:
                is_template = None
        if not self._options.near_identity:
            signed = layer.signature_of(capture, hashes, is_template) if has_rest else None
            return _Candidate(layer, host, hashes, signed, is_bare, has_rest)
        # A name is counted like three shingles: a single one could have the counter of a shingle of the template.
        marks = [marks_of(name) for name in reading.names]
        title = next(
            (name for name, three in zip(reading.names, marks, strict=True) if self._is_rare(host, three)), ""
        )
        identity = identity_of(capture.url, title, reading.text, has_rest=has_rest)
        signed = layer.signature_with(identity, capture, hashes, is_template)
        counted = np.concatenate((hashes, np.array(marks, np.uint32).ravel())) if marks else hashes
        return _Candidate(layer, host, counted, signed, is_bare, has_rest)

    def _is_rare(self, host: str, marks: Sequence[int]) -> bool:
        return self._guard is None or not self._guard.are_template(host, marks)

    def _layer_of(self, mime: str) -> _NearLayer | None:
        return self._layers.get(mime, self._layers[ALL_TYPES])

    def _open_layers(self, stored: Mapping[str, str]) -> dict[str, _NearLayer | None]:
        """The near layer of each content type, None if it is off."""
        layers: dict[str, _NearLayer | None] = {}
        for mime, options in self._options.near.items():
            if not options.is_on:
                layers[mime] = None
                continue
            suffix = "" if mime == ALL_TYPES else f"[{mime}]"
            banding = _banding(options, stored.get(f"near_bands{suffix}"))
            self._store.check_parameters(
                {
                    "near_identity": "on" if self._options.near_identity else "off",
                    f"near_shingle_size{suffix}": str(options.shingle_size),
                    f"near_num_perm{suffix}": str(options.num_perm),
                    f"near_bands{suffix}": f"{banding.bands} x {banding.rows}",
                    f"near_signature{suffix}": self._signature_version,
                }
            )
            layers[mime] = _NearLayer(
                options=options,
                banding=banding,
                # Few texts have the same key, so that short bands are enough.
                keyed_banding=banding.third(options.threshold, options.recall),
                namespace=self._layer_namespace(options),
                min_equal=signature.min_equal(options.threshold, options.num_perm),
                min_equal_named=signature.min_equal(options.threshold - NAMED_MARGIN, options.num_perm),
            )
        return layers

    def _layer_namespace(self, options: NearOptions) -> str:
        # Texts with other shingle sizes never share a band; signatures of another length cannot be compared.
        default = NearOptions()
        if (options.shingle_size, options.num_perm) == (default.shingle_size, default.num_perm):
            return self._namespace
        return f"{self._namespace},{options.shingle_size},{options.num_perm}"

    def _took(self, step: str, seconds: float, pages: int) -> None:
        if self._measure is not None:
            for _ in range(pages):
                self._measure(step, seconds / pages)


@dataclass(frozen=True, slots=True)
class _NearLayer:
    """The near layer for one content type. ``keyed_banding`` is for bands that are hashed with a key."""

    options: NearOptions
    banding: Banding
    keyed_banding: Banding
    namespace: str
    min_equal: int
    min_equal_named: int

    def signature_of(
        self, capture: SeenText, hashes: Hashes, is_template: NDArray[np.bool_] | None
    ) -> Signature:
        """The signature of a text for the store, without an identity."""
        rare, rows = self._rows(hashes, is_template)
        return self._signature(capture, rare, rows, *self._bands(rare, rows, self.banding))

    def signature_with(
        self, identity: Identity, capture: SeenText, hashes: Hashes, is_template: NDArray[np.bool_] | None
    ) -> Signature:
        """The signature of a text for the store, with its identity."""
        rare, rows = self._rows(hashes, is_template)
        bands, more_bands = list[bytes](), list[bytes]()
        name = identity.words if identity.name == NOTHING else identity.name
        keys = [identity.tail, identity.title, name]
        if identity.words == NO_REST:
            del keys[1:]
        elif missing := keys[1:].count(NOTHING):
            # For each of these keys that says nothing, there are as many bands of the rest.
            number = missing * self.keyed_banding.bands
            bands, more_bands = self._bands(rare, rows, Banding(number, self.banding.rows))
        for place, key in enumerate(keys):
            if key != NOTHING:
                bands += self._keyed_bands(rows, key, place)
        return self._signature(capture, rare, rows, bands, more_bands, bytes(identity))

    def _rows(self, hashes: Hashes, is_template: NDArray[np.bool_] | None) -> tuple[Hashes, Hashes]:
        """The rows of the rest, and of the whole text."""
        if is_template is not None:
            return signature.rows_of_parts(hashes, is_template, self.options.num_perm)
        rows = signature.rows_of(hashes, self.options.num_perm)
        return rows, rows

    def _bands(self, rare: Hashes, rows: Hashes, banding: Banding) -> tuple[list[bytes], list[bytes]]:
        if rare is rows:
            return self._hashes(rows, banding), []
        # Also look in the bands of texts that were kept before the template was known.
        return self._hashes(rare, banding), self._hashes(rows, banding)

    def _keyed_bands(self, rows: Hashes, key: bytes, place: int) -> list[bytes]:
        # Each key has its own rows.
        bands, length = self.keyed_banding.bands, self.keyed_banding.rows
        first = bands * (place + 2)
        return signature.band_hashes(
            rows[place * bands * length :], self.keyed_banding, self.namespace, key, first
        )

    def _hashes(self, rows: Hashes, banding: Banding) -> list[bytes]:
        return signature.band_hashes(rows, banding, self.namespace)

    def _signature(
        self,
        capture: SeenText,
        rare: Hashes,
        rows: Hashes,
        bands: Sequence[bytes],
        more_bands: Sequence[bytes],
        identity: bytes = b"",
    ) -> Signature:
        return Signature(
            capture=capture,
            bands=bands,
            rows=signature.row_bytes(rows),
            min_equal=self.min_equal,
            rare_rows=b"" if rare is rows else signature.row_bytes(rare),
            min_equal_rare=self.min_equal,
            more_bands=more_bands,
            identity=identity,
            min_equal_named=self.min_equal_named,
        )


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A new text for the near layer. ``signature`` is None if the text is not compared.

    ``counted`` are its shingle hashes, and those of its names. ``has_rest``: it has enough text outside the template.
    """

    layer: _NearLayer
    host: str
    counted: Hashes
    signature: Signature | None
    is_bare: bool
    has_rest: bool


def text_digest(namespace: str, canonical_text: str) -> bytes:
    """The key of a canonical text; *namespace* is the name and version of the canonicaliser."""
    return sha256(f"{namespace}\0{canonical_text}".encode()).digest()[:16]


def _with_different_urls(readings: Sequence[PageReading]) -> Iterator[Sequence[PageReading]]:
    """Split *readings* into parts without repeated URLs: settling a page changes what the store answers for its URL."""
    start, urls = 0, set[str]()
    for place, reading in enumerate(readings):
        if reading.capture is None:
            continue
        if reading.capture.url in urls:
            yield readings[start:place]
            start, urls = place, set()
        urls.add(reading.capture.url)
    yield readings[start:]


def _banding(options: NearOptions, stored: str | None) -> Banding:
    """The banding of the store if it reaches the wanted recall; otherwise that of the options."""
    if stored is None:
        return options.banding
    match = re.fullmatch(r"([1-9]\d{0,3}) x ([1-9]\d{0,3})", stored)
    if match is None:
        raise StoreRefused(
            f"The store has near_bands = {stored}, which no version of scrapy-dedupe writes."
            " Use another store: DEDUPE_CONTENT_STORE_URL."
        )
    banding = Banding(int(match[1]), int(match[2]))
    fits = banding.bands * banding.rows <= options.num_perm
    return banding if fits and banding.probability(options.threshold) >= options.recall else options.banding


def _exact(capture: SeenText, seen: TextMatch) -> Judgement:
    return _judgement("unchanged" if seen.had_this_url else "exact", capture, seen, 1.0)


def _judgement(kind: str, capture: SeenText, seen: TextMatch, similarity: float) -> Judgement:
    noted = SeenText(
        capture.digest, capture.url, capture.crawl, capture.seen_ms, kind, seen.digest, similarity
    )
    verdict = Verdict(
        kind,
        original_url=seen.url,
        original_crawl=seen.crawl,
        original_seen=datetime.fromtimestamp(seen.seen_ms / 1000, tz=UTC),
        same_url=seen.had_this_url,
        similarity=similarity,
        pending=seen.pending,
    )
    return Judgement(verdict, noted)


def _with_parts(verdict: Verdict, candidate: _Candidate, answer: NearAnswer) -> Verdict:
    """The verdict on a near copy, with what was compared."""
    assert candidate.signature is not None
    rows = candidate.layer.options.num_perm
    same = SameKeys.of(candidate.signature.identity, answer.identity)
    return replace(
        verdict,
        rest_similarity=None
        if answer.rest is None
        else signature.similarity(round(answer.rest * rows), rows),
        same_title=same.title,
        same_path=same.tail,
        same_words=same.words,
    )


def _host(url: str) -> str:
    """The host and port of a URL, as written; empty if the URL has none.

    >>> _host("https://Example.org:8080/a?b"), _host("https://example.org?b"), _host("nothing")
    ('example.org:8080', 'example.org', '')
    """
    # Takes a tenth of the time of urlsplit().
    _, _, rest = url.partition("://")
    for end in "/?#":
        rest = rest.partition(end)[0]
    return rest.rpartition("@")[2].lower()
