"""The item pipeline that archives a crawl in WARC files.

Item pipelines do not receive responses, and spiders receive decoded ones. Exchanges are therefore captured on the
signal ``response_downloaded``, the only point where Scrapy still has the body as received. This includes redirects,
errors, retries, robots.txt and media. Items are not changed. A response that differs from what the server sent
(:func:`.live.responses.rendering_of`) is not recorded as an exchange: it is skipped, or becomes a ``resource`` record.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.utils.python import global_object_name

from .crawls import plain_name
from .crawls.crawl_files import PAYLOAD_FIELD, files_of
from .crawls.entries import RevisitRules
from .crawls.rebuilding import mend_others, settle
from .crawls.recorder import Recorder
from .errors import CrawlStateError, SettingError, naming
from .live.archive import SOFTWARE
from .live.archive.end import ArchiveEnd
from .live.recordings import Recordings
from .live.responses import capture_of, max_bytes
from .live.session import Session
from .reports.wording import without_user
from .warc.files import WarcWriter, prove_writable

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Request, Response

    from .settings.specs import Settings
    from .stores.crawl_index import CrawlIndex
    from .warc.capture import Capture, Rendering
    from .warc.storage import Storage

logger = logging.getLogger(__name__)

HEAD_IS_RECONSTRUCTED = (
    "The HTTP heads are reconstructed: header values and their order are as received, the status phrase is the"
    " standard one, header names are in title case, transfer coding is removed."
)
BODIES_ARE_DECODED = (
    " Content coding is removed too, and named in X-Orig-Content-Encoding; a body that still has a Content-Encoding could"
    " not be decoded, or is incomplete."
)
RESOURCES_ARE_RENDERED = (
    " Records of type resource are not as received: they hold what a browser rendered or a download handler decoded,"
    " without an HTTP head."
)


@dataclass(frozen=True, slots=True)
class WarcItem:
    """Yielded by a spider to archive *response* if ``DEDUPE_WARC_SCOPE`` is ``"items"``."""

    response: Response


class WarcPipeline:
    """Archives the exchanges of a crawl in WARC files.

    Logs and raises :class:`~scrapy_dedupe.errors.SettingError`, :class:`~scrapy_dedupe.errors.StoreError` or
    :class:`~scrapy_dedupe.errors.ArchiveError` at startup.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._session = Session.of(crawler)
        self._settings = self._session.settings.warc
        self._captures: WeakKeyDictionary[Request, Capture] = WeakKeyDictionary()
        self._rendering_handlers: set[str] = set()
        self._session.at_start(self._start)
        crawler.signals.connect(self._response_downloaded, signal=signals.response_downloaded)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> WarcPipeline:
        if not Session.of(crawler).is_crawl:
            raise NotConfigured
        return cls(crawler)

    def _start(self) -> None:
        session, settings = self._session, self._settings
        index = session.stores.open(settings.index_url).index
        storage = checked_storage(session.settings)
        check_folders(session.settings)
        known = {info.id: info for info in index.crawls()}

        def start(crawl: str) -> None:
            index.start(crawl, settings.payload, concurrent=settings.concurrent)

        try:
            start(session.crawl_id)
        except CrawlStateError as error:
            if settings.crawl_id is not None:
                raise SettingError(
                    f"The setting DEDUPE_CRAWL_ID is {settings.crawl_id!r}: {error} Use another id, or remove the setting."
                ) from error
            # An earlier run has finished and committed the crawl of this job: start a new crawl.
            start(session.renew_crawl_id())
        crawl = session.crawl_id
        rules = RevisitRules(settings.revisit, settings.min_size, settings.statuses, settings.mime_types)
        # A resumed crawl keeps the mode in which it was started.
        earlier = known.get(crawl)
        is_resumed = earlier is not None and earlier.state == "uncommitted"
        concurrent = earlier.concurrent if earlier is not None and is_resumed else settings.concurrent
        if crawl not in known:
            session.at_refusal(lambda: index.cancel(crawl))
        self._recover_files(index, crawl, rules, is_new=crawl not in known)
        if session.settings.wacz.enabled:
            from .crawls.packing import container_name

            index.add_container(crawl, container_name(crawl))
        # If any run of the crawl requested a WACZ, all its files are packed, regardless of the current settings.
        is_packed = bool(index.containers(crawl))
        uploads = None
        if storage is not None:
            from .live.archive.uploads import Uploads

            uploads = Uploads(session, storage, index, crawl)
        # Files that will be packed are uploaded as part of the WACZ.
        upload = uploads.submit if uploads is not None and not is_packed else None
        recorder = Recorder(
            self._writer(crawl, {Path(name).name for info in known.values() for name in info.files}),
            index,
            crawl,
            session.stores.breaker(settings.index_url),
            rules=rules,
            digest=settings.digest,
            check_files=settings.check_files,
            blackout_s=settings.blackout_s,
            containers_only=is_packed,
            payload=settings.payload,
            concurrent=concurrent,
            on_finished=upload,
            exchanges=session.exchanges,
        )
        ArchiveEnd(session, index, recorder, uploads, is_packed=is_packed)
        # After ArchiveEnd, so that the last counts are added when the recorder has finished.
        self._recordings = Recordings(session, recorder)
        session.set_warc_meta = self._recordings.set_meta
        session.layers["warc"] = settings.index_url
        if upload is not None:
            self._upload = upload
            folder = settings.folder.absolute()
            files = files_of(index, crawl, settings.folder) if crawl in known else []
            self._earlier_files = [file for file in files if isinstance(file, Path) and file.parent == folder]
            self._crawler.signals.connect(self._upload_earlier_files, signal=signals.spider_opened)

    def _upload_earlier_files(self) -> None:
        """Upload the files that an earlier run of this crawl did not upload."""
        for file in self._earlier_files:
            self._upload(file)

    def _recover_files(self, index: CrawlIndex, crawl: str, rules: RevisitRules, *, is_new: bool) -> None:
        """Repair files that killed runs of this crawl and of other crawls left incomplete."""
        repaired = "%s has %d complete records; %d bytes of an incomplete record were removed."
        for salvaged in settle(index, crawl, self._settings.folder, rules, is_new=is_new):
            logger.warning(
                f"The last run of this crawl was interrupted: {repaired}",
                salvaged.file,
                salvaged.records,
                salvaged.cut_bytes,
            )
        for other, salvaged in mend_others(index, self._settings.folder):
            logger.warning(
                f"The crawl %s was interrupted: {repaired} Run `scrapy dedupe commit` to keep the crawl, or `scrapy dedupe"
                " cancel` to discard it.",
                other,
                salvaged.file,
                salvaged.records,
                salvaged.cut_bytes,
            )

    def _writer(self, crawl: str, taken: set[str]) -> WarcWriter:
        settings = self._settings
        return WarcWriter(
            settings.folder.absolute(),
            settings.prefix or plain_name(self._session.spider_name, 64),
            file_size=settings.file_size,
            gzip=settings.gzip,
            gzip_level=settings.gzip_level,
            info={
                "software": SOFTWARE,
                "format": "WARC File Format 1.1",
                "conformsTo": "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
                "isPartOf": crawl,
                "robots": "obey" if self._crawler.settings.getbool("ROBOTSTXT_OBEY") else "ignore",
                "http-header-user-agent": str(self._crawler.settings.get("USER_AGENT")),
                PAYLOAD_FIELD: settings.payload,
                "description": HEAD_IS_RECONSTRUCTED
                + (BODIES_ARE_DECODED if settings.payload == "decoded" else "")
                + (RESOURCES_ARE_RENDERED if settings.rendered == "resource" else ""),
            },
            algorithm=settings.digest,
            name=settings.name,
            crawl=crawl,
            taken=taken,
        )

    def _response_downloaded(self, request: Request, response: Response) -> None:
        if not response.url.startswith(("http://", "https://")):
            return
        try:
            # Copy everything: HttpCompressionMiddleware changes the headers of this object later.
            capture = capture_of(request, response)
            self._session.digests[response] = capture.body, capture.payload_digest
            if self._settings.scope == "items":
                self._captures[request] = capture
            else:
                self._record(request, capture)
        except Exception as error:  # noqa: BLE001 - Scrapy would only log it; count the missing exchange too
            self._recordings.fail(error)

    async def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        if isinstance(item, WarcItem) and self._settings.scope == "items":
            request = item.response.request
            capture = self._captures.pop(request, None) if request is not None else None
            if request is not None and capture is not None:
                self._record(request, capture)
                await self._recordings.set_meta(request)
            else:
                # A cached response, or a second item for the same response.
                self._session.counters.inc("dedupe/warc/items_without_exchange")
        return item

    def _record(self, request: Request, capture: Capture) -> None:
        if capture.rendering is not None and not self._is_resource(request, capture, capture.rendering):
            return
        limit = max_bytes(self._crawler, request) if self._settings.payload == "decoded" else 0
        self._recordings.add(request, capture, limit)

    def _is_resource(self, request: Request, capture: Capture, rendering: Rendering) -> bool:
        """Count a response that differs from what the server sent. Return True if it becomes a resource record."""
        self._session.counters.inc("dedupe/warc/rendered")
        is_resource = self._settings.rendered == "resource"
        handlers = self._crawler.settings.getwithbase("DOWNLOAD_HANDLERS")
        handler = handlers.get(request.url.partition(":")[0])
        name = global_object_name(handler) if isinstance(handler, type) else str(handler)
        if name not in self._rendering_handlers:
            self._rendering_handlers.add(name)
            logger.log(
                logging.INFO if is_resource else logging.WARNING,
                "The response of %s differs from what the server sent: the download handler %s rendered or decoded it"
                " (%s). %s All such responses are counted in dedupe/warc/rendered.",
                without_user(capture.url),
                name,
                rendering.sign,
                "Such responses become resource records if they are complete and have status 200."
                if is_resource
                else 'It is not archived. Set DEDUPE_WARC_RENDERED = "resource" to store such pages as resource records.',
            )
        # Resource records have no method and status: replay tools show them as the page at their URL.
        is_page = capture.method == "GET" and capture.status == 200 and capture.is_complete
        return is_resource and is_page and bool(capture.body)


def checked_storage(settings: Settings) -> Storage | None:
    """The storage to which finished files are uploaded, if any, after a test. Nothing remains there."""
    if settings.warc.upload_url is None:
        return None
    from .warc.storage import Storage

    with naming("DEDUPE_WARC_UPLOAD_URL"):
        storage = Storage(settings.warc.upload_url)
        if any(storage.is_folder(folder) for folder in (settings.warc.folder, settings.wacz.folder)):
            raise SettingError(
                f"The setting DEDUPE_WARC_UPLOAD_URL is {storage.shown!r}, the folder in which the files are written."
                " Set another folder, or remove the setting."
            )
        storage.check()
    return storage


def check_folders(settings: Settings, *, is_trial: bool = False) -> None:
    """Create the folders of WARC and WACZ files, and a file in each. With *is_trial* nothing is created.

    Raises SettingError or ArchiveError.
    """
    warc, wacz = settings.warc, settings.wacz
    try:
        str(warc.folder.absolute()).encode()
    except UnicodeEncodeError as error:
        raise SettingError(
            f"The path in DEDUPE_WARC_DIR cannot be encoded as UTF-8 ({warc.folder!r}), so the index cannot"
            " store the names of its files. Choose another folder."
        ) from error
    prove_writable(warc.folder, "WARC files", "another folder in DEDUPE_WARC_DIR", is_trial=is_trial)
    if wacz.enabled:
        from .warc.url_keys import load_surt

        load_surt()
        prove_writable(wacz.folder, "WACZ files", "another folder in DEDUPE_WACZ_DIR", is_trial=is_trial)
