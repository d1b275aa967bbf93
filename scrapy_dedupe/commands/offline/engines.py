"""``--engine``: where the tasks of a verb run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.options import JOBS, Option
from scrapy_dedupe.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.tasks.jobs import Jobs

ENGINES: Final = (
    JOBS,
    Option(
        "--engine",
        None,
        "run on this machine (local, the default) or on a Spark cluster",
        choices=("local", "spark"),
        default="local",
    ),
    Option(
        "--master",
        "URL",
        "with --engine spark: the cluster, such as local[4], spark://host:7077 or yarn (default: Spark's own setting)",
    ),
)
"""The options of verbs that run on one machine or on a cluster."""

_DEFAULT_JOBS: Final = 1


@contextmanager
def jobs_of(opts: argparse.Namespace, *, needs_work: bool = False) -> Iterator[Jobs]:
    """The jobs that :data:`ENGINES` name. *needs_work*: tasks write into ``--work``, or else into a temporary folder.

    Raises UsageError for options that do not go together, and the errors of `spark.session.spark_session`.
    """
    if opts.engine == "local":
        if opts.master is not None:
            raise UsageError("--master names a Spark cluster, so it needs --engine spark.")
        yield opts.jobs
        return
    if opts.jobs != _DEFAULT_JOBS:
        raise UsageError(
            "With --engine spark, the cluster decides how many tasks run at the same time. Leave --jobs out, or use"
            f" --master 'local[{opts.jobs or '*'}]'."
        )
    if needs_work and opts.work is None:
        raise UsageError("With --engine spark, all machines write into one folder. Name it with --work.")
    from scrapy_dedupe.spark import SparkWorkers, spark_session

    with spark_session(opts.master) as session:
        yield SparkWorkers(session)
