"""Starting Spark, with errors of one sentence.

A session of the caller, or of ``spark-submit``, is used with its own settings. Otherwise Spark starts with the settings
of its configuration folder, without log output: each error is reported by its exception.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import EngineError, SettingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
# Set by spark-submit, whose Java process is then used.
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
_REASON_CHARS: Final = 300
_ERROR: Final = re.compile(r"^(?:Exception in thread \S+ |Error: |Caused by: )(.+)$", re.MULTILINE)

_JAVA_CALLS: Final = re.compile(r"\n\s+at ")
# A sentence of Spark after the name of an error condition, and errors of a disk, which are causes of other errors.
_CONDITION: Final = re.compile(r"\[[A-Z]{4,}[A-Z_.]*\] (.*?)\.?(?:\s+SQLSTATE|\. |$)", re.MULTILINE)
_DISK: Final = re.compile(r"No space left on device|Disk quota exceeded|File too large|Read-only file system")
_CLASSES: Final = re.compile(r"[\w.$]+(?:Exception|Error): ")


@contextmanager
def spark_session(master: str | None = None) -> Iterator[Any]:
    """A ``pyspark.sql.SparkSession``; one that was started here is stopped at the end.

    *master* is the URL of the cluster, such as ``local[4]``, ``spark://host:7077`` or ``yarn``; by default that of
    ``spark-submit`` or of Spark's configuration, else all cores of this machine.

    Raises SettingError if pyspark or Java is not installed, UsageError for a master that cannot be used, EngineError if
    Spark cannot start.
    """
    if master is not None and master.startswith("sc://"):
        raise UsageError(
            f"{master} is a Spark Connect server, which cannot run the tasks of this package. Name the cluster"
            " itself, such as spark://host:7077."
        )
    spark_sql = _pyspark_sql()
    if (session := spark_sql.SparkSession.getActiveSession()) is not None:
        yield session
        return
    session = _started(spark_sql.SparkSession.builder, master)
    try:
        yield session
    finally:
        session.stop()


def reason_of(failure: BaseException) -> str:
    r"""Why Spark failed, in less than a sentence: without the calls in Java, and with the error of a disk that caused it.

    >>> reason_of(Exception("calling None.Context.\n: org.apache.spark.SparkException: Asked for 9 MiB/worker\n\tat org.a"))
    'Asked for 9 MiB/worker'
    >>> reason_of(Exception("a.SparkException: [TASK_FAILED] It cannot write a. SQLSTATE: 5\n\tat b\nNo space left on device"))
    'It cannot write a: No space left on device'
    """
    text = str(failure)
    if condition := _CONDITION.search(text):
        reason = condition[1]
    else:
        # The last line before the calls in Java, which may end a traceback of Python.
        head = _JAVA_CALLS.split(text, maxsplit=1)[0].strip() or type(failure).__name__
        reason = _CLASSES.split(head.splitlines()[-1])[-1].partition(". ")[0].rstrip(".")
    disk = _DISK.search(text)
    return reason if disk is None or disk[0] in reason else f"{reason}: {disk[0]}"


def _pyspark_sql() -> Any:
    try:
        from pyspark import sql
    except ImportError as error:
        raise SettingError(
            'The Spark engine needs pyspark, which is not installed: pip install "scrapy-dedupe[spark]".'
        ) from error
    return sql


def _started(builder: Any, master: str | None) -> Any:
    is_submitted = _GATEWAY in os.environ
    if not is_submitted:
        _check_java()
        # Executors on this machine use the interpreter, and so the packages, of this process.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.config(
            "spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
        )
    if master is not None:
        builder = builder.master(master)
    builder = builder.appName("scrapy-dedupe").config("spark.ui.showConsoleProgress", "false")
    with tempfile.TemporaryFile() as log:
        try:
            with _handlers_kept(), nullcontext() if is_submitted else _written_to(log):
                return builder.getOrCreate()
        except Exception as error:
            log.seek(0)
            reason = _reason(log.read().decode("utf-8", "replace")) or reason_of(error)
            raise EngineError(
                f"Spark cannot start{f' on {master}' if master else ''}:"
                f" {' '.join(reason.split())[:_REASON_CHARS].rstrip('.')}. Check --master, and that Java is version 17"
                " or later."
            ) from error


def _reason(log: str) -> str | None:
    """Why Java ended, from what it wrote."""
    found = _ERROR.search(log)
    return found[1] if found else None


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else None
    if java is not None and not java.is_file():
        raise SettingError(
            f"JAVA_HOME is {home}, which has no bin/java. Set it to a Java of version 17 or later, or unset it."
        )
    if java is None and shutil.which("java") is None:
        raise SettingError(
            "The Spark engine needs Java 17 or later, which is not installed: apt-get install default-jre-headless, or set"
            " JAVA_HOME."
        )


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep the handler of SIGINT, which Spark replaces at startup."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _written_to(log: IO[bytes]) -> Iterator[None]:
    """Make *log* the standard error of Java processes that start in the block."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
