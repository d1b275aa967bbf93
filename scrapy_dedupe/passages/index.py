"""An index of passages: documents are added and deleted, and asked for the text that repeats in them.

What is added is kept in memory until it is written as a segment: by `PassageIndex.flush`, by a question, at the end of
the context, or as soon as there are 64 MB of text or four million posts. Only while something is written is the index
locked, so several processes can add to one index in turns; readers need no lock.

Small segments are merged as they pile up, each time something was written. A merge that fails takes nothing from the
index, so it is no error of what was written: it is kept in `PassageIndex.merge_error`, and tried again after a while.

::

    with PassageIndex("passages") as index:
        index.add("https://example.org/a", "some text")
        for hit in index.like("a longer text that has some text in it"):
            print(hit.doc_id, hit.score)
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.tasks.jobs import job_count, run_in_order
from scrapy_dedupe.tasks.progress import NO_PROGRESS

from . import checking, inspection, queries
from .catalogue import MANIFEST, manifest_stamp
from .index_parameters import parameters_of
from .lock import WriterLock
from .preparation import checked_host, checked_name, checked_text, prepare
from .snapshot import IndexSnapshot, no_index
from .tiers import LARGEST
from .writer import AddedDocuments, IndexWriter

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Self, TypeVar

    from .checking import IndexCheck
    from .inspection import Inspected
    from .preparation import Prepared
    from .values import Hit, IndexedDocument, Passage

    Named = tuple[str, str | None, str]
    Item = TypeVar("Item")

MOST_BYTES = 64 << 20
MOST_POSTS = 4_000_000
MOST_DOCUMENTS = 200_000
"""What is pending at most before it is written."""

# Arrays of this many elements stay in the cache of a processor's core, more or less; many more do not.
BATCH_CHARACTERS = 1 << 19
BATCH_DOCUMENTS = 1_000

# A merge may read gigabytes before it fails, so it is not tried at every turn.
FIRST_MERGE_PAUSE_S = 60.0
MOST_MERGE_PAUSE_S = 3600.0


class PassageIndex:
    """The index in the folder *path*; with *create* it is begun there by the first use, if there is none.

    *tokeniser* (``words``, ``cjk``, ``code``), *blotter* (``rolling``, ``xor``, ``interleaved``, or a mapping with its
    parameters) and *store_text* are those of the index; None takes what it has, or for a new one ``words``, ``rolling``
    and True. One that never had a document is a new one. While another process writes, this one waits for
    *lock_timeout_s* seconds; *command* is what others are told about this one. Texts are prepared in *jobs* processes by
    `add_all`. Segments that have more than *largest_merge_posts* posts and documents together are merged by `compact`
    alone, or by whoever writes the index without this bound; for a program that cannot wait for such a merge.

    Several threads may use one of these; they take turns, and what `snapshot` gives is for one of them. A process that
    was forked in `writing` cannot write with the index of its parent. After `close` everything raises ValueError, as a
    closed file does.

    Raises StoreRefused if the folder is something else, if the index is damaged, of another version or was made with
    other parameters, or if there is none and *create* is False; SettingError for parameters that cannot be.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tokeniser: str | None = None,
        blotter: str | Mapping[str, Any] | None = None,
        store_text: bool | None = None,
        create: bool = True,
        jobs: int = 1,
        lock_timeout_s: float = 0,
        command: str = "",
        largest_merge_posts: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.jobs = job_count(jobs)
        self.lock_timeout_s = lock_timeout_s
        self.command = command
        self.watch = NO_PROGRESS
        self.added = AddedDocuments()
        self.merge_error: StoreError | OSError | None = None
        self.parameters = parameters_of(self.path, tokeniser, blotter, store_text, create=create)
        self._create = create and not (self.path / MANIFEST).exists()
        self._largest_merge = LARGEST if largest_merge_posts is None else largest_merge_posts
        self._merge_pause_s = self._next_merge_at = 0.0
        self._turn = threading.RLock()
        self._is_closed = False
        self._batch: list[Named] = []
        self._batch_characters = 0
        self._pending: list[Prepared] = []
        self._writer: IndexWriter | None = None
        self._snapshot: IndexSnapshot | None = None
        self._stamp: tuple[object, ...] = ()

    # Adding and deleting

    def add(self, doc_id: str, text: str, host: str | None = None) -> None:
        """Add a document, or give the one of this name another text.

        Its *host* is that of *doc_id*, if that is a web address, unless it is given. Raises SettingError for a name, a
        host or a text that cannot be one; StoreUnavailable if what is pending cannot be written.
        """
        named = _named(doc_id, text, host)
        with self._open():
            self._batch.append(named)
            self._batch_characters += len(text)
            if self._batch_characters >= BATCH_CHARACTERS or len(self._batch) >= BATCH_DOCUMENTS:
                self._prepare_batch()
                self._flush_if_much()

    def add_all(
        self, documents: Iterable[tuple[str, str] | tuple[str, str, str | None]], jobs: int | None = None
    ) -> None:
        """Add documents, each given by the arguments of `add`, with the work done in several processes."""
        with self._open():
            self._prepare_batch()
        prepare_one = partial(prepare, parameters=self.parameters)
        with contextlib.closing(
            run_in_order(
                prepare_one,
                _batches(_named(*document) for document in documents),
                self.jobs if jobs is None else jobs,
            )
        ) as all_prepared:
            for prepared in all_prepared:
                self.add_prepared(prepared)

    def add_prepared(self, prepared: Prepared) -> None:
        """Add what `preparation.prepare` has made of documents, with the parameters of this index."""
        with self._open():
            self._prepare_batch()
            self._pending.append(prepared)
            self._flush_if_much()

    @property
    def pending_bytes(self) -> int:
        """How much text was added and is not yet written, as UTF-8; what was added last is counted in characters."""
        with self._turn:
            return self._batch_characters + sum(int(prepared.byte_counts.sum()) for prepared in self._pending)

    @property
    def pending_documents(self) -> int:
        """How many documents were added and are not yet written, those counted again that were given again."""
        with self._turn:
            return len(self._batch) + sum(len(prepared.doc_ids) for prepared in self._pending)

    def flush(self) -> None:
        """Write what was added; from then on it is on the disk, and other processes see it.

        Raises StoreUnavailable if another process writes, or if there is no space. What was added stays pending then;
        if the error came after it was written, nothing is pending any more. While another thread is in `writing` at once,
        all of this is done at the end of that.
        """
        with self._open():
            self._prepare_batch()
            if self._pending or not (self.path / MANIFEST).exists():
                with self._writing("") as writer:
                    if self._pending:
                        writer.add(self._pending, self._stored)
                    self._tidy(writer)

    def delete(self, doc_id: str) -> bool:
        """Delete a document; False if there is none of this name. Raises StoreUnavailable."""
        return self.delete_many([doc_id])[0]

    def delete_many(self, doc_ids: Iterable[str]) -> list[bool]:
        """Delete documents as one change, and tell of each whether it was there. Raises StoreUnavailable."""
        with self._open():
            self.flush()
            with self._writing(self.command or "delete") as writer:
                was_there = writer.delete(doc_ids)
                self._tidy(writer)
                return was_there

    def compact(self) -> bool:
        """Make all segments one, and give free what deleted documents took; False if there was nothing to do.

        Meanwhile it takes as much space again. Raises StoreUnavailable, and StoreRefused for an index that is damaged.
        """
        with self._open():
            self.flush()
            with self._writing(self.command or "compact") as writer:
                is_changed = writer.compact()
                self._merge_succeeded()
                return is_changed

    @contextlib.contextmanager
    def writing(self, command: str = "", *, at_once: bool = False) -> Iterator[Self]:
        """Keep the index locked for a longer piece of work.

        *command* tells others what for, in place of that of the index. What was added before is written before, and
        what is added in it at its end at the latest. With *at_once* all that is done in it becomes the index's as one
        change at the end, and nothing of it if it ends by an error; questions are answered from before till then.
        Within another one it is a part of that. Raises StoreUnavailable if another process writes; RuntimeError for
        *at_once* within one that is not so.

        What other threads add meanwhile is a part of it: if it ends by an error, what is not on the disk then is lost.
        """
        held = contextlib.ExitStack()
        with self._open():
            self.flush()
            outer, before = self._writer, self.added
            if outer is not None and at_once and not outer.is_at_once:
                raise RuntimeError(f"Work on {self.path} that is under way cannot become one change now.")
            writer = held.enter_context(self._writing(command, at_once=at_once))
        try:
            yield self
            with self._turn:
                self.flush()
                if outer is None:
                    writer.commit()
        except BaseException:
            self._drop()
            raise
        finally:
            # Another thread may write before it or after it, but not in the middle.
            with self._turn:
                if outer is None and not writer.is_committed:
                    self.added = before
                held.close()

    # Asking

    def like(self, text: str, top: int = 10, **options: Any) -> list[Hit]:
        """The *top* documents that share passages with a text, best first; options as in `queries.like`."""
        with self._open():
            return queries.like(self.snapshot(), text, top, **options)

    def extract(self, **options: Any) -> Iterator[Passage]:
        """The passages that repeat, those first that it would save most to have once; `extraction.extract`."""
        from . import extraction

        with self._open():
            return self._while_open(extraction.extract(self.snapshot(), **options))

    def text(self, doc_id: str) -> str:
        """The text of a document. Raises KeyError if there is none of this name; StoreRefused without stored texts."""
        with self._open():
            snapshot = self.snapshot()
            number = snapshot.text_of_document(doc_id)
            if number is None:
                raise KeyError(doc_id)
            return snapshot.text(number)

    @property
    def documents(self) -> Iterator[IndexedDocument]:
        """All documents, in the order in which they were added."""
        with self._open():
            return self._while_open(self.snapshot().iter_documents())

    def __len__(self) -> int:
        """How many documents there are."""
        with self._open():
            return self.snapshot().document_count

    def __contains__(self, doc_id: str) -> bool:
        with self._open():
            return self.snapshot().document_number(doc_id) is not None

    def check(self, *, full: bool = False) -> IndexCheck:
        """Look for damage; with *full* also make all posts again and compare them."""
        self.flush()
        return checking.check(self.path, full=full)

    def inspect(self, **options: Any) -> Inspected:
        """The index in figures; options as in `inspection.inspect`."""
        with self._open():
            return inspection.inspect(self.snapshot(), **options)

    def snapshot(self) -> IndexSnapshot:
        """The index with all that was added, in `writing` at once as it was before; it stays so until `close`."""
        with self._open():
            self.flush()
            try:
                stamp = manifest_stamp(self.path)
            except (FileNotFoundError, NotADirectoryError):
                raise no_index(self.path) from None
            self._create = False
            if self._snapshot is None or stamp != self._stamp:
                # Whoever was given the one before may still read in it.
                self._snapshot, self._stamp = IndexSnapshot.open(self.path), stamp
            return self._snapshot

    # The end

    def close(self) -> None:
        """Write what is pending, and close all files.

        Raises StoreUnavailable if that cannot be written: it is lost then.
        """
        with self._turn:
            if self._is_closed:
                return
            try:
                if self._create or self.pending_documents:
                    self.flush()
            finally:
                self._let_go()

    def __enter__(self) -> Self:
        with self._open():
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            # Nothing is written, and so nothing can come in the place of the error.
            with self._turn:
                self._let_go()

    def _let_go(self) -> None:
        self._is_closed = True
        self._drop()
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.close()

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """The turn of this thread. Raises ValueError if the index is closed."""
        with self._turn:
            self._refuse_closed()
            yield

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise ValueError(f"The index {self.path} is closed. Open it again.")

    def _while_open(self, items: Iterator[Item]) -> Generator[Item]:
        """What an iterator over the files gives; ValueError once they are closed."""
        try:
            while True:
                with self._open():
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item
        finally:
            if hasattr(items, "close"):
                items.close()  # a work folder goes now, and not when somebody collects garbage

    def _prepare_batch(self) -> None:
        if self._batch:
            prepared = prepare(self._batch, self.parameters)
            self._pending.append(prepared)
            self._batch = []
            self._batch_characters = 0

    def _flush_if_much(self) -> None:
        posts = sum(len(prepared.keys) for prepared in self._pending)
        documents = sum(len(prepared.doc_ids) for prepared in self._pending)
        if posts >= MOST_POSTS or documents >= MOST_DOCUMENTS or self.pending_bytes >= MOST_BYTES:
            self.flush()

    def _drop(self) -> None:
        self._batch = []
        self._batch_characters = 0
        self._pending = []

    def _stored(self, added: AddedDocuments) -> None:
        self.added += added
        self._pending = []

    def _tidy(self, writer: IndexWriter) -> None:
        """Merge what has piled up. What was written before is written, whether that succeeds or not."""
        if time.monotonic() < self._next_merge_at:
            return
        try:
            writer.tidy(self._largest_merge)
        except (StoreError, OSError) as error:
            self.merge_error = error
            self._merge_pause_s = min(max(2 * self._merge_pause_s, FIRST_MERGE_PAUSE_S), MOST_MERGE_PAUSE_S)
            self._next_merge_at = time.monotonic() + self._merge_pause_s
        else:
            self._merge_succeeded()

    def _merge_succeeded(self) -> None:
        self.merge_error = None
        self._merge_pause_s = self._next_merge_at = 0.0

    @contextlib.contextmanager
    def _writing(self, command: str, *, at_once: bool = False) -> Iterator[IndexWriter]:
        """The writer of the index, with the lock: that of `writing` if that is open."""
        if self._writer is not None:
            self._writer.prove_usable()
            self._writer.watch = self.watch
            yield self._writer
            return
        if not self._create and not (self.path / MANIFEST).exists():
            raise no_index(self.path)
        with WriterLock(self.path, command or self.command, timeout_s=self.lock_timeout_s):
            self._writer = IndexWriter(self.path, self.parameters, at_once=at_once)
            self._writer.watch = self.watch
            self._create = False  # one that was there and is gone is not begun again
            try:
                yield self._writer
            finally:
                writer, self._writer = self._writer, None
                writer.close()


def _named(doc_id: str, text: str, host: str | None = None) -> Named:
    """A document as it is prepared. Raises SettingError for what cannot be one."""
    checked_name(doc_id)
    if host is not None:
        checked_host(host)
    return doc_id, host, checked_text(doc_id, text)


def _batches(documents: Iterable[Named]) -> Iterator[list[Named]]:
    """Documents in pieces that are worth handing over."""
    batch: list[Named] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document[2])
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
