"""The modules of scrapy_dedupe that run while the example crawl is going on, with one layer at a time.

    python benchmarks/modules.py [--only fingerprint|page|response]

Each crawl has only one layer and no report, so the modules that run are those of one path:

*   ``response``: a response to its record in the WARC file and its entry in the crawl index;
*   ``page``: a page to its verdict;
*   ``fingerprint``: the fingerprint of a request to its journal in JOBDIR.

A module counts if one of its functions is called between the start of the engine and the first time the spider is
idle, on any thread. Startup and shutdown do not count. Fewer modules are easier to read; the number says nothing
about speed.
"""

from __future__ import annotations

import argparse
import inspect
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

EXAMPLE = Path(__file__).resolve().parent.parent / "example_project"
LAYERS = {"response": "WARC", "page": "CONTENT", "fingerprint": "URL"}


def crawl(path: str) -> None:
    """Run the example crawl with the layer of *path* in the current folder and print the modules that ran."""
    os.environ["SCRAPY_SETTINGS_MODULE"] = "example.settings"
    sys.path.insert(0, str(EXAMPLE))
    from scrapy import signals
    from scrapy.crawler import AsyncCrawlerProcess
    from scrapy.utils.project import get_project_settings

    calls: Counter[str] = Counter()
    is_counting = False

    def count(frame: FrameType, event: str, _: Any) -> None:
        # The bodies of modules and classes run once, when they are imported; they are not optimized.
        if is_counting and event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            calls[str(frame.f_globals.get("__name__"))] += 1

    def engine_started() -> None:
        nonlocal is_counting
        is_counting = True

    def spider_idle() -> None:
        nonlocal is_counting
        is_counting = False

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings = get_project_settings()
    settings.set("EXAMPLE_SITE_PORT", port)
    settings.set("LOG_LEVEL", "ERROR")
    settings.set("JOBDIR", "job")
    settings.set("DEDUPE_URL_FLUSH_SECONDS", 0.05)
    settings.set("EXTENSIONS", {**settings["EXTENSIONS"], "scrapy_dedupe.extensions.ReportExtension": None})
    for layer in LAYERS.values():
        settings.set(f"DEDUPE_{layer}_ENABLED", layer == LAYERS[path])
    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler("site")
    crawler.signals.connect(engine_started, signal=signals.engine_started)
    crawler.signals.connect(spider_idle, signal=signals.spider_idle)
    # Before the worker thread is started.
    threading.setprofile(count)
    sys.setprofile(count)
    process.crawl(crawler)
    process.start()
    sys.setprofile(None)
    for name, number in sorted(calls.items()):
        if name.split(".")[0] == "scrapy_dedupe":
            print(f"{number:10,}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=LAYERS, help="run only this path")
    parser.add_argument("--crawl", choices=LAYERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crawl:
        crawl(options.crawl)
        return
    for path in [options.only] if options.only else LAYERS:
        command = [sys.executable, str(Path(__file__).resolve()), "--crawl", path]
        with tempfile.TemporaryDirectory() as folder:
            found = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
        print(f"{path}: {len(found.splitlines())} modules, with the number of calls\n{found}")


if __name__ == "__main__":
    main()
