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


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str | None]:
    """The URL of a local server of S3; None if moto is not installed."""
    # It runs from the first session on, whose environment the processes of Spark get.
    try:
        from moto.server import ThreadedMotoServer
    except ImportError:
        yield None
        return
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture(scope="module")
def session_settings() -> dict[str, str]:
    """More settings of the session. A module of tests may override this fixture."""
    return {}


@pytest.fixture(scope="module")
def session(s3_url: str | None, session_settings: dict[str, str]) -> Iterator[Any]:
    """A session of two cores that tries each task twice."""
    pytest.importorskip("pyspark", reason="pyspark is not installed (extra spark)")
    from pyspark import SparkContext

    from scrapy_dedupe.spark import spark_session

    logging.getLogger("py4j").setLevel(logging.WARNING)
    patch = pytest.MonkeyPatch()
    # The Python processes of Spark import the tasks of the tests.
    patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent)]))
    if s3_url is not None:
        patch.setenv("AWS_ENDPOINT_URL", s3_url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "test")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    # Compiling code for a few rows takes longer than running it.
    patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    patch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 512m pyspark-shell")
    for name, value in session_settings.items():
        # Java has been started by the first session, and does not read the environment again.
        SparkContext.setSystemProperty(name, value)
    with spark_session("local[2,2]") as session:
        # As many tasks for each join as there are cores.
        session.conf.set("spark.sql.shuffle.partitions", "2")
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        yield session
    patch.undo()
