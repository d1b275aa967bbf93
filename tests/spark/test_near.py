"""``near`` on Spark gives the rows that it gives on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from listed_archives import ListedFile
from near.made_crawls import HTML, html
from offline.calling import done

if TYPE_CHECKING:
    from pathlib import Path

LONG = [f"word{number}" for number in range(100)]


def test_the_rows_are_the_same(session: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for host in ("a", "b", "c"):
        file = ListedFile(tmp_path / f"in/{host}.warc.gz", "")
        for number, words in enumerate((LONG, [*LONG[1:], host], [f"{host}{word}" for word in LONG])):
            date = f"2024-01-0{number + 1}T00:00:00Z"
            file.add(html("T", words), f"http://{host}.example/{number}", date, headers=HTML)
    here = done(tmp_path, "near", "in", "-o", "near.jsonl")
    there = done(tmp_path, "near", "in", "-o", "far.jsonl", "--engine", "spark")
    assert (tmp_path / "far.jsonl").read_bytes() == (tmp_path / "near.jsonl").read_bytes()
    assert there.out == here.out.replace("near.jsonl", "far.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far.jsonl", "in", "near.jsonl"]
