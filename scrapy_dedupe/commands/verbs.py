"""The verbs of the command line, and the code that they share.

A verb is a module of this package with these names:

``HELP``
    The help text.
``add_arguments(parser)``
    Adds the arguments.
``run(place, opts)``
    Does the work. Returns a dataclass, or a list of dataclasses, which ``--json`` prints.
``text(result)``
    Formats the result for a reader.
``caveat(result)``, optional
    Returns the sentence for exit code 4 if the work was done but incompletely, or None.
``refusal(result)``, optional
    Returns the error to end with after the result has been printed, or None.
``stopped(opts)``, optional
    Returns a clause on the state after Ctrl-C or SIGTERM. The verbs in `RESUMABLE` have a default.

A verb with sub-verbs is a package of such modules, with ``HELP`` and ``VERBS``, the names of its sub-verbs. If the
package also has ``run``, it can be called without a sub-verb. ``PLACE_OPTION`` is the option that replaces ``--store``
in a package whose verbs use no store.

Exit codes: 0 success; 1 an unexpected error, a bug of this package; 2 wrong usage; 3 a store, file or lock is
unavailable; 4 success, but some input was damaged, skipped or different. Every code except 0 comes with one sentence on
stderr. At Ctrl-C or SIGTERM the process prints one sentence and ends by the signal.
"""

from __future__ import annotations

import argparse
import gc
import json
import keyword
import os
import re
import sys
import traceback
from dataclasses import asdict
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from scrapy_dedupe.errors import DedupeError, UsageError

from .signals import SignalReceived, end_by, stoppable
from .stores import CommandStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.settings import BaseSettings

VERBS = (
    "stats", "report", "crawls", "commit", "cancel", "import", "purge", "check", "doctor", "urls", "content", "warc",
    "passages", "warcsum", "warccollres", "warcsumproc", "warcsumsplit", "warcrefs", "verify", "restore", "arc2warc",
    "dedupe",
)  # fmt: skip

RESUMABLE = ("warcsum", "warcrefs", "restore", "dedupe", "arc2warc")
"""The verbs that continue where they were stopped when they are called again with the same arguments."""


# Control characters and changes of the text direction. File names and ids from elsewhere may contain them.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Verb(Protocol):
    """The module of a verb."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb, without the common ones."""

    def run(self, place: CommandStores, opts: argparse.Namespace) -> Any:
        """Do the work and return a dataclass or a list of dataclasses."""

    def text(self, result: Any) -> str:
        """Format the result for a reader. An empty text is not printed."""


def verb_named(name: str) -> Verb:
    """Import the module of a verb, or of a sub-verb such as "urls check"."""
    path = ".".join(f"{word}_" if keyword.iskeyword(word) else word for word in name.split())
    return cast("Verb", import_module(f"{__package__}.{path}"))


def add_verbs(
    parser: argparse.ArgumentParser,
    prog: str,
    add_common: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Add a sub-parser for each verb to *parser*. ``add_common`` adds the caller's own options to each of them."""
    choices = parser.add_subparsers(
        action=_VerbsAction, dest="verb", metavar="VERB", title="verbs", prog=prog
    )
    parser.set_defaults(prog=prog, sub_verb=None)
    for name in VERBS:
        verb = verb_named(name)
        child = _add_parser(choices, name, verb)
        sub_verbs = getattr(verb, "VERBS", ())
        is_runnable = hasattr(verb, "run")
        if is_runnable:
            _add_arguments(child, verb, add_common)
        if not sub_verbs:
            continue
        sub_choices = child.add_subparsers(
            action=_VerbsAction,
            dest="sub_verb",
            metavar="VERB",
            title="verbs",
            prog=f"{prog} {name}",
            required=not is_runnable,
        )
        for sub_name in sub_verbs:
            sub_verb = verb_named(f"{name} {sub_name}")
            sub_child = _add_parser(sub_choices, sub_name, sub_verb)
            _add_arguments(
                sub_child,
                sub_verb,
                add_common,
                is_sub_verb=is_runnable,
                uses_store=not hasattr(verb, "PLACE_OPTION"),
            )


class _VerbsAction(argparse._SubParsersAction):
    """Suggests the nearest verb for an unknown one, instead of the list of all verbs that argparse prints."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # With choices argparse would reject an unknown verb with its own message.
        self.choices = None  # type: ignore[assignment]

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        name, known = values[0], list(self._name_parser_map)
        if name not in known:
            nearest = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" Did you mean {nearest[0]}?" if nearest else " --help lists all of them."
            raise argparse.ArgumentError(None, f"there is no verb {name!r}.{hint}")
        super().__call__(parser, namespace, values, option_string)


def _add_parser(choices: Any, name: str, verb: Verb) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = choices.add_parser(
        name,
        help=verb.HELP,
        description=verb.HELP,
        formatter_class=argparse.HelpFormatter,
        # A verb's own short option replaces Scrapy's: -s of warcsumsplit is a size.
        conflict_handler="resolve",
    )
    return parser


def _add_arguments(
    parser: argparse.ArgumentParser,
    verb: Verb,
    add_common: Callable[[argparse.ArgumentParser], None] | None,
    *,
    is_sub_verb: bool = False,
    uses_store: bool = True,
) -> None:
    # A default after the sub-verb would override a value given before it.
    absent: Any = argparse.SUPPRESS if is_sub_verb else None
    parser.add_argument(
        "--store",
        metavar="URL",
        default=absent,
        # Verbs without a store accept the option too, so that the error can name the right one.
        help="the store, such as sqlite:///dedupe.sqlite or redis://localhost:6379/0 (default: from the settings)"
        if uses_store
        else argparse.SUPPRESS,
    )
    parser.add_argument(
        "--json", action="store_true", default=absent or False, help="print the result as JSON"
    )
    if add_common is not None:
        add_common(parser)
    verb.add_arguments(parser)


def run_verb(opts: argparse.Namespace, load_settings: Callable[[], BaseSettings]) -> int:
    """Run the verb of *opts*, print its result, and return the exit code."""
    words = " ".join(filter(None, (opts.verb, opts.sub_verb)))
    name = f"{opts.prog} {words}"
    with stoppable() as signals:
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
    print(f"{name}: stopped{_stop_note(words, opts)}.", file=sys.stderr, flush=True)
    return end_by(signals[0])


def _run(words: str, name: str, opts: argparse.Namespace, load_settings: Callable[[], BaseSettings]) -> int:
    verb = verb_named(words)
    _refuse_store(opts)
    try:
        result = verb.run(CommandStores(opts.store, load_settings), opts)
        shown = _json(result) if opts.json else verb.text(result)
        if shown:
            print(shown if opts.json else _encodable(_printable(shown)), flush=True)
    except BrokenPipeError:
        # The reader, such as head, has closed the pipe. Without this, Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if hasattr(verb, "refusal") and (error := verb.refusal(result)) is not None:
        raise error
    if hasattr(verb, "caveat") and (sentence := verb.caveat(result)) is not None:
        print(_printable(f"{name}: {sentence}"), file=sys.stderr)
        return 4
    return 0


def _refuse_store(opts: argparse.Namespace) -> None:
    option = getattr(verb_named(opts.verb), "PLACE_OPTION", None)
    if option is not None and opts.store is not None:
        raise UsageError(f"{opts.verb} does not use a store, so --store has no effect. Use {option} instead.")


def _stop_note(words: str, opts: argparse.Namespace) -> str:
    """Return the clause on the state of a stopped verb, or on how to continue it."""
    if getattr(opts, "dry_run", False):
        return ""
    verb = verb_named(words)
    if hasattr(verb, "stopped"):
        return f"; {verb.stopped(opts)}"
    return "; the same command continues where it stopped" if words in RESUMABLE else ""


def _report_error(name: str, error: Exception) -> int:
    if isinstance(error, DedupeError) and error.exit_code != 1:
        print(_printable(f"{name}: {error}"), file=sys.stderr)
        return error.exit_code
    return _unexpected(name, error)


def _json(result: Any) -> str:
    plain = [asdict(item) for item in result] if isinstance(result, list) else asdict(result)
    shown = json.dumps(plain, indent=2, ensure_ascii=False)
    return shown if _encodable(shown) == shown else json.dumps(plain, indent=2)


def _printable(text: str) -> str:
    r"""Escape control characters, so that they cannot affect the terminal.

    >>> _printable("a\x1b[2Jb\n\tc")
    'a\\x1b[2Jb\n\tc'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _encodable(text: str) -> str:
    """Escape characters that stdout cannot encode, as Python does on stderr: file names may contain any bytes."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _unexpected(name: str, error: Exception) -> int:
    traceback.print_exception(error)
    print(
        f"{name}: unexpected {type(error).__name__}. This is a bug of scrapy-dedupe; please report it with the"
        " lines above.",
        file=sys.stderr,
    )
    return 1
