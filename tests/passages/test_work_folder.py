"""What a killed process has left of its work is removed by the next one; what another one works in is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scrapy_dedupe.passages.work_files import work_folder

HOLDING = """
import sys
from pathlib import Path
from scrapy_dedupe.passages.work_files import work_folder
with work_folder(Path("index"), Path(sys.argv[1])) as folder:
    (folder / "file").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(tmp_path: Path, is_killed: bool) -> None:
    other = tmp_path / "scrapy-dedupe-passages-of-somebody"
    other.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        if is_killed:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.utime(left / ".held", (0, 0))
        with work_folder(tmp_path / "index", tmp_path) as folder:
            assert folder.is_dir()
            assert left.exists() is not is_killed
        process.stdin.close()  # type: ignore[union-attr]
    assert list(tmp_path.iterdir()) == [other]
