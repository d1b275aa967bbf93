"""One Spark session for each module of tests, since Java takes seconds to start."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """A session of two cores that tries each task twice."""
    pytest.importorskip("pyspark", reason="pyspark is not installed (extra spark)")
    from scrapy_dedupe.spark import spark_session

    logging.getLogger("py4j").setLevel(logging.WARNING)
    patch = pytest.MonkeyPatch()
    # The Python processes of Spark import the tasks of the tests.
    patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent)]))
    patch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 512m pyspark-shell")
    with spark_session("local[2,2]") as session:
        yield session
    patch.undo()
