"""``content curve``: show the share of near copies that the settings find, by similarity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.options import Option
from scrapy_dedupe.commands.output import picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.content.banding import estimate_deviation, estimate_probability, recall
from scrapy_dedupe.content.options import ALL_TYPES, NearOptions
from scrapy_dedupe.content.signature import min_equal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores

_OPTIONS: Final = "threshold recall num_perm shingle_size"
_PERCENTS: Final = range(50, 101, 5)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The probabilities for a pair of texts of one Jaccard similarity.

    ``shares_band``: the two texts share a bucket of the index; ``estimate_reaches``: their estimated similarity reaches
    the threshold; ``called_near``: both.
    """

    jaccard: float
    shares_band: float
    estimate_reaches: float
    called_near: float


@dataclass(frozen=True, slots=True)
class Curve:
    """The near layer for one content type, ``*`` for all others.

    The estimate reaches the threshold if ``min_equal`` of the ``num_perm`` row bytes are equal; ``deviation`` is its
    standard deviation at the threshold. With the threshold 1 the layer is off, and there are no bands and no points.
    """

    content_type: str
    threshold: float
    recall: float
    num_perm: int
    shingle_size: int
    bands: int | None = None
    rows_per_band: int | None = None
    min_equal: int | None = None
    deviation: float | None = None
    points: tuple[CurvePoint, ...] = ()


def _run(stores: CommandStores, opts: argparse.Namespace) -> list[Curve]:
    values = picked(opts, _OPTIONS)
    for name, value in values.items():
        if value is None:
            values[name] = getattr(stores.settings.content, f"near_{name}")
    by_type = NearOptions.by_type(**values)
    # First the curve for all other types.
    return [
        _curve(name, by_type[name]) for name in sorted(by_type, key=lambda name: (name != ALL_TYPES, name))
    ]


def _curve(content_type: str, options: NearOptions) -> Curve:
    threshold, num_perm = options.threshold, options.num_perm
    curve = Curve(content_type, **picked(options, _OPTIONS))
    if not options.is_on:
        return curve
    banding, least = options.banding, min_equal(threshold, num_perm)
    points = [
        CurvePoint(
            jaccard,
            banding.probability(jaccard),
            estimate_probability(jaccard, num_perm, least),
            recall(jaccard, banding, num_perm, least),
        )
        for jaccard in sorted({threshold} | {percent / 100 for percent in _PERCENTS})
    ]
    return replace(
        curve,
        bands=banding.bands,
        rows_per_band=banding.rows,
        min_equal=least,
        deviation=estimate_deviation(threshold, num_perm),
        points=tuple(points),
    )


def _lines(curves: list[Curve]) -> Iterator[str]:
    for place, curve in enumerate(curves):
        if place:
            yield ""
        if len(curves) > 1:
            others = "all other content types"
            yield f"Pages      {others if curve.content_type == ALL_TYPES else curve.content_type}"
        yield from _curve_lines(curve)


def _curve_lines(curve: Curve) -> Iterator[str]:
    if curve.bands is None:
        yield f"Threshold  {curve.threshold:g}, which turns the near layer off"
        return
    yield f"Threshold  {curve.threshold:g}, of shingles of {curve.shingle_size} characters"
    yield f"Bands      {curve.bands} of {curve.rows_per_band} rows, of {curve.num_perm}; recall wanted: {curve.recall:g}"
    yield (
        f"Estimate   {curve.min_equal} equal row bytes reach the threshold; standard deviation there"
        f" {curve.deviation:.3f}"
    )
    yield ""
    yield "Similarity  Shares a band  Estimate reaches  Called near"
    for point in curve.points:
        line = (
            f"{_similarity_text(point.jaccard):10}  {point.shares_band:13.2%}  {point.estimate_reaches:16.2%}"
            f"  {point.called_near:11.2%}"
        )
        yield f"{line}  threshold" if point.jaccard == curve.threshold else line


def _similarity_text(jaccard: float) -> str:
    two_digits = f"{jaccard:.2f}"
    return two_digits if float(two_digits) == jaccard else f"{jaccard:g}"


CURVE = Verb(
    _run,
    _lines,
    [
        Option("--threshold", "SIMILARITY", "use this instead of DEDUPE_NEAR_THRESHOLD", type=float),
        Option("--recall", "SHARE", "use this instead of DEDUPE_NEAR_RECALL", type=float),
        Option("--num-perm", "ROWS", "use this instead of DEDUPE_NEAR_NUM_PERM", type=int),
        Option("--shingle-size", "CHARACTERS", "use this instead of DEDUPE_NEAR_SHINGLE_SIZE", type=int),
    ],
    store_option=None,
)
