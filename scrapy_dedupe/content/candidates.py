"""Candidates of the near layer: the signatures of texts, with the identity of their pages and without templates.

Two pages of one template are not near copies, nor are two pages whose common text is on many pages of their host
(:mod:`.template`): the whole texts must be similar, and the title, the URL and the rest of the texts must show that they
are the same page (:mod:`.pages`; :class:`~scrapy_dedupe.stores.base.Signature` has the rule). Bands are therefore hashed
together with the title, the words of the URL or its tail. If the title or the words say nothing, bands of the rest
replace theirs.

A candidate depends on the pages of its host that were counted before, and on nothing else. A crawl and the join of
archives (:mod:`scrapy_dedupe.near`) make their candidates here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.stores.base import Signature
from scrapy_dedupe.stores.content_values import NO_REST, NOTHING

from . import signature
from .banding import Banding
from .canonical import version
from .options import ALL_TYPES, JudgeOptions, NearOptions
from .pages import Identity, beginning_at, host_of, identity_of, marks_of
from .template import MIN_RARE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from scrapy_dedupe.stores.base import SeenText

    from .pages import PageReading
    from .signature import Hashes
    from .template import TemplateGuard

# The number of shingles that are hashed at once to find the beginning of a page's own text.
_STEP: Final = 4_096

# The rests of two texts may differ this much more than the whole texts if their titles or the words of their URLs are equal.
NAMED_MARGIN: Final = 0.15


@dataclass(frozen=True, slots=True)
class NearCandidate:
    """A text for the near layer. ``signature`` is None if the text is not compared.

    ``counted`` are its shingle hashes, and those of its names. ``is_bare``: it has hardly any text outside the template
    of its host. ``has_rest``: it has enough text outside the template.
    """

    layer: NearLayer
    host: str
    counted: Hashes
    signature: Signature | None
    is_bare: bool
    has_rest: bool


class Candidates:
    """Makes candidates. *layers* are those of :func:`near_layers`; without *guard* no text is template."""

    def __init__(
        self, options: JudgeOptions, layers: Mapping[str, NearLayer | None], guard: TemplateGuard | None
    ) -> None:
        self._has_identity = options.near_identity
        self._layers = layers
        self._guard = guard

    def layer_of(self, reading: PageReading) -> NearLayer | None:
        """The near layer that compares a text; None if its type is not compared, or if it is too short."""
        layer = self._layers.get(reading.mime, self._layers[ALL_TYPES])
        return layer if layer is not None and len(reading.text) >= layer.options.min_chars else None

    def parts(self, readings: Sequence[PageReading]) -> Iterator[Sequence[PageReading]]:
        """Split *readings*, so that the first pages of a host are counted before others are compared with them.

        Otherwise neither the template nor the common title of a new host would be known to a whole batch.
        """
        start, first = 0, defaultdict[str, set[bytes]](set)
        for place, reading in enumerate(readings):
            layer = self.layer_of(reading)
            if self._guard is None or layer is None or reading.capture is None:
                continue
            host = layer.host_key(reading.capture.url)
            # Copies are not counted.
            digest = reading.capture.digest
            if (missing := self._guard.missing_pages(host)) > 0 and digest not in first[host]:
                if len(first[host]) == missing:
                    yield readings[start:place]
                    start = place
                    first.clear()
                first[host].add(digest)
        yield readings[start:]

    def candidate(self, reading: PageReading, capture: SeenText) -> NearCandidate | None:
        """The candidate for a text by the templates that are known now; None if no layer compares it."""
        layer = self.layer_of(reading)
        if layer is None:
            return None
        hashes = signature.shingle_hashes(reading.text, layer.options.shingle_size)
        host = layer.host_key(capture.url)
        is_template, is_bare, has_rest = None, False, True
        if self._guard is not None:
            is_template, is_bare = self._guard.classify(host, hashes)
            template = int(np.count_nonzero(is_template))
            has_rest = len(hashes) - template >= MIN_RARE
            if not template or not has_rest:
                is_template = None
        if not self._has_identity:
            signed = layer.signature_of(capture, hashes, is_template) if has_rest else None
            return NearCandidate(layer, host, hashes, signed, is_bare, has_rest)
        # A name is counted like three shingles: a single one could have the counter of a shingle of the template.
        marks = [marks_of(name) for name in reading.names]
        title = next(
            (name for name, three in zip(reading.names, marks, strict=True) if self._is_rare(host, three)), ""
        )
        beginning = ""
        if reading.names and not title:
            beginning = self._beginning(host, reading.text, layer.options.shingle_size)
        identity = identity_of(capture.url, title, reading.text, beginning, has_rest=has_rest)
        signed = layer.signature_with(identity, capture, hashes, is_template)
        counted = np.concatenate((hashes, np.array(marks, np.uint32).ravel())) if marks else hashes
        return NearCandidate(layer, host, counted, signed, is_bare, has_rest)

    def count(self, candidate: NearCandidate, *, is_own_version: bool) -> None:
        """Count the text of *candidate* for the template of its host.

        *is_own_version*: it is near to a text that its URL had before. It is the same page, and must not be counted twice.
        """
        if self._guard is not None and not is_own_version:
            self._guard.count(candidate.host, candidate.counted)

    def template_share(self, reading: PageReading, url: str) -> float:
        """The share of a text's shingles that are template on the host of *url*. Does not learn from the text."""
        layer = self._layers.get(reading.mime, self._layers[ALL_TYPES])
        if self._guard is None or layer is None or not reading.text:
            return 0.0
        hashes = signature.shingle_hashes(reading.text, layer.options.shingle_size)
        return float(self._guard.template(layer.host_key(url), hashes).mean())

    def save(self) -> None:
        """Save the learned templates of hosts."""
        if self._guard is not None:
            self._guard.save()

    def _is_rare(self, host: str, marks: Sequence[int]) -> bool:
        return self._guard is None or not self._guard.is_shared(host, marks)

    def _beginning(self, host: str, text: str, size: int) -> str:
        """The first words of a text that are not on several pages of the host."""
        assert self._guard is not None
        for start in range(0, len(text), _STEP):
            hashes = signature.hashes_in_order(text[start : start + _STEP + size - 1], size)
            place = self._guard.first_own(host, hashes)
            if place is not None:
                # The last character of this shingle is the first one that differs.
                return beginning_at(text, start + place + size - 1)
        return ""


def near_layers(
    options: JudgeOptions, stored: Mapping[str, str] | None = None
) -> dict[str, NearLayer | None]:
    """The near layer of each content type, None if it is off. *stored* are the parameters of a store.

    Raises :class:`~scrapy_dedupe.errors.StoreRefused` for a stored banding that no version writes.
    """
    return {
        mime: _layer_of(mime, near, version(options.canonicalizer), stored or {}) if near.is_on else None
        for mime, near in options.near.items()
    }


def _layer_of(mime: str, options: NearOptions, namespace: str, stored: Mapping[str, str]) -> NearLayer:
    suffix = "" if mime == ALL_TYPES else f"[{mime}]"
    banding = _banding(options, stored.get(f"near_bands{suffix}"))
    default = NearOptions()
    if (options.shingle_size, options.num_perm) != (default.shingle_size, default.num_perm):
        # Texts with other shingle sizes never share a band; signatures of another length cannot be compared.
        namespace = f"{namespace},{options.shingle_size},{options.num_perm}"
    # Few texts have the same key, so that short bands are enough.
    keyed = banding.third(options.threshold, options.recall)
    return NearLayer(
        options=options,
        banding=banding,
        keyed_banding=keyed,
        rest_bandings=(Banding(keyed.bands, banding.rows), Banding(2 * keyed.bands, banding.rows)),
        namespace=namespace,
        min_equal=signature.min_equal(options.threshold, options.num_perm),
        min_equal_named=signature.min_equal(options.threshold - NAMED_MARGIN, options.num_perm),
        suffix=suffix,
    )


@dataclass(frozen=True, slots=True)
class NearLayer:
    """The near layer for one content type.

    ``keyed_banding`` is for bands that are hashed with a key, ``rest_bandings`` for bands of the rest if one or two keys
    say nothing. ``suffix`` ends the names of its parameters in a store.
    """

    options: NearOptions
    banding: Banding
    keyed_banding: Banding
    rest_bandings: tuple[Banding, Banding]
    namespace: str
    min_equal: int
    min_equal_named: int
    suffix: str

    def host_key(self, url: str) -> str:
        """The name under which the template of a URL's host is counted."""
        return f"{self.namespace} {host_of(url)}"

    def parameters(self) -> dict[str, str]:
        """The parameters with which a store must have been written."""
        return {
            f"near_shingle_size{self.suffix}": str(self.options.shingle_size),
            f"near_num_perm{self.suffix}": str(self.options.num_perm),
            f"near_bands{self.suffix}": f"{self.banding.bands} x {self.banding.rows}",
        }

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
            bands, more_bands = self._bands(rare, rows, self.rest_bandings[missing - 1])
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
