"""Removing and replacing crawls in the crawl index in SQLite.

Readers find payloads only through the rows of crawls, so a purge takes effect in one small transaction: from then on a
payload is found in another crawl that has it too. The data of the purged crawl is deleted afterwards.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError

from .index_values import state_message
from .sqlite_faults import sqlite_faults
from .sqlite_index_base import SqliteIndexBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .index_model import OnDone


class SqliteRemoval(SqliteIndexBase):
    """The methods of :class:`~.crawl_index.CrawlIndex` for removal and repair."""

    def purge(self, crawls: Sequence[str], on_done: OnDone | None = None) -> None:
        with self._transaction():
            rows = {crawl: self._row(crawl) for crawl in crawls}
            for crawl, (_, state, imported) in rows.items():
                if state == "uncommitted":
                    state = "importing" if imported else state
                    raise CrawlStateError(state_message(crawl, state, "purged", self._url))
            for number, _, _ in rows.values():
                if number is not None:
                    self._waste(number, "purging")
                    self._connection.execute("DELETE FROM source_done WHERE crawl = ?", (number,))
            self._connection.executemany("DELETE FROM report WHERE crawl = ?", [(crawl,) for crawl in rows])
            self._forget_payload()
            self._note_none_missing()
        self._clear(on_done=on_done)

    def forget_canceled(self, crawl: str) -> None:
        with self._transaction():
            number, state, _ = self._row(crawl)
            if number is not None and state == "canceled":
                self._waste(number)
        self._clear()

    def unfinished_purge(self) -> list[str]:
        with sqlite_faults(self._url):
            rows = self._connection.execute(
                "SELECT id FROM crawl WHERE state = 'purging' ORDER BY id"
            ).fetchall()
        return [crawl.rpartition("/")[0] for (crawl,) in rows]

    def replace(self, crawl: str, by: str) -> None:
        action = f"used to replace {crawl}"
        with self._transaction():
            old, state, _ = self._row(crawl)
            new, new_state, is_import = self._row(by)
            if state != "committed":
                raise CrawlStateError(state_message(crawl, state, f"replaced by {by}", self._url))
            if new_state == "uncommitted" and is_import:
                new_state = "importing"
            if new_state == "uncommitted":
                assert old is not None
                assert new is not None
                if self._was_added_to(old, new):
                    raise CrawlStateError(state_message(crawl, "extended", f"replaced by {by}", self._url))
                self._replace(old, new, by)
            elif new_state != "unknown" or not self._was_replaced(by, crawl):
                raise CrawlStateError(state_message(by, new_state, action, self._url))
        self._clear()

    def merged_faults(self) -> int:
        return 0

    def rebuild_merged(self) -> None:
        """Do nothing: there is no separate merged index."""

    def _replace(self, old: int, new: int, by: str) -> None:
        kept = (
            "id, state, started, committed, commit_order, incomplete, software, stats, imported, concurrent"
        )
        values = self._connection.execute(
            f"SELECT {kept} FROM crawl WHERE number = ?",  # noqa: S608 - constants
            (old,),
        ).fetchone()
        self._connection.execute("DELETE FROM crawl_container WHERE crawl = ?", (new,))
        for table in ("crawl_container", "source_done"):
            self._connection.execute(f"UPDATE {table} SET crawl = ? WHERE crawl = ?", (new, old))  # noqa: S608
        self._waste(old)
        marks = ", ".join("?" * len(values))
        self._connection.execute(
            f"UPDATE crawl SET ({kept}) = ({marks}) WHERE number = ?",  # noqa: S608 - constants
            (*values, new),
        )
        # This id shows a repeated call that the replacement was already made.
        self._connection.execute(
            "UPDATE crawl SET id = ? || '/' || ? || '/' || number WHERE number = ?", (values[0], by, old)
        )

    def _note_none_missing(self) -> None:
        """Forget how many crawls the last manifest did not name, since these may be the removed ones."""
        text = self._mark("imports")
        if text is not None:
            notes = json.dumps(json.loads(text) | {"removedCrawls": 0, "removedCrawlSize": 0})
            self._connection.execute("UPDATE index_mark SET value = ? WHERE name = 'imports'", (notes,))

    def _was_added_to(self, crawl: int, since: int) -> bool:
        """Whether a source of a crawl has begun, or has ended after another crawl was started."""
        row = self._connection.execute(
            "SELECT EXISTS (SELECT 1 FROM source_begun WHERE crawl = ?1)"
            " OR EXISTS (SELECT 1 FROM source_done WHERE crawl = ?1 AND ended_after >= ?2)",
            (crawl, since),
        ).fetchone()
        return bool(row[0])

    def _was_replaced(self, by: str, crawl: str) -> bool:
        row = self._connection.execute(
            "SELECT count(*) FROM crawl WHERE state IN ('waste', 'gone') AND id = ? || '/' || ? || '/' || number",
            (crawl, by),
        ).fetchone()
        return bool(row[0])
