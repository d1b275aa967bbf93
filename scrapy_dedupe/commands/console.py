"""``scrapy-dedupe VERB``, inside or outside of a project; and how this and ``scrapy dedupe VERB`` run a verb.

Exit codes: 0 success; 1 an unexpected error, a bug of this package; 2 wrong usage; 3 a store, file or lock is
unavailable; 4 success, but some input was damaged, skipped or different. Every code except 0 comes with one sentence on
stderr. At Ctrl-C or SIGTERM the verb releases its resources, prints one sentence, and ends by the signal.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import signal
import sys
import threading
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from scrapy_dedupe import __version__
from scrapy_dedupe.errors import DedupeError, UsageError

from .options import is_standard_output
from .output import encodable
from .stores import CommandStores
from .verbs import add_verbs, verb_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from scrapy.settings import BaseSettings, Settings

PROG: Final = "scrapy-dedupe"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

# Control characters and changes of the text direction. File names and ids from elsewhere may contain them.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Inspect and manage deduplication data. Inside a Scrapy project the settings name the stores."
        " Outside of a project the store is .scrapy/dedupe/dedupe.sqlite in the working folder. --store names another"
        " one.",
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    add_verbs(parser, PROG)
    opts = parser.parse_args(argv)
    if opts.verb is None:
        parser.print_help(sys.stderr)
        print(f"{PROG}: a verb is missing.", file=sys.stderr)
        return 2
    return run_verb(opts, _project_settings)


def _project_settings() -> Settings:
    from scrapy.utils.project import get_project_settings

    return get_project_settings()


class SignalReceived(KeyboardInterrupt):
    """SIGINT or SIGTERM was received.

    Like KeyboardInterrupt it is not caught by ``except Exception``, and ``finally`` releases resources.
    """


def run_verb(opts: argparse.Namespace, load_settings: Callable[[], BaseSettings]) -> int:
    """Run the verb of *opts*, print its result, and return the exit code."""
    words = f"{opts.verb} {opts.sub_verb}" if opts.sub_verb else opts.verb
    name = f"{opts.prog} {words}"
    signals: list[int] = []

    def stop(number: int) -> None:
        signals.append(number)
        # A second signal ends the process immediately.
        for other in _SIGNALS:
            if signal.getsignal(other) is not signal.SIG_IGN:
                signal.signal(other, signal.SIG_DFL)
        raise SignalReceived

    with handling_signals(stop):
        try:
            return _run(words, name, opts, load_settings)
        except SignalReceived:
            pass
        except Exception as error:  # noqa: BLE001 - reported in one sentence
            # Interrupted code may raise its own exception, as DuckDB and process pools do.
            if not signals:
                return _report_error(name, error)
        # Release what the frames of the exception kept open, such as child processes and temporary files.
        gc.collect()
        clause = "" if getattr(opts, "dry_run", False) else verb_named(words).stopped(opts)
        print(f"{name}: stopped{clause and f'; {clause}'}.", file=sys.stderr, flush=True)
        sys.stdout.flush()
        # End like a program that does not handle the signal.
        signal.signal(signals[0], signal.SIG_DFL)
        os.kill(os.getpid(), signals[0])
    raise AssertionError("The signal did not end this process.")


@contextmanager
def handling_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Call *handle* at the first SIGINT or SIGTERM. Ignored signals stay ignored, as under ``nohup``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [number for number in _SIGNALS if before[number] not in (signal.SIG_IGN, None)]

    def restore() -> None:
        # Only once: the handler of the caller may have replaced its own.
        while handled:
            number = handled.pop()
            signal.signal(number, before[number])

    def handler(number: int, frame: FrameType | None) -> None:
        restore()
        handle(number)

    for number in handled:
        signal.signal(number, handler)
    try:
        yield
    finally:
        restore()


def _run(words: str, name: str, opts: argparse.Namespace, load_settings: Callable[[], BaseSettings]) -> int:
    verb = verb_named(words)
    if opts.store is not None and verb.store_option != "--store":
        advice = f" Use {verb.store_option} instead." if verb.store_option else ""
        raise UsageError(f"{words} does not use a store, so --store has no effect.{advice}")
    if opts.json and is_standard_output(opts):
        raise UsageError("The output goes to standard output, so --json needs a file. Name one with -o.")
    for option in verb.options:
        option.check(opts)
    try:
        result = verb.run(CommandStores(opts.store, load_settings), opts)
        text = (
            _json(verb.json(result))
            if opts.json
            else encodable(_printable("\n".join(verb.lines(result))), sys.stdout)
        )
        if text:
            print(text, flush=True)
    except BrokenPipeError:
        # The reader, such as head, has closed the pipe. Without this, Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if (error := verb.refusal(result)) is not None:
        raise error
    if caveats := [clause.removesuffix(".") for clause in verb.caveats(result)]:
        print(_printable(f"{name}: {'; '.join(caveats)}."), file=sys.stderr)
        return 4
    return 0


def _report_error(name: str, error: Exception) -> int:
    if isinstance(error, DedupeError) and error.exit_code != 1:
        print(_printable(f"{name}: {error}"), file=sys.stderr)
        return error.exit_code
    traceback.print_exception(error)
    print(
        f"{name}: unexpected {type(error).__name__}. This is a bug of scrapy-dedupe; please report it with the"
        " lines above.",
        file=sys.stderr,
    )
    return 1


def _json(value: object) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if encodable(text, sys.stdout) == text else json.dumps(value, indent=2)


def _printable(text: str) -> str:
    r"""Escape control characters, so that they cannot affect the terminal.

    >>> _printable("a\x1b[2Jb\n\tc")
    'a\\x1b[2Jb\n\tc'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


if __name__ == "__main__":
    sys.exit(main())
