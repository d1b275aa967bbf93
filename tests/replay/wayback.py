"""A pywb server with collections of files."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WAYBACK = shutil.which("wayback", path=os.environ.get("PYWB_BIN"))
MANAGER = shutil.which("wb-manager", path=os.environ.get("PYWB_BIN"))
IS_MISSING = not (WAYBACK and MANAGER) and "PYWB_BIN" not in os.environ


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer of the server."""

    status: int
    exchange: str | None
    coding: str | None
    body: bytes


class Wayback:
    """Collections of WARC and WACZ files are made with `add`, then the server is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def add(self, collection: str, files: Iterable[Path]) -> None:
        assert MANAGER
        for words in (["init", collection], ["add", "--unpack-wacz", collection, *map(str, files)]):
            subprocess.run([MANAGER, *words], cwd=self.folder, check=True, capture_output=True)

    def start(self) -> None:
        assert WAYBACK
        with (self.folder / "wayback.log").open("wb") as log:
            self.process = subprocess.Popen(
                [WAYBACK, "-p", str(self.port), "-b", "127.0.0.1"],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def get(self, collection: str, moment: str, url: str) -> Shown:
        """What is shown for a URL at a moment of 14 digits."""
        quoted = urllib.parse.quote(url, safe="/:?&=%")
        asked = f"http://127.0.0.1:{self.port}/{collection}/{moment}id_/{quoted}"
        deadline = time.monotonic() + 240
        while True:
            try:
                try:
                    answer = urllib.request.urlopen(asked, timeout=240)
                except urllib.error.HTTPError as error:
                    answer = error
                with answer:
                    head = answer.headers
                    return Shown(answer.status, head["X-Exchange"], head["Content-Encoding"], answer.read())
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(240)
