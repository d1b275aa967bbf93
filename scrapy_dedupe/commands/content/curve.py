"""``content curve``: show the share of near copies that the settings find, by similarity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.content.banding import estimate_deviation, estimate_probability, recall
from scrapy_dedupe.content.options import ALL_TYPES, NearOptions
from scrapy_dedupe.content.signature import min_equal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores

HELP = (
    "Show the share of near copies that is found, by similarity, and the bands that follow from the settings."
)

_OPTIONS: Final = ("threshold", "recall", "num_perm", "shingle_size")
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
    bands: int | None
    rows_per_band: int | None
    min_equal: int | None
    deviation: float | None
    points: list[CurvePoint]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="SIMILARITY",
        help="the similarity at which a page becomes a near copy (default: DEDUPE_NEAR_THRESHOLD)",
    )
    parser.add_argument(
        "--recall",
        type=float,
        metavar="SHARE",
        help="the share of pairs at the threshold that must share a band (default: DEDUPE_NEAR_RECALL)",
    )
    parser.add_argument(
        "--num-perm",
        type=int,
        metavar="ROWS",
        help="the number of rows of a signature (default: DEDUPE_NEAR_NUM_PERM)",
    )
    parser.add_argument(
        "--shingle-size",
        type=int,
        metavar="CHARACTERS",
        help="the length of a shingle (default: DEDUPE_NEAR_SHINGLE_SIZE)",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> list[Curve]:
    values = {name: getattr(opts, name) for name in _OPTIONS}
    if None in values.values():
        content = place.settings.content
        values = {
            name: getattr(content, f"near_{name}") if value is None else value
            for name, value in values.items()
        }
    return list(curves(values))


def curves(values: dict[str, Any]) -> Iterator[Curve]:
    """One curve for each content type in *values*, and first the one for all others."""
    by_type = NearOptions.by_type(**values)
    for content_type in sorted(by_type, key=lambda name: (name != ALL_TYPES, name)):
        options = by_type[content_type]
        yield _curve(content_type, options) if options.is_on else _no_curve(content_type, options)


def _curve(content_type: str, options: NearOptions) -> Curve:
    banding, threshold, num_perm = options.banding, options.threshold, options.num_perm
    least = min_equal(threshold, num_perm)
    return Curve(
        content_type=content_type,
        threshold=threshold,
        recall=options.recall,
        num_perm=num_perm,
        shingle_size=options.shingle_size,
        bands=banding.bands,
        rows_per_band=banding.rows,
        min_equal=least,
        deviation=estimate_deviation(threshold, num_perm),
        points=[
            CurvePoint(
                jaccard=jaccard,
                shares_band=banding.probability(jaccard),
                estimate_reaches=estimate_probability(jaccard, num_perm, least),
                called_near=recall(jaccard, banding, num_perm, least),
            )
            for jaccard in sorted({threshold} | {percent / 100 for percent in _PERCENTS})
        ],
    )


def _no_curve(content_type: str, options: NearOptions) -> Curve:
    return Curve(
        content_type=content_type,
        threshold=options.threshold,
        recall=options.recall,
        num_perm=options.num_perm,
        shingle_size=options.shingle_size,
        bands=None,
        rows_per_band=None,
        min_equal=None,
        deviation=None,
        points=[],
    )


def text(result: list[Curve]) -> str:
    is_only = len(result) == 1
    return "\n\n".join("\n".join(_lines(curve, is_only=is_only)) for curve in result)


def _lines(curve: Curve, *, is_only: bool) -> Iterator[str]:
    if not is_only:
        others = "all other content types"
        yield f"Pages      {others if curve.content_type == ALL_TYPES else curve.content_type}"
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
