"""The passage index: add and delete documents, and find text that repeats in them.

Added documents are kept in memory until they are written as a segment: by `PassageIndex.flush`, before a query, at the
end of the context, or when 64 MB of text, four million posts or 200,000 documents are pending. The index is locked only
during a write, so several processes can add to the same index in turns. Readers need no lock.

After each write, small segments are merged when there are too many of them. A failed merge loses no data, so the write
does not fail: the error is kept in `PassageIndex.merge_error`, and the merge is retried after a pause.

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
from .blots import blotter_of, key_bits
from .catalogue import MANIFEST, manifest_stamp, read_manifest, refuse_other_parameters
from .folder_files import WriterLock
from .preparation import batches_of, checked_host, checked_name, checked_text, prepare
from .snapshot import IndexSnapshot, no_index, refuse_unknown_parameters
from .tokens import tokeniser_named
from .values import Parameters
from .writer import LARGEST, AddedDocuments, IndexWriter

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


MAX_PENDING_BYTES = 64 << 20
MAX_PENDING_POSTS = 4_000_000
MAX_PENDING_DOCUMENTS = 200_000
"""Limits of the pending documents: they are written when one of these is reached."""

# Arrays of this many elements roughly fit the cache of a processor core.
BATCH_CHARACTERS = 1 << 19
BATCH_DOCUMENTS = 1_000

# A merge may read gigabytes before it fails, so it is not retried after every write.
FIRST_MERGE_PAUSE_S = 60.0
MAX_MERGE_PAUSE_S = 3600.0


class PassageIndex:
    """The index in the folder *path*. With *create*, the first use creates the index if there is none.

    *tokeniser* (``words``, ``cjk``, ``code``), *blotter* (``rolling``, ``xor``, ``interleaved``, or a mapping with its
    parameters) and *store_text* are the parameters of the index. None keeps the value of an existing index; a new index
    gets ``words``, ``rolling`` and True. An index that never had a document counts as new. If another process is writing,
    a write waits up to *lock_timeout_s* seconds; *command* is shown to other processes that find the index locked.
    `add_all` prepares texts in *jobs* processes. Segments with more than *largest_merge_posts* posts and documents
    together are merged only by `compact`, or by a writer without this limit; set it if a program cannot wait for such a
    merge.

    Several threads may share an instance; they take turns. The result of `snapshot` is for one thread only. A process
    that was forked within `writing` cannot write with its parent's index. After `close`, every method raises ValueError,
    as for a closed file.

    Raises StoreRefused if the folder holds something else, if the index is damaged, of another version or made with
    other parameters, or if there is no index and *create* is False; SettingError for invalid parameters.
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
        self._max_merge_size = LARGEST if largest_merge_posts is None else largest_merge_posts
        self._merge_pause_s = self._next_merge_at = 0.0
        self._thread_lock = threading.RLock()
        self._is_closed = False
        self._batch: list[Named] = []
        self._batch_characters = 0
        self._pending: list[Prepared] = []
        self._writer: IndexWriter | None = None
        self._snapshot: IndexSnapshot | None = None
        self._stamp: tuple[object, ...] = ()

    # Adding and deleting

    def add(self, doc_id: str, text: str, host: str | None = None) -> None:
        """Add a document, or replace the text of the document with this id.

        *host* defaults to the host of *doc_id* if that is a URL. Raises SettingError for an invalid id, host or text;
        StoreUnavailable if the pending documents cannot be written.
        """
        named = _named(doc_id, text, host)
        with self._open():
            self._batch.append(named)
            self._batch_characters += len(text)
            if self._batch_characters >= BATCH_CHARACTERS or len(self._batch) >= BATCH_DOCUMENTS:
                self._prepare_batch()
                self._flush_if_full()

    def add_all(
        self, documents: Iterable[tuple[str, str] | tuple[str, str, str | None]], jobs: int | None = None
    ) -> None:
        """Add documents, given as tuples of the arguments of `add`; several processes prepare them."""
        with self._open():
            self._prepare_batch()
        prepare_one = partial(prepare, parameters=self.parameters)
        named = (_named(*document) for document in documents)
        batches = batches_of(named, lambda document: len(document[2]), BATCH_CHARACTERS, BATCH_DOCUMENTS)
        jobs = self.jobs if jobs is None else jobs
        with contextlib.closing(run_in_order(prepare_one, batches, jobs)) as all_prepared:
            for prepared in all_prepared:
                self.add_prepared(prepared)

    def add_prepared(self, prepared: Prepared) -> None:
        """Add the result of `preparation.prepare`, made with the parameters of this index."""
        with self._open():
            self._prepare_batch()
            self._pending.append(prepared)
            self._flush_if_full()

    @property
    def pending_bytes(self) -> int:
        """Size of the pending texts in bytes of UTF-8; the last, unprepared batch is counted in characters."""
        with self._thread_lock:
            return self._batch_characters + sum(int(prepared.byte_counts.sum()) for prepared in self._pending)

    @property
    def pending_documents(self) -> int:
        """How many added documents are not yet written. A document that was added twice counts twice."""
        with self._thread_lock:
            return len(self._batch) + sum(len(prepared.doc_ids) for prepared in self._pending)

    def flush(self) -> None:
        """Write the pending documents to the disk. Afterwards other processes see them.

        Raises StoreUnavailable if another process is writing, or if there is no space. The documents then stay pending,
        unless the error came after they were written. While another thread is in an atomic `writing`, the documents are
        committed at the end of that block.
        """
        with self._open():
            self._prepare_batch()
            if self._pending or not (self.path / MANIFEST).exists():
                with self._writing("") as writer:
                    if self._pending:
                        writer.add(self._pending, self._mark_written)
                    self._merge_small_segments(writer)

    def delete(self, doc_id: str) -> bool:
        """Delete a document. Returns False if there is no document with this id. Raises StoreUnavailable."""
        return self.delete_many([doc_id])[0]

    def delete_many(self, doc_ids: Iterable[str]) -> list[bool]:
        """Delete documents as one change. Returns for each whether it existed. Raises StoreUnavailable."""
        with self._open():
            self.flush()
            with self._writing(self.command or "delete") as writer:
                was_there = writer.delete(doc_ids)
                self._merge_small_segments(writer)
                return was_there

    def compact(self) -> bool:
        """Merge all segments into one, and free the space of deleted documents. Returns False if there is nothing to do.

        Needs as much free space as the index takes. Raises StoreUnavailable, and StoreRefused for a damaged index.
        """
        with self._open():
            self.flush()
            with self._writing(self.command or "compact") as writer:
                is_changed = writer.compact()
                self._merge_succeeded()
                return is_changed

    @contextlib.contextmanager
    def writing(self, command: str = "", *, atomic: bool = False) -> Iterator[Self]:
        """Keep the index locked during the block.

        *command* is shown to other processes that find the index locked; it defaults to the *command* of this instance.
        Documents that are pending at the start are written first; documents added in the block are written at its end at
        the latest. With *atomic*, the changes of the block are committed together at its end, or discarded if it raises;
        until then, queries see the index as it was before the block. A nested block belongs to the outer one. Raises
        StoreUnavailable if another process is writing; RuntimeError for *atomic* within an outer block without it.

        Changes by other threads during the block belong to it: if it raises, those not yet on the disk are lost.
        """
        held = contextlib.ExitStack()
        with self._open():
            self.flush()
            outer, before = self._writer, self.added
            if outer is not None and atomic and not outer.is_atomic:
                raise RuntimeError(
                    f"A block with atomic=True cannot be nested in one without, in {self.path}."
                )
            writer = held.enter_context(self._writing(command, atomic=atomic))
        try:
            yield self
            with self._thread_lock:
                self.flush()
                if outer is None:
                    writer.commit()
        except BaseException:
            self._discard_pending()
            raise
        finally:
            # Another thread must not write between the reset of `added` and the release of the lock.
            with self._thread_lock:
                if outer is None and not writer.is_committed:
                    self.added = before
                held.close()

    # Queries

    def like(self, text: str, top: int = 10, **options: Any) -> list[Hit]:
        """The *top* documents that share passages with a text, best first. Takes the options of `queries.like`."""
        with self._open():
            return queries.like(self.snapshot(), text, top, **options)

    def extract(self, **options: Any) -> Iterator[Passage]:
        """The repeated passages, those with the largest saving first. Takes the options of `extraction.extract`."""
        from . import extraction

        with self._open():
            return self._while_open(extraction.extract(self.snapshot(), **options))

    def text(self, doc_id: str) -> str:
        """The text of a document. Raises KeyError for an unknown id; StoreRefused if the index stores no texts."""
        with self._open():
            snapshot = self.snapshot()
            number = snapshot.document_number(doc_id)
            if number is None:
                raise KeyError(doc_id)
            return snapshot.text(int(snapshot.text_numbers[number]))

    @property
    def documents(self) -> Iterator[IndexedDocument]:
        """All documents, in the order in which they were added."""
        with self._open():
            return self._while_open(self.snapshot().iter_documents())

    def __len__(self) -> int:
        """How many documents the index has."""
        with self._open():
            return self.snapshot().document_count

    def __contains__(self, doc_id: str) -> bool:
        with self._open():
            return self.snapshot().document_number(doc_id) is not None

    def check(self, *, full: bool = False) -> IndexCheck:
        """Check the index for damage. With *full*, also compute all posts again and compare them."""
        self.flush()
        return checking.check(self.path, full=full)

    def inspect(self, **options: Any) -> Inspected:
        """Statistics of the index. Takes the options of `inspection.inspect`."""
        with self._open():
            return inspection.inspect(self.snapshot(), **options)

    def snapshot(self) -> IndexSnapshot:
        """A snapshot of the index that includes all added documents. It stays unchanged and is usable until `close`.

        Within an atomic `writing`, it shows the index as it was before the block.
        """
        with self._open():
            self.flush()
            try:
                stamp = manifest_stamp(self.path)
            except (FileNotFoundError, NotADirectoryError):
                raise no_index(self.path) from None
            self._create = False
            if self._snapshot is None or stamp != self._stamp:
                # The previous snapshot stays open, since a caller may still be reading from it.
                self._snapshot, self._stamp = IndexSnapshot.open(self.path), stamp
            return self._snapshot

    # Closing

    def close(self) -> None:
        """Write the pending documents, and close all files.

        Raises StoreUnavailable if they cannot be written; they are then lost.
        """
        with self._thread_lock:
            if self._is_closed:
                return
            try:
                if self._create or self.pending_documents:
                    self.flush()
            finally:
                self._release()

    def __enter__(self) -> Self:
        with self._open():
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            # Do not write: a failed write would hide the original error.
            with self._thread_lock:
                self._release()

    def _release(self) -> None:
        self._is_closed = True
        self._discard_pending()
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.close()

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Hold the lock between threads. Raises ValueError if the index is closed."""
        with self._thread_lock:
            if self._is_closed:
                raise ValueError(f"The index {self.path} is closed. Open it again.")
            yield

    def _while_open(self, items: Iterator[Item]) -> Generator[Item]:
        """Yield the items of an iterator that reads the files. Raises ValueError after the index is closed."""
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
                items.close()  # removes a work folder now instead of at garbage collection

    def _prepare_batch(self) -> None:
        if self._batch:
            prepared = prepare(self._batch, self.parameters)
            self._pending.append(prepared)
            self._batch = []
            self._batch_characters = 0

    def _flush_if_full(self) -> None:
        posts = sum(len(prepared.keys) for prepared in self._pending)
        documents = sum(len(prepared.doc_ids) for prepared in self._pending)
        if (
            posts >= MAX_PENDING_POSTS
            or documents >= MAX_PENDING_DOCUMENTS
            or self.pending_bytes >= MAX_PENDING_BYTES
        ):
            self.flush()

    def _discard_pending(self) -> None:
        self._batch = []
        self._batch_characters = 0
        self._pending = []

    def _mark_written(self, added: AddedDocuments) -> None:
        self.added += added
        self._pending = []

    def _merge_small_segments(self, writer: IndexWriter) -> None:
        """Merge small segments. A failure does not undo what was written before."""
        if time.monotonic() < self._next_merge_at:
            return
        try:
            writer.tidy(self._max_merge_size)
        except (StoreError, OSError) as error:
            self.merge_error = error
            self._merge_pause_s = min(max(2 * self._merge_pause_s, FIRST_MERGE_PAUSE_S), MAX_MERGE_PAUSE_S)
            self._next_merge_at = time.monotonic() + self._merge_pause_s
        else:
            self._merge_succeeded()

    def _merge_succeeded(self) -> None:
        self.merge_error = None
        self._merge_pause_s = self._next_merge_at = 0.0

    @contextlib.contextmanager
    def _writing(self, command: str, *, atomic: bool = False) -> Iterator[IndexWriter]:
        """The writer of the index, with the lock held. Within `writing`, the writer of that block."""
        if self._writer is not None:
            self._writer.check_usable()
            self._writer.watch = self.watch
            yield self._writer
            return
        if not self._create and not (self.path / MANIFEST).exists():
            raise no_index(self.path)
        with WriterLock(self.path, command or self.command, timeout_s=self.lock_timeout_s):
            self._writer = IndexWriter(self.path, self.parameters, atomic=atomic)
            self._writer.watch = self.watch
            self._create = False  # an index that is deleted from now on is not created again
            try:
                yield self._writer
            finally:
                writer, self._writer = self._writer, None
                writer.close()


def _named(doc_id: str, text: str, host: str | None = None) -> Named:
    """A document in the form that `prepare` takes. Raises SettingError for invalid values."""
    checked_name(doc_id)
    if host is not None:
        checked_host(host)
    return doc_id, host, checked_text(doc_id, text)


def parameters_of(
    path: Path,
    tokeniser: str | None,
    blotter: str | Mapping[str, Any] | None,
    store_text: bool | None,
    *,
    create: bool,
) -> Parameters:
    """The parameters of the index in the folder *path*, or the requested ones if there is no index.

    With *create*, an index that never had a document counts as missing. Raises the exceptions of `PassageIndex`.
    """
    manifest = read_manifest(path)
    if manifest is None and not create:
        raise no_index(path)
    if manifest is None or (create and manifest.is_unused):
        made = blotter_of("rolling" if blotter is None else blotter)
        name = tokeniser_named("words" if tokeniser is None else tokeniser).name
        return Parameters(name, made.spec, store_text is not False, key_bits(made))
    has = manifest.parameters
    refuse_unknown_parameters(path, has)
    made = blotter_of(has.blotter if blotter is None else blotter)
    asked = Parameters(
        has.tokeniser if tokeniser is None else tokeniser_named(tokeniser).name,
        made.spec,
        has.has_texts if store_text is None else store_text,
        key_bits(made),
    )
    refuse_other_parameters(path, has, asked)
    return has
