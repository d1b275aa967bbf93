"""Scrapy's own tests of its HTTP cache, from its source distribution, with the archive as storage.

Only tests of the policy of RFC 2616 are run, and only those that store pages with status 200, since the archive serves no
others. Their responses have no body, which is no page either, so they get one.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from scrapy.http import Response

from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.httpcache import ArchiveCacheStorage
from scrapy_dedupe.live.responses import capture_of
from scrapy_dedupe.live.session import Session
from scrapy_dedupe.warc.files import WarcWriter

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

pytestmark = pytest.mark.exhaustive

# The others need other statuses, a pipeline that records a 304, or, in test_cached_and_stale, a page with no-cache
# instead of an error of the server: RFC 9111 (section 5.2.2.4) does not allow it.
TESTS = (
    "test_cache_timestamp",
    "test_cache_timestamp_not_leaked_on_invalidate",
    "test_dont_cache",
    "test_max_stale_with_value",
    "test_middleware_ignore_schemes",
    "test_process_exception",
    "test_request_cacheability",
    "test_response_dated_in_the_future",
)


class _Named(type(Response)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Response)


class Page(Response, metaclass=_Named):
    def __init__(self, url: str, *args: Any, **kwargs: Any) -> None:
        kwargs["body"] = kwargs.get("body") or b"a page"
        super().__init__(url, *args, **kwargs)


class RecordingStorage(ArchiveCacheStorage):
    """Records the responses itself, since these tests have no item pipeline."""

    def open_spider(self, spider: Any) -> None:
        super().open_spider(spider)
        session = self._session = Session.of(spider.crawler)
        index = session.stores.open(session.settings.warc.index_url).index
        index.start(session.crawl_id, "stored")
        writer = WarcWriter(session.settings.warc.folder, "scrapy", info={}, crawl=session.crawl_id)
        guard = session.stores.breaker(session.settings.warc.index_url)
        self._recorder = Recorder(writer, index, session.crawl_id, guard)

    def store_response(self, spider: Any, request: Any, response: Any) -> None:
        if "cached" in response.flags:
            return  # No server has sent it.

        def record() -> None:
            # Some of these tests answer a request with a response of another URL.
            self._recorder.record(replace(capture_of(request, response), url=request.url))
            self._recorder.flush()

        self._session.worker.submit(record).result(30)

    def close_spider(self, spider: Any) -> None:
        self._recorder.finish()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("scrapy")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    done = subprocess.run(
        [*command, "-d", str(folder), f"scrapy=={scrapy.__version__}"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("the source distribution of Scrapy cannot be downloaded")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        member = next(
            name for name in files.getnames() if name.endswith("/test_downloadermiddleware_httpcache.py")
        )
        files.extract(member, folder, filter="data")
    spec = importlib.util.spec_from_file_location("scrapy_httpcache_tests", folder / member)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "RFC2616PolicyTestMixin"):
        pytest.skip(f"the tests of Scrapy {scrapy.__version__} have another form")
    module.Response = Page  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize("name", TESTS)
def test_scrapys_test_of_the_policy_passes(name: str, theirs: ModuleType, tmp_path: Path) -> None:
    class Ours(theirs.RFC2616PolicyTestMixin):  # type: ignore[misc, name-defined]
        policy_class = "scrapy.extensions.httpcache.RFC2616Policy"
        storage_class = RecordingStorage

        def _get_settings(self, **values: Any) -> dict[str, Any]:
            folder = tmp_path / str(len([*tmp_path.iterdir()]))
            folder.mkdir()
            own = {
                "DEDUPE_STORE_URL": f"sqlite:///{folder}/index.sqlite",
                "DEDUPE_WARC_DIR": str(folder / "warcs"),
            }
            return {**super()._get_settings(**values), **own}

        def assertEqualResponse(self, one: Response, other: Response) -> None:
            # Each response has the URL of its request, and the headers from which a policy can compute freshness.
            assert (one.status, one.body) == (other.status, other.body)

    if not hasattr(Ours, name):
        pytest.skip(f"Scrapy {scrapy.__version__} has no such test")
    test = Ours()
    test.setup_method()
    try:
        getattr(test, name)()
    finally:
        test.teardown_method()
