"""The verbs of the command line, and what is common to them.

A verb is a module of this package with ``HELP``, ``add_arguments(parser)``, ``run(place, opts)``, which gives a
dataclass or a list of them, and ``text(result)``, which formats it. ``--json`` prints the result itself. A verb with
sub-verbs is a package of such modules, with ``HELP`` and the names in ``VERBS``; if the package has ``run`` besides, it
is a verb of its own when no sub-verb is named. A verb whose work can be done and still lack something has
``caveat(result)``, which gives the sentence for exit code 4, or None. One whose result may tell of something that stands
in the way has ``refusal(result)``, which gives the error to end with once the result is printed, or None. One that keeps
or undoes what it has done when it is stopped may have ``stopped(opts)``, half a sentence on what became of it; one of
`RESUMED` needs that only if it depends on the options. A package whose verbs ask no store has ``PLACE_OPTION``, what to
name their place with instead.

Exit codes: 0 done; 1 an unexpected error, a fault of this package; 2 wrong use; 3 a store, file or lock stands in
the way; 4 done, but some input was damaged, skipped or different. Each but 0 with one sentence on stderr. At Ctrl-C or
SIGTERM the process ends by the signal, with one sentence too.
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

RESUMED = ("warcsum", "warcrefs", "restore", "dedupe", "arc2warc")
"""The verbs whose call, given again, goes on where it was stopped."""


# What steers a terminal, or turns the direction of what follows; names and ids of others may hold it.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Verb(Protocol):
    """What the module of a verb holds."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb alone."""

    def run(self, place: CommandStores, opts: argparse.Namespace) -> Any:
        """Do it. Gives a dataclass or a list of them."""

    def text(self, result: Any) -> str:
        """The result for a reader; nothing is printed for an empty one."""


def verb_named(name: str) -> Verb:
    """The module of a verb, or of a sub-verb, such as "urls check"."""
    path = ".".join(f"{word}_" if keyword.iskeyword(word) else word for word in name.split())
    return cast("Verb", import_module(f"{__package__}.{path}"))


def add_verbs(
    parser: argparse.ArgumentParser,
    prog: str,
    add_common: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Give *parser* one sub-parser for each verb. ``add_common`` adds the caller's own options to each."""
    choices = parser.add_subparsers(action=_Verbs, dest="verb", metavar="VERB", title="verbs", prog=prog)
    parser.set_defaults(prog=prog, sub_verb=None)
    for name in VERBS:
        verb = verb_named(name)
        child = _add_parser(choices, name, verb)
        sub_verbs = getattr(verb, "VERBS", ())
        stands_alone = hasattr(verb, "run")
        if stands_alone:
            _add_arguments(child, verb, add_common)
        if not sub_verbs:
            continue
        sub_choices = child.add_subparsers(
            action=_Verbs,
            dest="sub_verb",
            metavar="VERB",
            title="verbs",
            prog=f"{prog} {name}",
            required=not stands_alone,
        )
        for sub_name in sub_verbs:
            sub_verb = verb_named(f"{name} {sub_name}")
            sub_child = _add_parser(sub_choices, sub_name, sub_verb)
            _add_arguments(
                sub_child,
                sub_verb,
                add_common,
                is_below=stands_alone,
                asks_store=not hasattr(verb, "PLACE_OPTION"),
            )


class _Verbs(argparse._SubParsersAction):
    """Tells the nearest verb of one that is not there, where argparse would list them all."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # argparse would look into these first, and complain in its own way.
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
        # A verb's own short option comes before Scrapy's: warcsumsplit has a size behind -s.
        conflict_handler="resolve",
    )
    return parser


def _add_arguments(
    parser: argparse.ArgumentParser,
    verb: Verb,
    add_common: Callable[[argparse.ArgumentParser], None] | None,
    *,
    is_below: bool = False,
    asks_store: bool = True,
) -> None:
    # What stands before a sub-verb must not be undone by what is not given behind it.
    absent: Any = argparse.SUPPRESS if is_below else None
    parser.add_argument(
        "--store",
        metavar="URL",
        default=absent,
        # It is known all the same, so that whoever gives it is told what to give.
        help="the store, such as sqlite:///dedupe.sqlite or redis://localhost:6379/0 (default: the settings)"
        if asks_store
        else argparse.SUPPRESS,
    )
    parser.add_argument(
        "--json", action="store_true", default=absent or False, help="print the result as JSON"
    )
    if add_common is not None:
        add_common(parser)
    verb.add_arguments(parser)


def run_verb(opts: argparse.Namespace, load_settings: Callable[[], BaseSettings]) -> int:
    """Run the verb of *opts*, print its result, and give the exit code."""
    words = " ".join(filter(None, (opts.verb, opts.sub_verb)))
    name = f"{opts.prog} {words}"
    with stoppable() as signals:
        try:
            return _run(words, name, opts, load_settings)
        except SignalReceived:
            pass
        except Exception as error:  # noqa: BLE001 - told in one sentence
            # What was interrupted may tell that in its own way, as DuckDB and a pool of processes do.
            if not signals:
                return _told(name, error)
    # With the error goes what its frames kept open, such as other processes and temporary files.
    gc.collect()
    print(f"{name}: stopped{_to_do(words, opts)}.", file=sys.stderr, flush=True)
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
        # The reader, such as head, has seen enough. Python would complain once more when it flushes at its end.
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
        raise UsageError(
            f"{opts.verb} asks no store, so --store has no meaning. Name its place with {option}."
        )


def _to_do(words: str, opts: argparse.Namespace) -> str:
    """What became of what a verb did that was stopped, or how it is brought to its end."""
    if getattr(opts, "dry_run", False):
        return ""
    verb = verb_named(words)
    if hasattr(verb, "stopped"):
        return f"; {verb.stopped(opts)}"
    return "; the same command goes on where it was" if words in RESUMED else ""


def _told(name: str, error: Exception) -> int:
    if isinstance(error, DedupeError) and error.exit_code != 1:
        print(_printable(f"{name}: {error}"), file=sys.stderr)
        return error.exit_code
    return _unexpected(name, error)


def _json(result: Any) -> str:
    plain = [asdict(item) for item in result] if isinstance(result, list) else asdict(result)
    shown = json.dumps(plain, indent=2, ensure_ascii=False)
    return shown if _encodable(shown) == shown else json.dumps(plain, indent=2)


def _printable(text: str) -> str:
    r"""The text with escapes for what steers a terminal.

    >>> _printable("a\x1b[2Jb\n\tc")
    'a\\x1b[2Jb\n\tc'
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _encodable(text: str) -> str:
    """The text with escapes, such as stderr has, where stdout cannot have it: file names are bytes of any kind."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _unexpected(name: str, error: Exception) -> int:
    traceback.print_exception(error)
    print(
        f"{name}: unexpected {type(error).__name__}. This is a fault of scrapy-dedupe; please report it with the"
        " lines above.",
        file=sys.stderr,
    )
    return 1
