"""The doctor tries what people and programs read besides, as a crawl would, and leaves nothing there."""

from __future__ import annotations

import os
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from doctored_projects import ADDON, listing, of
from servers import free_port

from scrapy_dedupe.urls.journal import SEEN, Journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_outputs_that_can_be_written(project: Callable[..., Any], tmp_path: Path) -> None:
    port = free_port()
    settings = (
        f'{ADDON}DEDUPE_REPORT = "reports/%(name)s-%(time)s.html"\nDEDUPE_DUPLICATES_LOG = "logs/%(name)s.jsonl"\n'
        f'DEDUPE_METRICS_FILE = "dedupe.prom"\nDEDUPE_METRICS_PORT = {port}\n'
    )
    project()
    before = listing(tmp_path)
    findings = project(settings)
    assert of(findings, "problem") == ""
    told = of(findings, "ok")
    for words in (
        "Report: a page with charts was rendered, and can be written to reports/any-now.html.",
        "The file logs/any.jsonl of DEDUPE_DUPLICATES_LOG can be written.",
        f"The metrics can be read at {tmp_path / 'project' / 'dedupe.prom'}.",
        f"The metrics can be read at 127.0.0.1:{port}.",
    ):
        assert words in told
    assert listing(tmp_path) == before


def test_outputs_that_cannot_be_written(project: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        findings = project(
            f'{ADDON}DEDUPE_REPORT = "{tmp_path}/file/report.html"\nDEDUPE_DUPLICATES_LOG = "{tmp_path}/folder"\n'
            f'DEDUPE_METRICS_FILE = "{tmp_path}/file/m.prom"\nDEDUPE_METRICS_PORT = {port}\n',
            code=3,
        )
    told = of(findings, "problem")
    is_file = f"cannot be written: {tmp_path}/file is a file. Name another file."
    assert f"The report page {tmp_path}/file/report.html (DEDUPE_REPORT) {is_file}" in told
    assert f"The duplicates log {tmp_path}/folder (DEDUPE_DUPLICATES_LOG) cannot be written: Is a dir" in told
    assert f"The metrics file {tmp_path}/file/m.prom (DEDUPE_METRICS_FILE) {is_file}" in told
    assert f"127.0.0.1:{port}: Address already in use. Set DEDUPE_METRICS_PORT to a free port" in told


def test_a_device_is_no_file_that_is_replaced(project: Callable[..., Any]) -> None:
    findings = project(
        f'{ADDON}DEDUPE_REPORT = "/dev/null"\nDEDUPE_DUPLICATES_LOG = "/dev/null"\nDEDUPE_METRICS_FILE = "/dev/null"\n',
        code=3,
    )
    told = of(findings, "problem")
    for name in ("DEDUPE_REPORT", "DEDUPE_METRICS_FILE"):
        assert f"/dev/null ({name}) cannot be written: it is not a file." in told
    assert "The file /dev/null of DEDUPE_DUPLICATES_LOG can be written." in of(findings, "ok")


def test_the_port_of_a_crawl_that_runs(project: Callable[..., Any]) -> None:
    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'dedupe_crawl_info{crawl="a",spider="b"} 1.0\n')

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        findings = project(f"{ADDON}DEDUPE_METRICS_PORT = {server.server_port}\n")
        server.shutdown()
        thread.join()
    assert "A second crawl at the same time needs another DEDUPE_METRICS_PORT." in of(findings, "note")


@pytest.mark.parametrize("name", ["DEDUPE_REPORT", "DEDUPE_DUPLICATES_LOG", "DEDUPE_METRICS_FILE"])
def test_an_output_without_its_extension(project: Callable[..., Any], name: str) -> None:
    by_hand = 'ITEM_PIPELINES = {"scrapy_dedupe.pipelines.WarcPipeline": 900}\n'
    told = of(project(f'{by_hand}{name} = "out"\n'), "warning")
    assert f"The setting {name} has no effect, since scrapy_dedupe." in told


def test_files_that_are_to_be_replayed(project: Callable[..., Any], tmp_path: Path) -> None:
    told = of(project(f'{ADDON}DEDUPE_REPLAY = ["{tmp_path}/*.warc"]\n', code=3), "problem")
    assert "matches no file" in told
    (tmp_path / "one.warc").write_bytes(
        b"WARC/1.1\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n"
    )
    assert "Replay: 1 file found." in of(project(f'{ADDON}DEDUPE_REPLAY = ["{tmp_path}/*.warc"]\n'), "ok")


def test_a_journal_of_the_job_that_is_damaged(project: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "job" / "dedupe" / "urls"
    folder.mkdir(parents=True)
    settings = f'{ADDON}JOBDIR = "{tmp_path}/job"\n'
    journal = Journal(folder / "urls.seen", "scrapy.utils.request.RequestFingerprinter", SEEN)
    journal.lock()
    try:
        journal.open()
        # As while a crawl runs.
        assert of(project(settings), "problem") == ""
    finally:
        journal.close()
    (folder / "urls.seen").write_bytes(b"x" * 100)
    assert "is not a journal of seen requests" in of(project(settings, code=3), "problem")
    assert (folder / "urls.seen").read_bytes() == b"x" * 100


def test_classes_that_are_set_by_hand_without_the_one_that_keeps_what_is_reported(
    project: Callable[..., Any],
) -> None:
    pipeline = 'ITEM_PIPELINES = {"scrapy_dedupe.pipelines.WarcPipeline": 300}\n'
    words = "scrapy_dedupe.extensions.ReportExtension is not among the EXTENSIONS"
    assert words in of(project(pipeline), "note")
    extension = 'EXTENSIONS = {"scrapy_dedupe.extensions.ReportExtension": 500}\n'
    assert words not in str(project(pipeline + extension))
    assert words not in str(project())


def test_a_link_is_tried_where_it_leads(project: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "m.prom").symlink_to(tmp_path / "file" / "m.prom")
    findings = project(f'{ADDON}DEDUPE_METRICS_FILE = "{tmp_path}/m.prom"\n', code=3)
    assert f"cannot be written: {tmp_path}/file is a file." in of(findings, "problem")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do all")
def test_what_is_replaced_needs_its_folder_and_what_is_added_to_does_not(
    project: Callable[..., Any], tmp_path: Path
) -> None:
    settings = f'{ADDON}DEDUPE_DUPLICATES_LOG = "{tmp_path}/f/d.jsonl"\nDEDUPE_METRICS_FILE = "{tmp_path}/f/m.prom"\n'
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "d.jsonl").touch()
    (folder / "m.prom").touch(0o444)
    assert of(project(settings), "problem") == ""
    folder.chmod(0o555)
    told = of(project(settings, code=3), "problem")
    assert f"(DEDUPE_METRICS_FILE) cannot be written: there is no permission for {folder}." in told
    assert "The duplicates log" not in told
