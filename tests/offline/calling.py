"""The command line, called in this process or in one of its own."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.commands.console import main

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = (
    sys.executable,
    "-c",
    "import sys; from scrapy_dedupe.commands.console import main; sys.exit(main())",
)


@dataclass(frozen=True, slots=True)
class Called:
    """What a call of the command line gave back."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentences(self) -> str:
        """What it says to a reader, without a traceback, which it must never show but for its own faults."""
        assert "Traceback" not in self.err, self.err
        return self.err


def call(folder: Path, *words: str | Path) -> Called:
    """Call ``scrapy-dedupe`` in *folder*."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = int(str(stop.code or 0))
    return Called(code, out.getvalue(), err.getvalue())


def done(folder: Path, *words: str | Path) -> Called:
    """Like `call`, for what has to succeed."""
    called = call(folder, *words)
    assert called.code == 0, (words, called)
    return called
