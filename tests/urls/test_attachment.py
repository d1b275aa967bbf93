from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.live.urls.shared import LastAttachment
from scrapy_dedupe.urls.attachment import is_gone, new_token, own_tokens

if TYPE_CHECKING:
    from pathlib import Path


def test_a_token_of_this_process_is_gone_unless_it_is_held() -> None:
    token = new_token()
    assert token.startswith(f"{socket.gethostname()}/{os.getpid()}/")
    assert is_gone(token)
    own_tokens.add(token)
    assert not is_gone(token)
    own_tokens.remove(token)
    assert is_gone(token)


@pytest.mark.skipif(os.name == "nt", reason="there it cannot be asked whether a process runs")
def test_a_process_of_this_machine_is_gone_when_it_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    token = f"{socket.gethostname()}/{process.pid}/x"
    assert not is_gone(token)
    process.communicate(b"\n")
    assert is_gone(token)


@pytest.mark.parametrize("token", ["elsewhere/1/x", "x", "", "/1/x", f"{socket.gethostname()}/one/x"])
def test_what_is_not_of_this_machine_is_not_called_gone(token: str) -> None:
    assert not is_gone(token)


def test_a_process_of_another_user_is_not_gone() -> None:
    assert not is_gone(f"{socket.gethostname()}/1/x")


def test_a_job_keeps_generation_and_token_in_a_line_of_text(tmp_path: Path) -> None:
    path = tmp_path / "dedupe" / "urls" / "shared"
    assert LastAttachment.read(path) == LastAttachment("", "")
    LastAttachment("generation", "host/1/x").write(path)
    assert path.read_text() == "generation host/1/x\n"
    assert LastAttachment.read(path) == LastAttachment("generation", "host/1/x")
    assert [entry.name for entry in path.parent.iterdir()] == ["shared"]


def test_a_job_that_ended_in_good_order_says_so(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    LastAttachment("generation", "host/1/x", is_clean=True).write(path)
    assert path.read_text() == "generation host/1/x whole\n"
    assert LastAttachment.read(path) == LastAttachment("generation", "host/1/x", is_clean=True)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", LastAttachment()),
        ("\n", LastAttachment()),
        ("a\n", LastAttachment("a")),
        ("a b wh", LastAttachment("a", "b")),
    ],
)
def test_of_a_torn_line_what_is_there_is_read(tmp_path: Path, text: str, kept: LastAttachment) -> None:
    path = tmp_path / "shared"
    path.write_text(text)
    assert LastAttachment.read(path) == kept
    assert isinstance(LastAttachment.read(path).generation, str)


def test_what_a_job_keeps_is_not_passed_over_when_it_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(StoreUnavailable, match="shared cannot be read"):
        LastAttachment.read(path)
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        LastAttachment("a", "b").write(path / "below")
