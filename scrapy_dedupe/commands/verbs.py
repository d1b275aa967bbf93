"""The verbs of the command line, and their parsers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

from .options import Option, flag
from .output import as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scrapy_dedupe.errors import DedupeError

    from .options import Exclusive
    from .stores import CommandStores

Result = TypeVar("Result")

# The verbs that each module has.
_MODULES: Final = {
    "crawls.overview": ("stats", "crawls", "crawls show", "crawls graph"),
    "report": ("report",),
    "crawls.states": ("commit", "cancel", "purge"),
    "crawls.imports": ("import",),
    "crawls.check": ("check",),
    "doctor": ("doctor",),
    "urls.verbs": ("urls check", "urls forget", "urls stats", "urls export", "urls import"),
    "urls.rules": ("urls learn", "urls check-rules", "urls explain"),
    "content.verbs": ("content stats", "content curve", "content purge", "content import"),
    "content.verdicts": ("content explain", "content check"),
    "warc.verbs": ("warc salvage", "warc pack", "warc upload"),
    "passages.index": ("passages index",),
    "passages.queries": ("passages like", "passages extract", "passages blot", "passages unblot"),
    "passages.upkeep": ("passages inspect", "passages check", "passages compact", "passages delete"),
    "offline.manifests": ("warcsum", "warccollres", "warcsumproc", "warcsumsplit"),
    "offline.archives": ("warcrefs", "verify", "restore", "arc2warc"),
    "offline.dedupe": ("dedupe",),
    "offline.near": ("near",),
}
_TEXTS: Final = {
    "stats": "Show the duplicates of all committed crawls, and the bytes saved.",
    "report": "Report duplicates and savings of crawls as a table, or as an HTML page with -o.",
    "crawls": "List all crawls with their states and counts.",
    "crawls show": "Show one crawl: its files, what it needs from other crawls and what is missing, and the"
    " crawls that need it.",
    "crawls graph": "Show which crawls need which, for Graphviz or as JSON. Missing crawls and files are"
    " dashed.",
    "commit": "Commit a crawl: other crawls may then refer to its records. Repeating it is harmless.",
    "cancel": "Cancel an uncommitted crawl: remove its records from the index. Its files are kept.",
    "import": "Import WACZ, WARC and CDXJ files, or those of a multi-WACZ JSON, into the crawl index."
    " Without SOURCE, continue an interrupted import.",
    "purge": "Purge crawls from the index; new crawls no longer refer to them. Refused if a remaining crawl"
    " needs one of them. Their files are kept.",
    "check": "Check the crawl index against the files: entries, originals of revisits, counts, and the files"
    " that crawls need.",
    "doctor": "Check settings, versions, stores, disks and layers, test each, and explain how to fix"
    " problems.",
    "urls": "Inspect and change a URL filter, and learn URL rules.",
    "urls check": "Show for each URL whether it was seen, is new, or was forgotten and may be requested"
    " again.",
    "urls forget": "Allow each URL to be requested again once, when a crawl finds it.",
    "urls stats": "Show the number of URLs in the filter, its size and its error rate.",
    "urls export": "Export the seen URLs as requests.seen, the file of Scrapy's own filter.",
    "urls import": "Import the fingerprints in requests.seen files of any version of Scrapy.",
    "urls learn": "Learn URL rules from committed crawls: differences between URLs that do not change the"
    " text of the page.",
    "urls check-rules": "Show what URL rules would have saved in committed crawls, and the pages that would"
    " have been lost.",
    "urls explain": "Show which URL rules apply to a URL, and the URL that is compared.",
    "content": "Inspect and manage the stored texts, and explain why a page is a copy.",
    "content stats": "Show the number of stored texts, how they are compared, and the size of the store.",
    "content explain": "Show the texts of a URL: whether each was new or a copy, of which page and why, and"
    " the difference if the archive has both texts.",
    "content check": "Show the verdict that a page would get now, and the reason. Nothing is stored.",
    "content curve": "Show which share of near copies the settings find, by similarity.",
    "content purge": "Forget texts, selected by the URL, crawl or time of their first capture. A forgotten"
    " text is new again when it is seen again, even if other pages had it since.",
    "content import": "Import the text hashes of QuarryCore. Later crawls treat a page with such a text as a"
    " copy. The file is not changed.",
    "warc": "Manage WARC files: repair those of a killed crawl, pack them as WACZ, and move them to a"
    " storage.",
    "warc salvage": "Repair WARC files of a killed crawl: complete records are kept, and a broken end is cut"
    " off. Files of running crawls are not changed.",
    "warc pack": "Pack the WARC files of a crawl as WACZ in DEDUPE_WACZ_DIR, if it is uncommitted or has no"
    " WACZ yet.",
    "warc upload": "Move finished WARC and WACZ files to a storage such as s3://bucket/folder. Each copy is"
    " compared before the local file is deleted. Files of uncommitted crawls are not moved.",
    "passages": "Find text that repeats across documents, and its places, with an index of passages.",
    "passages index": "Add documents to the index: text, HTML, WARC, ARC, WACZ and JSON lines. A document"
    " replaces an indexed document with the same id. If it is stopped, the index is not changed; with"
    " --keep-going, documents that have been written remain.",
    "passages like": "Find documents that share passages with a text, the most similar first, and show the"
    " passages.",
    "passages extract": "List the passages that several documents share, sorted by the tokens that storing"
    " each once would save.",
    "passages blot": "Show the blots that an index keeps, or would keep, of texts, one per line, in"
    " hexadecimal.",
    "passages unblot": "Show the words of blots and all their places.",
    "passages inspect": "Show what the index contains: documents, tokens, posts, sizes, boilerplate and"
    " parameters.",
    "passages check": "Check the files of the index and their values. The index is not changed.",
    "passages compact": "Merge the segments of the index, and free the space of deleted documents. Meanwhile"
    " it needs as much space again, and can be read.",
    "passages delete": "Delete documents from the index by their ids. passages compact frees their space.",
    "warcsum": "Write a manifest of WARC and ARC files: one line for each response, with its place, URI,"
    " date and the digest of its payload.",
    "warccollres": "Compare the records of each digest byte by byte, and number those that differ (column"
    " 7).",
    "warcsumproc": "Choose the original of each cluster of equal payloads, the earliest capture, and number"
    " its copies (columns 8 to 10).",
    "warcsumsplit": "Split a manifest into parts, PREFIX.1, PREFIX.2 and so on. All lines of one digest are"
    " in one part.",
    "warcrefs": "Rewrite the files of a manifest with a revisit for every copy, then compare both archives.",
    "verify": "Verify that a deduplicated archive has every record of the original one, and a payload for"
    " every revisit.",
    "restore": "Undo warcrefs and dedupe: convert revisits back to responses, and revert changed references.",
    "arc2warc": "Convert ARC files to WARC 1.1, and verify that every capture is kept with its payload.",
    "dedupe": "Deduplicate WARC files: find the records with the same payload, rewrite the files with a"
    " revisit for every copy, and verify them. After an interruption, the same command continues.",
    "near": "Find the pages of WARC files with the same or nearly the same text, across crawls, as a crawl"
    " would. After an interruption, the same command continues.",
}


class Listed(NamedTuple):
    """A verb in the list of verbs: its module, and its help text. A verb without a module has only sub-verbs."""

    module: str | None
    text: str


_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}
VERBS: Final = {name: Listed(_MODULE_OF.get(name), text) for name, text in _TEXTS.items()}
"""All verbs. The module of a verb is imported when the verb is called; see :func:`verb_named`."""


@dataclass(slots=True)
class Verb(Generic[Result]):
    """A verb.

    ``run`` does the work, and ``lines`` formats its result for a reader. ``json`` returns the value that ``--json``
    prints, by default the result with dataclasses as dicts.

    ``caveats`` yields clauses about work that was done incompletely; the exit code is then 4. ``refusal`` returns the
    error to end with after the result has been printed, or None. ``stopped`` returns a clause on the state after Ctrl-C
    or SIGTERM, or "". ``store_option`` is the option that names where the data is; None if the verb has no store.
    """

    run: Callable[[CommandStores, argparse.Namespace], Result]
    lines: Callable[[Result], Iterable[str]]
    options: Sequence[Option | Exclusive] = ()
    json: Callable[[Result], object] = as_json
    caveats: Callable[[Result], Iterable[str]] = lambda result: ()
    refusal: Callable[[Result], DedupeError | None] = lambda result: None
    stopped: Callable[[argparse.Namespace], str] = lambda opts: ""
    store_option: str | None = "--store"
    usage: str | None = None


def verb_named(name: str) -> Verb[Any]:
    """Import a verb, or a sub-verb such as "urls check".

    Its module has it under the last word of the name, in capital letters, with underscores for hyphens.
    """
    module = import_module(f"{__package__}.{VERBS[name].module}")
    return cast("Verb[Any]", getattr(module, name.split()[-1].upper().replace("-", "_")))


def add_verbs(
    parser: argparse.ArgumentParser,
    prog: str,
    add_common: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> None:
    """Add a sub-parser for each verb to *parser*. ``add_common`` adds the caller's own options to each of them."""
    parser.set_defaults(prog=prog, sub_verb=None)
    choices = {"": _choices(parser, "verb", prog, required=False)}
    for name, (module, text) in VERBS.items():
        family, _, word = name.rpartition(" ")
        child = choices[family].add_parser(
            word,
            help=text,
            description=text,
            formatter_class=argparse.HelpFormatter,
            # A verb's own short option replaces Scrapy's: -s of warcsumsplit is a size.
            conflict_handler="resolve",
        )
        if module is not None:
            child.verb, child.add_common = name, add_common
        if any(other.startswith(f"{name} ") for other in VERBS):
            choices[name] = _choices(child, "sub_verb", f"{prog} {name}", required=module is None)


def _choices(parser: argparse.ArgumentParser, dest: str, prog: str, *, required: bool) -> _VerbsAction:
    return cast(
        "_VerbsAction",
        parser.add_subparsers(
            action=_VerbsAction,
            parser_class=VerbParser,
            dest=dest,
            metavar="VERB",
            title="verbs",
            prog=prog,
            required=required,
        ),
    )


class VerbParser(argparse.ArgumentParser):
    """The parser of a verb, whose options are only added when it is used."""

    verb: str | None = None
    add_common: Callable[[argparse.ArgumentParser], None]

    def complete(self) -> None:
        """Import the verb, and add its options."""
        if self.verb is None:
            return
        verb = verb_named(self.verb)
        family = self.verb.rpartition(" ")[0]
        # After the sub-verb of a verb that has these options too, a default would override a value given before it.
        absent: Any = argparse.SUPPRESS if family and VERBS[family][0] is not None else None
        store = "the store, such as sqlite:///dedupe.sqlite or redis://localhost:6379/0 (default: from the settings)"
        if verb.store_option != "--store":
            # The option is accepted nevertheless, so that the error can name the right one.
            store = argparse.SUPPRESS
        Option("--store", "URL", store, default=absent).add_to(self)
        flag("--json", "print the result as JSON", default=absent or False).add_to(self)
        self.add_common(self)
        for option in verb.options:
            option.add_to(self)
        if verb.usage is not None:
            self.usage = verb.usage
        self.verb = None


class _VerbsAction(argparse._SubParsersAction):
    """Completes the parser of the chosen verb. Suggests the nearest verb for an unknown one, instead of listing all."""

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
        name, known = values[0], self._name_parser_map
        if name not in known:
            nearest = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" Did you mean {nearest[0]}?" if nearest else " --help lists all of them."
            raise argparse.ArgumentError(None, f"there is no verb {name!r}.{hint}")
        known[name].complete()
        super().__call__(parser, namespace, values, option_string)
