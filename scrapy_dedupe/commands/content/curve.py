"""``content curve``: show the share of near copies that the settings find, by similarity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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


def _run(stores: CommandStores, opts: argparse.Namespace) -> list[dict[str, Any]]:
    values = picked(opts, _OPTIONS)
    for name, value in values.items():
        if value is None:
            values[name] = getattr(stores.settings.content, f"near_{name}")
    by_type = NearOptions.by_type(**values)
    # First the curve for all other types.
    return [
        _curve(name, by_type[name]) for name in sorted(by_type, key=lambda name: (name != ALL_TYPES, name))
    ]


def _curve(content_type: str, options: NearOptions) -> dict[str, Any]:
    """The near layer for one content type, ``*`` for all others. If the layer is off, there are no bands and no points."""
    threshold, num_perm = options.threshold, options.num_perm
    curve = {
        "content_type": content_type,
        **picked(options, _OPTIONS),
        **dict.fromkeys(("bands", "rows_per_band", "min_equal", "deviation")),
        "points": [],
    }
    if not options.is_on:
        return curve
    banding, least = options.banding, min_equal(threshold, num_perm)
    return curve | {
        "bands": banding.bands,
        "rows_per_band": banding.rows,
        # The estimate reaches the threshold if so many row bytes are equal. Its standard deviation at the threshold.
        "min_equal": least,
        "deviation": estimate_deviation(threshold, num_perm),
        # The probabilities for a pair of texts of one Jaccard similarity.
        "points": [
            {
                "jaccard": jaccard,
                "shares_band": banding.probability(jaccard),
                "estimate_reaches": estimate_probability(jaccard, num_perm, least),
                "called_near": recall(jaccard, banding, num_perm, least),
            }
            for jaccard in sorted({threshold} | {percent / 100 for percent in _PERCENTS})
        ],
    }


def _lines(curves: list[dict[str, Any]]) -> Iterator[str]:
    for place, curve in enumerate(curves):
        if place:
            yield ""
        if len(curves) > 1:
            kind = curve["content_type"]
            yield f"Pages      {'all other content types' if kind == ALL_TYPES else kind}"
        threshold = curve["threshold"]
        if curve["bands"] is None:
            yield f"Threshold  {threshold:g}, which turns the near layer off"
            continue
        yield f"Threshold  {threshold:g}, of shingles of {curve['shingle_size']} characters"
        yield (
            f"Bands      {curve['bands']} of {curve['rows_per_band']} rows, of {curve['num_perm']}; recall wanted:"
            f" {curve['recall']:g}"
        )
        yield (
            f"Estimate   {curve['min_equal']} equal row bytes reach the threshold; standard deviation there"
            f" {curve['deviation']:.3f}"
        )
        yield ""
        yield "Similarity  Shares a band  Estimate reaches  Called near"
        for jaccard, shares_band, reaches, called_near in map(dict.values, curve["points"]):
            line = (
                f"{_similarity_text(jaccard):10}  {shares_band:13.2%}  {reaches:16.2%}  {called_near:11.2%}"
            )
            yield f"{line}  threshold" if jaccard == threshold else line


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
