"""``content curve``: the bands and probabilities that follow from the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from programs import run_program

from scrapy_dedupe.content.banding import Banding, estimate_probability, recall
from scrapy_dedupe.content.options import NearOptions

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "shop").mkdir(parents=True)
    (folder / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (folder / "shop" / "__init__.py").write_text("")
    return folder


def in_project(project: Path, settings: str, *words: str) -> subprocess.CompletedProcess[str]:
    (project / "shop" / "settings.py").write_text(settings)
    return run_program("scrapy-dedupe", "content", "curve", *words, cwd=project)


def only(called: Any) -> dict[str, Any]:
    assert (called.code, called.err) == (0, "")
    [curve] = called.json
    return dict(curve)


def test_the_defaults_find_almost_all_pairs_at_the_threshold(call: Callable[..., Any]) -> None:
    curve = only(call("content", "curve", "--json"))
    points = {point["jaccard"]: point for point in curve.pop("points")}
    assert curve == {
        "content_type": "*",
        "threshold": 0.85,
        "recall": 0.99,
        "num_perm": 128,
        "shingle_size": 7,
        "near_identity": True,
        "bands": 5,
        "rows_per_band": 3,
        "min_equal": 109,
        "deviation": pytest.approx(0.0317, abs=1e-4),
    }
    assert list(points) == [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0]
    assert points[0.85] == {
        "jaccard": 0.85,
        "shares_band": Banding(5, 3).probability(0.85),
        "estimate_reaches": estimate_probability(0.85, 128, 109),
        "called_near": recall(0.85, Banding(5, 3), 128, 109),
    }
    assert points[0.85]["shares_band"] > 0.99
    assert points[0.7]["called_near"] < 0.001
    assert points[0.95]["called_near"] > 0.999
    assert points[1.0]["called_near"] == 1


def test_the_table_marks_the_threshold(call: Callable[..., Any]) -> None:
    called = call("content", "curve", "--threshold", "0.875")
    assert (called.code, called.err) == (0, "")
    lines = called.out.splitlines()
    assert lines[0] == "Threshold  0.875, of shingles of 7 characters"
    assert lines[4].split() == ["Similarity", "Shares", "a", "band", "Estimate", "reaches", "Called", "near"]
    assert [line.split()[0] for line in lines[5:]] == [
        "0.50", "0.55", "0.60", "0.65", "0.70", "0.75", "0.80", "0.85", "0.875", "0.90", "0.95", "1.00",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines if line.endswith("  threshold")] == ["0.875"]
    assert {len(line.removesuffix("  threshold")) for line in lines[4:]} == {len(lines[4])}


def test_options_stand_for_the_settings(call: Callable[..., Any]) -> None:
    words = ("--threshold", "0.7", "--recall", "0.95", "--num-perm", "200", "--shingle-size", "5")
    curve = only(call("content", "curve", "--json", *words))
    banding = NearOptions(threshold=0.7, recall=0.95, num_perm=200).banding.third(0.7, 0.95)
    assert (curve["threshold"], curve["recall"], curve["num_perm"], curve["shingle_size"]) == (
        0.7,
        0.95,
        200,
        5,
    )
    assert (curve["bands"], curve["rows_per_band"]) == (banding.bands, banding.rows)
    assert banding.probability(0.7) >= 0.95


def test_the_settings_of_the_project_count(project: Path) -> None:
    settings = "DEDUPE_NEAR_THRESHOLD = 0.9\nDEDUPE_NEAR_NUM_PERM = 256\nDEDUPE_NEAR_SHINGLE_SIZE = 9\n"
    ran = in_project(project, settings + "DEDUPE_NEAR_RECALL = 0.8\n", "--recall", "0.999")
    assert (ran.returncode, ran.stderr) == (0, "")
    banding = Banding.for_recall(0.9, 0.999, 256).third(0.9, 0.999)
    assert ran.stdout.splitlines()[:2] == [
        "Threshold  0.9, of shingles of 9 characters",
        (
            f"Bands      {banding.bands} of {banding.rows} rows for each of title, URL words and end of the URL,"
            " of 256; recall wanted: 0.999"
        ),
    ]


def test_without_titles_and_urls_all_bands_are_of_the_text(project: Path) -> None:
    ran = in_project(project, "DEDUPE_NEAR_IDENTITY = False\n")
    assert ran.stdout.splitlines()[1] == "Bands      16 of 8 rows, of 128; recall wanted: 0.99"


def test_each_content_type_that_has_its_own_values_has_its_own_table(project: Path) -> None:
    settings = 'DEDUPE_NEAR_THRESHOLD = {"text/plain": 0.9, "application/xml": 1, "*": 0.8}\n'
    ran = in_project(project, settings)
    assert (ran.returncode, ran.stderr) == (0, "")
    blocks = [block.splitlines() for block in ran.stdout.split("\n\n")]
    # A table stands behind an empty line too.
    assert [block[:2] for block in blocks if block[0].startswith("Pages")] == [
        ["Pages      all other content types", "Threshold  0.8, of shingles of 7 characters"],
        ["Pages      application/xml", "Threshold  1, which turns the near layer off"],
        ["Pages      text/plain", "Threshold  0.9, of shingles of 7 characters"],
    ]


def test_a_layer_that_is_off_has_no_bands(call: Callable[..., Any]) -> None:
    curve = only(call("content", "curve", "--threshold", "1", "--json"))
    assert (curve["bands"], curve["rows_per_band"], curve["min_equal"], curve["deviation"]) == (None,) * 4
    assert curve["points"] == []
    assert call("content", "curve", "--threshold", "1").out == (
        "Threshold  1, which turns the near layer off\n"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--threshold", "0.3"), "near_threshold is 0.3. Allowed: a number from 0.5 to 1."),
        (("--recall", "1"), "near_recall is 1.0. Allowed: a number from 0.5 to 0.9999."),
        (("--num-perm", "8"), "near_num_perm is 8. Allowed: a whole number from 16 to 512."),
        (("--shingle-size", "1"), "near_shingle_size is 1. Allowed: a whole number from 2 to 64."),
    ],
)
def test_values_that_are_not_allowed_are_refused(
    call: Callable[..., Any], words: tuple[str, ...], sentence: str
) -> None:
    called = call("content", "curve", *words)
    assert (called.code, called.out) == (2, "")
    assert called.err == f"scrapy-dedupe content curve: {sentence}\n"


def test_no_store_is_looked_for(call: Callable[..., Any]) -> None:
    assert call("content", "curve").code == 0
    assert not list(Path().rglob("*.sqlite"))
