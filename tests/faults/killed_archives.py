"""Runs crawls and verbs of the command line again and again, and kills each before the step that it is told.

Reads a line of JSON for each run: the folder, the words of the command line or, for a crawl, its settings and first
URL, and the step at which the process gets SIGKILL: its number, 0 for none, or its name with "#" and a number for the
Nth one of that name. A step is whatever makes, renames,
truncates or removes a file in the folder, or opens one for writing (PEP 578), before it happens; and what precedes and
follows each write to a WARC file, each transaction of SQLite and each script of Redis. Answers each line with the exit code,
the names of the steps so far, and what was written to stdout and stderr. Each run is a fork of this process, which has
imported everything already.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = {
    "index_start": "start",
    "index_add": "add",
    "index_note file": "add_file",
    "index_note incomplete": "mark_incomplete",
    "index_note complete": "mark_incomplete",
    "index_commit_end": "commit",
}
CHANGES = {"os.rename", "os.remove", "os.link", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def count_steps(folder: str, on_step: Callable[[str], None]) -> None:
    """Call *on_step* with the name of each step."""
    from scrapy_dedupe.stores.redis_index_base import RedisIndexBase
    from scrapy_dedupe.stores.sqlite_index_base import SqliteIndexBase
    from scrapy_dedupe.warc.files import _OpenFile

    def look(event: str, args: tuple[Any, ...]) -> None:
        path = os.fspath(args[0]) if args and isinstance(args[0], str | os.PathLike) else ""
        if isinstance(path, str) and path.startswith(folder):
            suffix = "".join(Path(path).suffixes[-2:])
            if event in CHANGES or (event == "open" and args[2] & WRITING):
                on_step(f"{event} {suffix}")

    transaction, run, append = SqliteIndexBase._transaction, RedisIndexBase._run, _OpenFile.append

    @contextmanager
    def counted_transaction(self: Any) -> Iterator[None]:
        caller = sys._getframe(2)
        while caller.f_code.co_name in ("__enter__", "_change"):
            assert caller.f_back is not None
            caller = caller.f_back
        name = caller.f_code.co_name.removeprefix("_").removesuffix("_plain")
        on_step(f"before {name}")
        with transaction(self):
            yield
        on_step(f"after {name}")

    def counted_run(self: Any, script: str, *arguments: Any) -> Any:
        name = f"{script} {arguments[1]}" if script == "index_note" else script
        name = NAMES.get(name, name)
        on_step(f"before {name}")
        answer = run(self, script, *arguments)
        on_step(f"after {name}")
        return answer

    def counted_append(self: Any, data: bytes) -> None:
        on_step("before append")
        append(self, data)
        on_step("after append")

    SqliteIndexBase._transaction = counted_transaction  # type: ignore[method-assign]
    RedisIndexBase._run = counted_run  # type: ignore[method-assign]
    _OpenFile.append = counted_append  # type: ignore[method-assign]
    sys.addaudithook(look)


def run(folder: str, words: list[str], crawl: dict[str, Any], url: str, at: int | str) -> NoReturn:
    """In a process of its own."""
    steps: Counter[str] = Counter()
    log = os.open("steps", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)

    def on_step(name: str) -> None:
        steps[name] += 1
        os.write(log, f"{name}\n".encode())
        if at in (steps.total(), f"{name}#{steps[name]}"):
            os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        if words:
            from scrapy_dedupe.commands.console import main

            os.chdir(folder)
            count_steps(folder, on_step)
            code = main(words)
        else:
            from crawling import AsyncCrawlerProcess, LinkSpider

            os.chdir(folder)
            process = AsyncCrawlerProcess(crawl)
            count_steps(folder, on_step)
            process.crawl(LinkSpider, urls=url)
            process.start()
            code = 0
    except SystemExit as stop:
        code = int(str(stop.code or 0))
    except BaseException:  # noqa: BLE001 - the test shows it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> None:
    from preloaded import load

    load()
    with tempfile.TemporaryDirectory() as own:
        os.chdir(own)
        for line in sys.stdin:
            request = json.loads(line)
            child = os.fork()
            if not child:
                for descriptor, name in ((1, "out"), (2, "err")):
                    os.dup2(os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), descriptor)
                run(
                    request["folder"],
                    request.get("words", []),
                    request.get("settings", {}),
                    request.get("url", ""),
                    request.get("at", 0),
                )
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out = [Path(name).read_text(errors="replace") for name in ("steps", "out", "err")]
            print(json.dumps([code, out[0].splitlines(), out[1], out[2]]), flush=True)


if __name__ == "__main__":
    serve()
