"""A process that has loaded Scrapy and this package, and forks for each program that a test runs.

``preloaded.py SOCKET`` listens until its standard input ends. :mod:`programs` connects to it, and so does
``documentation/programs/call.py``. A request is the length of its JSON in four bytes, and the JSON: the words, the
folder and the environment of a program. It carries the three standard streams. The answers are the process id and the
exit code.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sqlite3
import sys
import tempfile
import warnings
from importlib import import_module
from typing import Any

import unsynced

STREAMS = 3
PACKAGES = (
    "scrapy.commands", "scrapy.core.downloader", "scrapy.downloadermiddlewares", "scrapy.extensions",
    "scrapy.spidermiddlewares", "scrapy.pipelines", "scrapy_dedupe",
)  # fmt: skip
OTHERS = (
    "aiohttp", "tldextract", "itemadapter", "fsspec.implementations.local", "crawling", "wacz.main", "cdxj_indexer.main",
)  # fmt: skip
WITH_REACTOR = {"scrapy.core.downloader.handlers.ftp"}
"""Modules of older Scrapy that install a reactor when they are imported."""


def serve(path: str) -> None:
    load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(32)
        print("ready", flush=True)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(connection)
            connection.close()
    # Programs that still run end as well.
    os.killpg(0, signal.SIGKILL)


def load() -> None:
    """Import what programs need, so that their forks need not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in PACKAGES:
            for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
                if module.name not in WITH_REACTOR:
                    with contextlib.suppress(ImportError):
                        import_module(module.name)
        for name in OTHERS:
            with contextlib.suppress(ImportError):
                import_module(name)
    # Each crawl installs a reactor of its own.
    assert "twisted.internet.reactor" not in sys.modules
    from scrapy import cmdline
    from scrapy.core.engine import ExecutionEngine
    from scrapy.settings import default_settings

    from scrapy_dedupe.commands.command import Command

    # Scrapy checks every five seconds whether a crawl is over.
    ExecutionEngine._SLOT_HEARTBEAT_INTERVAL = 0.1
    os.fsync = unsynced.fsync
    sqlite3.connect = unsynced.connect
    if os.environ.get("REACTORLESS"):
        default_settings.TWISTED_REACTOR_ENABLED = False
    # Scrapy finds the command through an entry point, which a checkout on the path alone does not have.
    cmdline._get_commands_from_entry_points = lambda *arguments: {"dedupe": Command()}
    gc.freeze()


def _answer(connection: socket.socket) -> None:
    """In a child: run the program in a child of its own, and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    data, streams, _, _ = socket.recv_fds(connection, size, STREAMS)
    while len(data) < size:
        data += connection.recv(size - len(data))
    child = os.fork()
    if child == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _become(json.loads(data))
    connection.sendall(child.to_bytes(4, "big"))
    for stream in streams:
        os.close(stream)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
    os._exit(0)


def _become(asked: dict[str, Any]) -> None:
    # An interpreter that was started in the background may have been told to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked["folder"])
    tempfile.tempdir = None  # as TMPDIR says
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    name, *words = asked["words"]
    sys.argv = [name, *words]
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(0), os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    )  # fmt: skip
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    code = 1
    try:
        _run(name.rpartition("/")[2], words)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - whatever it is, it is told, and the process ends
        sys.excepthook(*sys.exc_info())
    finally:
        import atexit
        import threading

        # Twisted logs an error that nobody handled when its Deferred is deleted.
        gc.collect()
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(name: str, words: list[str]) -> None:
    if name == "scrapy":
        from scrapy.cmdline import execute

        sys.path.insert(0, "")
        execute(["scrapy", *words])
    elif name == "scrapy-dedupe":
        from scrapy_dedupe.commands.console import main

        sys.exit(main(words))
    elif name in {"python", "python3"}:
        _python(words)
    else:
        import stand_in

        stand_in.main(name, words)


def _python(words: list[str]) -> None:
    import __main__

    if words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        words = words[2:]
    sys.argv = words
    if words[0] == "-m" and words[1] == "venv":
        import stand_in

        stand_in.venv(words[2])
    elif words[0] == "-m":
        sys.path.insert(0, "")
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), __main__.__dict__)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))  # noqa: PTH100, PTH120
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
