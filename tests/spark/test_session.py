"""What is missing is said in one sentence."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from offline.calling import call
from offline.planted import SITE, Planting, text

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = ("--engine", "spark")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    p = Planting()
    p.file("a.warc.gz")
    p.exchange("a.warc.gz", "page", f"{SITE}/", text("page", 2_000))
    p.write(tmp_path / "in")
    return tmp_path


def test_without_pyspark_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    called = call(folder, "dedupe", "in", "-o", "out", *ENGINE)
    assert (called.code, called.err) == (
        2,
        'scrapy-dedupe dedupe: The Spark engine needs pyspark, which is not installed: pip install "scrapy-dedupe[spark]".\n',
    )
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("java_home", "reason"),
    [
        (None, "The Spark engine needs Java 17 or later, which is not installed"),
        ("/nowhere", "JAVA_HOME is /nowhere, which has no bin/java."),
    ],
)
def test_without_java_its_package_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, java_home: str | None, reason: str
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed (extra spark)")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if java_home is not None:
        monkeypatch.setenv("JAVA_HOME", java_home)
    called = call(folder, "warcsum", "in", "-o", "sums.txt", *ENGINE)
    assert called.code == 2
    assert reason in called.sentences
    assert called.err.count("\n") == 1
    assert not (folder / "sums.txt").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("warcsum", "in", "-o", "sums.txt", "--master", "local"),
            "--master names a Spark cluster, so it needs",
        ),
        (
            ("dedupe", "in", "-o", "out", "--jobs", "2", *ENGINE),
            "Leave --jobs out, or use --master 'local[2]'.",
        ),
        (("dedupe", "in", "--dry-run", *ENGINE), "Name it with --work."),
        (("verify", "in", "in", *ENGINE), "Name it with --work."),
        (
            ("dedupe", "in", "-o", "out", *ENGINE, "--master", "sc://host"),
            "sc://host is a Spark Connect server",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    folder: Path, words: tuple[str, ...], reason: str
) -> None:
    called = call(folder, *words)
    assert called.code == 2
    assert reason in called.sentences
    assert not (folder / "out").exists()


# pyspark leaves the pipe of the Java process that ended.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_that_cannot_be_used_is_named(folder: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed (extra spark)")
    called = call(folder, "dedupe", "in", "-o", "out", *ENGINE, "--master", "nonsense")
    assert called.code == 3
    assert "Spark cannot start on nonsense: " in called.sentences
    assert called.err.count("\n") == 1
