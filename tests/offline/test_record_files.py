"""``RecordFile``: a file is there when it is whole, and what it was made from stayed as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline.file_rewriting import RecordFile

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("gzip", [True, False])
@pytest.mark.parametrize("size", [4, 9 << 20])
@pytest.mark.parametrize("more", [-1, 1])
def test_a_block_of_another_length_is_told_and_leaves_no_file(
    gzip: bool, size: int, more: int, tmp_path: Path
) -> None:
    with RecordFile(tmp_path / "a.warc", gzip=gzip) as file:
        file.write(b"WARC/1.0\r\n\r\n", [b"a block"], 7)
        with pytest.raises(ArchiveError, match=r"a\.warc cannot be written: .* changed .* Start again"):
            file.write(b"WARC/1.0\r\n\r\n", [bytes(size + more)], size)
    assert not list(tmp_path.iterdir())
