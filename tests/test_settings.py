from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from scrapy.settings import Settings as ScrapySettings

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.settings.specs import SPECS, read_settings, warn_of_unknown

if TYPE_CHECKING:
    from pathlib import Path

WRONG = {
    "DEDUPE_STORE_URL": "mysql://localhost/x",
    "DEDUPE_URL_STORE_URL": "sqlite:///urls.db",
    "DEDUPE_CONTENT_STORE_URL": "sqlite://",
    "DEDUPE_INDEX_URL": "redis://host:notaport/0",
    "DEDUPE_STORE_TIMEOUT": 0,
    "DEDUPE_ON_STORE_ERROR": "stop",
    "DEDUPE_GC_FREEZE": "maybe",
    "DEDUPE_URL_ENABLED": "perhaps",
    "DEDUPE_URL_CAPACITY": 0,
    "DEDUPE_URLS_PER_PAGE": "many",
    "DEDUPE_URL_ERROR_RATE": 1.5,
    "DEDUPE_URL_RECORD_START": 2,
    "DEDUPE_URL_FLUSH_SECONDS": -1,
    "DEDUPE_URL_FORGET_FAILED": "sometimes",
    "DEDUPE_URL_CONFIRM": "disk",
    "DEDUPE_URL_KEY": "a b",
    "DEDUPE_URL_RULES": " ",
    "DEDUPE_URL_RULES_PROBE": 2,
    "DEDUPE_CONTENT_ENABLED": "",
    "DEDUPE_CANONICALIZER": "markdown",
    "DEDUPE_NEAR_THRESHOLD": "nan",
    "DEDUPE_NEAR_RECALL": 1,
    "DEDUPE_NEAR_NUM_PERM": "many",
    "DEDUPE_NEAR_SHINGLE_SIZE": {"text/html": 1},
    "DEDUPE_NEAR_MIN_CHARS": 1.5,
    "DEDUPE_NEAR_IDENTITY": "sometimes",
    "DEDUPE_TEMPLATE_GUARD": "never",
    "DEDUPE_CONTENT_TTL": "a month",
    "DEDUPE_CONTENT_MAX_BYTES": True,
    "DEDUPE_ACTION_UNCHANGED": "delete",
    "DEDUPE_ACTION_EXACT": None.__class__,
    "DEDUPE_ACTION_NEAR": 1,
    "DEDUPE_WARC_ENABLED": "maybe",
    "DEDUPE_WARC_DIR": " ",
    "DEDUPE_WARC_PREFIX": "a/b",
    "DEDUPE_WARC_FILE_SIZE": 10,
    "DEDUPE_WARC_GZIP": "yes please",
    "DEDUPE_WARC_GZIP_LEVEL": 13,
    "DEDUPE_WARC_DIGEST": "md5",
    "DEDUPE_WARC_MIN_SIZE": 0,
    "DEDUPE_WARC_QUEUE_BYTES": 1,
    "DEDUPE_WARC_SCOPE": "pages",
    "DEDUPE_WARC_REVISIT": "never",
    "DEDUPE_WARC_STATUSES": [200, "ok"],
    "DEDUPE_WARC_MIME_TYPES": ["html"],
    "DEDUPE_WARC_CHECK_FILES": "x",
    "DEDUPE_WARC_NAME": "{prefix}-{host}",
    "DEDUPE_WARC_BLACKOUT": 0,
    "DEDUPE_WARC_RENDERED": "response",
    "DEDUPE_WARC_ITEM_FIELD": "",
    "DEDUPE_WARC_UPLOAD_URL": " ",
    "DEDUPE_WACZ": "perhaps",
    "DEDUPE_WACZ_DIR": "",
    "DEDUPE_WACZ_TEXT": 2,
    "DEDUPE_WACZ_KEEP_WARC": "no",
    "DEDUPE_PASSAGES": "perhaps",
    "DEDUPE_PASSAGES_DIR": " ",
    "DEDUPE_PASSAGES_TOKENISER": "letters",
    "DEDUPE_PASSAGES_TEXT": 2,
    "DEDUPE_CRAWL_ID": "a crawl",
    "DEDUPE_COMMIT_REASONS": {"finished": True},
    "DEDUPE_PAYLOAD": "encoded",
    "DEDUPE_CONCURRENT": "sometimes",
    "DEDUPE_HTTPCACHE": "sometimes",
    "DEDUPE_REPLAY": [7],
    "DEDUPE_REPLAY_MISSING": "skip",
    "DEDUPE_REPORT": "report-%(spider)s.html",
    "DEDUPE_DUPLICATES_LOG": " ",
    "DEDUPE_DUPLICATES_LOG_LAYERS": ["url", "text"],
    "DEDUPE_METRICS_PORT": 65_536,
    "DEDUPE_METRICS_ADDRESS": "http://localhost",
    "DEDUPE_METRICS_FILE": 9_100,
    "DEDUPE_METRICS_SECONDS": 0,
}


def test_every_setting_has_a_wrong_value_below() -> None:
    assert {spec.name for spec in SPECS} == set(WRONG)


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_value_is_told_with_name_value_and_what_is_allowed(name: str) -> None:
    spec = next(spec for spec in SPECS if spec.name == name)
    with pytest.raises(SettingError) as caught:
        read_settings(ScrapySettings({name: WRONG[name]}))
    assert name in str(caught.value)
    assert repr(WRONG[name]) in str(caught.value)
    assert spec.allowed in str(caught.value)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_default_is_an_allowed_value(spec) -> None:
    if spec.default is not None:
        read = spec.read(spec.default)
        assert read == {"*": spec.default} or type(read)(spec.default) == read


def test_values_from_the_command_line_are_text() -> None:
    settings = read_settings(
        ScrapySettings(
            {
                "DEDUPE_URL_CAPACITY": "50_000",
                "DEDUPE_NEAR_THRESHOLD": "0.9",
                "DEDUPE_WARC_GZIP": "False",
                "DEDUPE_WARC_STATUSES": "200, 404",
                "DEDUPE_COMMIT_REASONS": "finished,shutdown",
            }
        )
    )
    assert settings.urls.capacity == 50_000
    assert settings.content.near_threshold == {"*": 0.9}
    assert settings.warc.gzip is False
    assert settings.warc.statuses == {200, 404}
    assert settings.warc.commit_reasons == ("finished", "shutdown")


@pytest.mark.parametrize(
    "value", [{"Text/HTML": 0.9, "*": 0.8}, '{"text/html": 0.9, "*": "0.8"}'], ids=["dict", "command line"]
)
def test_the_near_layer_has_settings_by_content_type(value: object) -> None:
    settings = read_settings(ScrapySettings({"DEDUPE_NEAR_THRESHOLD": value}))
    assert settings.content.near_threshold == {"text/html": 0.9, "*": 0.8}


@pytest.mark.parametrize("value", [{}, {"html": 0.9}, {"text/html": 2}, {3: 0.9}, "{", '{"text/html"}'])
def test_a_wrong_table_by_content_type_is_refused(value: object) -> None:
    with pytest.raises(SettingError, match=r"DEDUPE_NEAR_THRESHOLD.*MIME type"):
        read_settings(ScrapySettings({"DEDUPE_NEAR_THRESHOLD": value}))


@pytest.mark.parametrize(
    ("values", "capacity"),
    [
        ({}, 10_000),
        ({"CLOSESPIDER_PAGECOUNT": 500}, 10_000),
        ({"CLOSESPIDER_PAGECOUNT": 5_000}, 50_000),
        ({"CLOSESPIDER_PAGECOUNT": 5_000, "DEDUPE_URLS_PER_PAGE": 40}, 200_000),
        ({"CLOSESPIDER_PAGECOUNT": 5_000, "DEDUPE_URL_CAPACITY": 123}, 123),
    ],
)
def test_the_filter_is_sized_from_the_page_count(values: dict[str, int], capacity: int) -> None:
    assert read_settings(ScrapySettings(values)).urls.capacity == capacity


def test_an_unknown_name_is_warned_about_with_the_nearest_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_unknown(ScrapySettings({"DEDUPE_NEAR_TRESHOLD": 0.9, "DEDUPE_XYZZY": 1}))
    messages = [record.getMessage() for record in caplog.records]
    assert any("DEDUPE_NEAR_TRESHOLD" in text and "DEDUPE_NEAR_THRESHOLD" in text for text in messages)
    assert any("DEDUPE_XYZZY" in text for text in messages)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DEDUP_WARC_DIR", "DEDUPE_WARC_DIR"),
        ("DEDUPER_WARC_DIRS", "DEDUPE_WARC_DIR"),
        ("DEDUPLICATION_REPORT", "DEDUPE_REPORT"),
        ("DEDPUE_NEAR_TRESHOLD", "DEDUPE_NEAR_THRESHOLD"),
        ("DE_DUPE_WACZ", "DEDUPE_WACZ"),
        ("SCRAPY_DEDUPE_STORE_URL", "DEDUPE_STORE_URL"),
        ("SCRAPY_DE_DUPE_STORE_URL", "DEDUPE_STORE_URL"),
        ("dedupe_warc_dir", "DEDUPE_WARC_DIR"),
    ],
)
def test_a_setting_with_another_prefix_is_warned_about(
    name: str, meant: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_unknown(ScrapySettings({name: "x"}))
    assert caplog.messages == [f"The setting {name} is unknown and has no effect; did you mean {meant}?"]


def test_settings_of_others_are_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    others = (
        "DUPEFILTER_KEY", "DEDUP_KEY", "DEDUP_REDIS_URL", "DEDUP_ENABLED", "DEDUP_URL", "DEDUP_CACHE_DIR",
        "DUPE_REPORT", "MY_DEDUPE_REPORT", "DELTAFETCH_DIR", "SCRAPY_REDIS_URL", "SCRAPY_REPORT", "WARC_DIR",
        "DEDUP_", "DEDUP", "_", "",
    )  # fmt: skip
    warn_of_unknown(ScrapySettings(dict.fromkeys(others, "x")))
    assert caplog.messages == []


def test_one_store_serves_all_layers_unless_one_is_named_apart() -> None:
    settings = read_settings(
        ScrapySettings(
            {"DEDUPE_STORE_URL": "redis://a:1/0", "DEDUPE_CONTENT_STORE_URL": "sqlite:///texts.db"}
        )
    )
    assert settings.urls.store_url == "redis://a:1/0"
    assert settings.content.store_url == "sqlite:///texts.db"
    assert settings.warc.index_url == "redis://a:1/0"


def test_the_url_filter_can_stay_local_when_the_rest_is_in_redis() -> None:
    settings = read_settings(
        ScrapySettings({"DEDUPE_STORE_URL": "redis://a:1/0", "DEDUPE_URL_STORE_URL": "local"})
    )
    assert settings.urls.store_url is None


def test_failed_requests_are_forgotten_with_a_job_unless_told_otherwise() -> None:
    def forgets(**values: Any) -> bool:
        return read_settings(ScrapySettings(values)).urls.forget_failed

    assert [forgets(), forgets(JOBDIR="job")] == [False, True]
    assert [forgets(JOBDIR="job", DEDUPE_URL_FORGET_FAILED=value) for value in (False, "1")] == [False, True]


def test_a_shared_filter_cannot_be_confirmed_on_disk() -> None:
    values = {"DEDUPE_URL_CONFIRM": True, "DEDUPE_STORE_URL": "redis://localhost:6379/0"}
    with pytest.raises(SettingError, match=r'DEDUPE_URL_CONFIRM is True.*DEDUPE_URL_STORE_URL = "local"'):
        read_settings(ScrapySettings(values))
    assert read_settings(ScrapySettings({**values, "DEDUPE_URL_STORE_URL": "local"})).urls.confirm


def test_without_settings_the_store_is_a_file_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = read_settings(ScrapySettings({})).content.store_url
    assert url.startswith("sqlite:///")
    assert url.endswith("dedupe/dedupe.sqlite")


def test_the_passage_index_is_in_the_data_folder_unless_it_has_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    passages = read_settings(ScrapySettings({})).passages
    assert passages.root.parts[-3:] == (".scrapy", "dedupe", "passages")
    assert (passages.enabled, passages.tokeniser, passages.store_text) == (False, "words", True)
    own = {"DEDUPE_PASSAGES": "1", "DEDUPE_PASSAGES_DIR": "x", "DEDUPE_PASSAGES_TOKENISER": "cjk"}
    passages = read_settings(ScrapySettings({**own, "DEDUPE_PASSAGES_TEXT": "False"})).passages
    assert (passages.enabled, str(passages.root), passages.tokeniser) == (True, "x", "cjk")
    assert not passages.store_text


@pytest.mark.parametrize("name", ["DEDUPE_URL_STORE_URL", "DEDUPE_WARC_UPLOAD_URL", "DEDUPE_URL_CAPACITY"])
def test_a_password_or_a_book_in_a_wrong_setting_is_not_told(name: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings(ScrapySettings({name: "ftps://me:secret@host /0" + 100_000 * "x"}))
    assert "ftps://me:***@host" in str(caught.value)
    assert len(str(caught.value)) < 1_000
