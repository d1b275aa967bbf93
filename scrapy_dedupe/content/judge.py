"""Judges texts: first whether the same text was seen before, then whether a similar one was.

Equal texts have equal keys (:mod:`.pages`). The near layer (:mod:`.candidates`) is used only for new texts of at least
``min_chars`` characters. A text is compared only with kept texts, and a near copy is not kept. Therefore a chain of
small changes never makes two dissimilar pages copies of each other.

The verdict on a page that is not judged is ``unknown``, with the reason, and nothing is stored.

If texts of QuarryCore were imported into the store, new pages are also looked up among these texts
(:mod:`.quarrycore`).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.stores.base import NearAnswer, SeenText, TextMatch
from scrapy_dedupe.stores.content_values import SameKeys, compared

from . import quarrycore, signature
from .candidates import Candidates, near_layers
from .canonical import version
from .markup import HostileMarkup
from .options import JudgeOptions
from .pages import PageReading, read_page
from .template import TemplateGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scrapy_dedupe.stores.base import ContentStore

    from .candidates import NearCandidate
    from .pages import Page

logger = logging.getLogger(__name__)

# If more texts than these are known, the store is asked for them first: a call takes less time than their signatures.
_FEW_KNOWN = 0.2


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
    ``rest_similarity``, ``same_title``, ``same_beginning``, ``same_path``, ``same_words``
        Why a page is ``near``: the estimated similarity of the texts without the templates of their hosts; whether the
        titles are equal except for numbers; if several pages of the host have this title, whether the texts begin with
        the same words; whether the last two segments of the paths, and the queries are equal; whether the URLs contain
        the same words of the texts. Each is None for other verdicts, and if there is nothing to compare.
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
    same_beginning: bool | None = None
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
            "same_beginning": self.same_beginning,
            "same_path": self.same_path,
            "same_words": self.same_words,
        }


_UNIQUE = Verdict("unique")


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
        layers = near_layers(self._options, stored)
        for layer in filter(None, layers.values()):
            store.check_parameters(
                {
                    "near_identity": "on" if self._options.near_identity else "off",
                    **layer.parameters(),
                    f"near_signature{layer.suffix}": self._signature_version,
                }
            )
        guard = (
            TemplateGuard(store.load_template, store.save_template) if self._options.template_guard else None
        )
        self._candidates = Candidates(self._options, layers, guard)
        self._known_share = 0.0
        store.remember_for(self._options.remember_for_s)

    def read(self, page: Page) -> PageReading:
        """Canonicalise *page*. Does not use the store."""
        start = time.perf_counter()
        reading = read_page(page, self._options.canonicalizer)
        if reading.capture is None:
            return reading
        if self._has_imported and page.kind in quarrycore.KINDS:
            try:
                reading = replace(reading, imported=quarrycore.keys_of_page(page.text))
            except HostileMarkup:
                return PageReading(reason="markup")
        self._took("canonical", time.perf_counter() - start, 1)
        return reading

    def source_of(self, kind: str, encoding: str, body_digest: bytes) -> bytes:
        """The key of an undecoded page: of everything that its canonical text depends on.

        ``body_digest`` is the SHA-256 of its body.
        """
        return sha256(f"{self._namespace}\0{kind}\0{encoding}\0".encode() + body_digest).digest()[:16]

    def recall(self, pages: Sequence[tuple[str, str, bytes]]) -> list[Judgement | None]:
        """Return the verdict on each page whose text is known by its source, without reading the text; otherwise None.

        Each page is its URL, crawl and source (:meth:`source_of`). The verdict is that of :meth:`decide`.
        """
        now_ms = time.time_ns() // 1_000_000
        start = time.perf_counter()
        asked = [SeenText(b"", url, crawl, now_ms, source=source) for url, crawl, source in pages]
        found = self._store.recall(asked)
        known = [
            None if match is None else _exact(capture, match)
            for capture, match in zip(asked, found, strict=True)
        ]
        recalled = len(known) - known.count(None)
        self._took("exact", time.perf_counter() - start, recalled)
        return known

    def decide(self, readings: Sequence[PageReading], *, pending: bool = True) -> list[Judgement]:
        """Return the verdict on each of *readings*, in their order, and remember new texts.

        New texts are pending until :meth:`settle` reports that their pages succeeded; with ``pending=False`` they
        are confirmed at once. This takes one call of the store for any number of pages, two if many texts are known;
        with ``pending=False`` more, if there are copies or a URL repeats. The first pages of a host take a call of their own.
        Raises :class:`~scrapy_dedupe.errors.StoreError`.
        """
        judgements: list[Judgement] = []
        for part in self._candidates.parts(readings):
            if pending:
                judgements += self._decide(part, True)
                continue
            for some in _with_different_urls(part):
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
        self._candidates.save()

    def template_share(self, reading: PageReading, url: str) -> float:
        """The share of a text's shingles that are template on the host of *url*. Does not learn from the text."""
        return self._candidates.template_share(reading, url)

    def compared(self, verdict: Verdict, reading: PageReading, kept: PageReading) -> Verdict:
        """The verdict ``near`` on a text with what was compared, by the templates as they are known now."""
        assert reading.capture is not None
        assert kept.capture is not None
        one = self._candidates.candidate(reading, reading.capture)
        other = self._candidates.candidate(kept, kept.capture)
        if one is None or other is None or one.signature is None or other.signature is None:
            return verdict
        return _with_parts(verdict, one, compared(one.signature, other.signature))

    def _decide(self, readings: Sequence[PageReading], pending: bool | None) -> list[Judgement]:
        known = [
            (place, reading, reading.capture) for place, reading in enumerate(readings) if reading.capture
        ]
        judgements = self._judgements(known, pending) if known else {}
        return [
            judgements.get(place) or Judgement.unknown(reading.reason)
            for place, reading in enumerate(readings)
        ]

    def _judgements(
        self, known: Sequence[tuple[int, PageReading, SeenText]], pending: bool | None
    ) -> dict[int, Judgement]:
        judgements: dict[int, Judgement] = {}
        answers, candidates = self._ask(known, pending)
        for number, (place, _, capture) in enumerate(known):
            answer, candidate = answers[number], candidates.get(number)
            if isinstance(answer, TextMatch):
                judgements[place] = _exact(capture, answer)
            elif candidate is None:
                judgements[place] = Judgement(_UNIQUE, capture)
            else:
                judgements[place] = self._judge_near(candidate, capture, answer, pending is not None)
        self._judge_imported(judgements, known)
        return judgements

    def _ask(
        self, known: Sequence[tuple[int, PageReading, SeenText]], pending: bool | None
    ) -> tuple[list[TextMatch | NearAnswer | None], dict[int, NearCandidate | None]]:
        """The answers of the store, and the near candidates by their position in *known*."""
        captures = [capture for _, _, capture in known]
        answers: list[TextMatch | NearAnswer | None] = [None] * len(known)
        started = time.perf_counter()
        if pending is None or self._known_share > _FEW_KNOWN:
            answers = [*self._store.find(captures)]
        exact_s = time.perf_counter() - started
        new = [number for number, answer in enumerate(answers) if answer is None]
        started = time.perf_counter()
        candidates = {
            number: self._candidates.candidate(known[number][1], captures[number]) for number in new
        }
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
        self, judgements: dict[int, Judgement], known: Sequence[tuple[int, PageReading, SeenText]]
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
        self, candidate: NearCandidate, capture: SeenText, answer: NearAnswer | None, is_claim: bool
    ) -> Judgement:
        if answer is None:
            # All of the text is template: the store was not asked.
            answer = NearAnswer()
        seen = answer.seen
        if is_claim:
            self._candidates.count(candidate, is_own_version=seen is not None and seen.had_this_url)
        if seen is None:
            is_template = answer.is_template or not candidate.has_rest
            return Judgement(_UNIQUE, capture, is_template, candidate.is_bare)
        # The store returns the share of equal row bytes, which includes equality by chance.
        rows = candidate.layer.options.num_perm
        similarity = signature.similarity(round(seen.similarity * rows), rows)
        judgement = _judgement("near", capture, seen, similarity)
        return replace(judgement, verdict=_with_parts(judgement.verdict, candidate, answer))

    def _took(self, step: str, seconds: float, pages: int) -> None:
        if self._measure is not None:
            for _ in range(pages):
                self._measure(step, seconds / pages)


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


def _exact(capture: SeenText, seen: TextMatch) -> Judgement:
    return _judgement("unchanged" if seen.had_this_url else "exact", capture, seen, 1.0)


def _judgement(kind: str, capture: SeenText, seen: TextMatch, similarity: float) -> Judgement:
    noted = SeenText(
        # A text that was found by its source is that of the match.
        capture.digest or seen.digest,
        capture.url,
        capture.crawl,
        capture.seen_ms,
        kind,
        seen.digest,
        similarity,
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


def _with_parts(verdict: Verdict, candidate: NearCandidate, answer: NearAnswer) -> Verdict:
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
        same_beginning=same.beginning,
        same_path=same.tail,
        same_words=same.words,
    )
