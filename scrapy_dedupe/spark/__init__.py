"""The offline jobs on a Spark cluster (extra ``spark``).

The functions take a classic ``pyspark.sql.SparkSession`` and give the same results, byte for byte, as the ones of
`scrapy_dedupe.offline` that run on one machine. Each file is read by one task. The driver keeps the state of the work, so
a run continues after a kill as it does on one machine. All machines must see the files and the output folder at the same
paths. Inputs of `sums` and the output of `dedupe` may also be URLs.
"""

from __future__ import annotations

from .engine import dedupe, near, plan, rewrite, sums, verify
from .session import spark_session
from .workers import SparkWorkers

__all__ = ["SparkWorkers", "dedupe", "near", "plan", "rewrite", "spark_session", "sums", "verify"]
