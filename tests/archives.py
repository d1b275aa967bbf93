"""Looks at WARC files with readers that this project did not write."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import fastwarc.cli
import warcio.cli
from programs import run_program
from warcio.archiveiterator import ArchiveIterator

if TYPE_CHECKING:
    from collections.abc import Callable
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
    paths = files_of(folder)
    assert paths
    for path in paths:
        for judge in (warcio.cli.main, fastwarc.cli.main):
            code, out = called_in_process(judge, "check", str(path))
            assert code == 0, (judge, path, out)


def called_in_process(program: Callable[[list[str]], object], *words: str) -> tuple[int, str]:
    """The exit code of another program's command line, and what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            program(list(words))
        except SystemExit as stop:
            return int(str(stop.code or 0)), out.getvalue()
    return 0, out.getvalue()


def validate(path: Path) -> None:
    """The validator of the format's own authors accepts a WACZ."""
    done = run_program("python", "-W", "ignore", "-m", "wacz.main", "validate", "-f", path)
    assert (done.returncode, "is valid" in done.stdout) == (0, True), (done.stdout, done.stderr)


def cdxj_of(path: Path, *options: str) -> str:
    """The lines that cdxj-indexer writes for a WARC file."""
    # In another process, since it leaves files open.
    done = run_program("python", "-W", "ignore", "-m", "cdxj_indexer.main", *options, path)
    assert done.returncode == 0, done.stderr
    return done.stdout
