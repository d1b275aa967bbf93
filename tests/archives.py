"""Looks at WARC files with readers that this project did not write."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warcio.archiveiterator import ArchiveIterator

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Seen:
    """A record as warcio reads it."""

    type: str
    headers: dict[str, str]
    status: str | None
    http_headers: list[tuple[str, str]]
    payload: bytes

    @property
    def uri(self) -> str | None:
        return self.headers.get("WARC-Target-URI")

    @property
    def id(self) -> str:
        return self.headers["WARC-Record-ID"]


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.warc*"))


def records_of(*folders: Path) -> list[Seen]:
    """All records of the files in *folders*, in order."""
    found = []
    for folder in folders:
        for path in files_of(folder):
            with path.open("rb") as stream:
                for record in ArchiveIterator(stream):
                    http = record.http_headers
                    found.append(
                        Seen(
                            type=record.rec_type,
                            headers=dict(record.rec_headers.headers),
                            status=http.get_statuscode() if http else None,
                            http_headers=list(http.headers) if http else [],
                            payload=record.raw_stream.read(),
                        )
                    )
    return found


def check(folder: Path) -> None:
    """Both judges accept every file, and every revisit refers to a response that is there."""
    paths = [str(path) for path in files_of(folder)]
    assert paths
    for judge in (["warcio.cli", "check"], ["fastwarc.cli", "check"]):
        for path in paths:
            done = subprocess.run(
                [sys.executable, "-m", *judge, path], check=False, capture_output=True, text=True
            )
            assert done.returncode == 0, (judge, path, done.stdout, done.stderr)
