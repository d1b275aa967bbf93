from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.content import Deduplicator, Document
from scrapy_dedupe.errors import SettingError, StoreUnavailable

if TYPE_CHECKING:
    from pathlib import Path

LONG = "<p>" + " ".join(f"Sentence number {number} of a text that is long enough." for number in range(40))


def test_the_file_is_made_and_remembers(tmp_path: Path) -> None:
    path = tmp_path / "new" / "texts.sqlite"
    with Deduplicator(f"sqlite:///{path}") as dedupe:
        assert dedupe.check(Document("http://a/", LONG)).kind == "unique"
    with Deduplicator(f"sqlite:///{path}", crawl_id="second") as dedupe:
        verdicts = dedupe.check_many(
            [
                Document("http://a/", LONG),
                Document("http://b/", LONG),
                Document("http://c/", LONG + "<p>More."),
            ]
        )
    assert [verdict.kind for verdict in verdicts] == ["unchanged", "exact", "near"]
    assert {verdict.original_crawl for verdict in verdicts} == {"deduplicator"}


def test_documents_are_compared_with_those_before_them(tmp_path: Path) -> None:
    with Deduplicator(f"sqlite:///{tmp_path / 'a.sqlite'}") as dedupe:
        kinds = [
            verdict.kind for verdict in dedupe.check_many(Document(f"http://{n}/", "a") for n in range(3))
        ]
    assert kinds == ["unique", "exact", "exact"]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_documents_that_repeat_in_a_batch_are_judged_as_one_by_one(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = (
        str(request.getfixturevalue("redis_url")) if kind == "redis" else f"sqlite:///{tmp_path / 'a.sqlite'}"
    )
    urls = ["http://a/", "http://b/", "http://a/", "http://b/", "http://c/"]
    with Deduplicator(store) as dedupe:
        verdicts = dedupe.check_many(Document(url, LONG) for url in urls)
        assert dedupe.check(Document("http://c/", LONG)).kind == "unchanged"
    assert [verdict.kind for verdict in verdicts] == ["unique", "exact", "unchanged", "unchanged", "exact"]


def test_the_shared_store_works_the_same(redis_url: str) -> None:
    with Deduplicator(redis_url) as dedupe:
        kinds = [dedupe.check(Document(f"http://{n}/", LONG + "x" * n)).kind for n in (0, 0, 1)]
        dedupe.flush()
    assert kinds == ["unique", "unchanged", "near"]


def test_flush_puts_everything_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with Deduplicator(f"sqlite:///{path}") as dedupe:
        dedupe.check(Document("http://a/", "a text to be found in the file"))
        dedupe.flush()
        assert b"a/" in path.read_bytes()


def test_what_is_no_text_or_too_large_is_unknown(tmp_path: Path) -> None:
    with Deduplicator(f"sqlite:///{tmp_path / 'a.sqlite'}", content_max_bytes=10) as dedupe:
        reasons = [
            dedupe.check(document).reason
            for document in (
                Document("http://a/", "%PDF", "application/pdf"),
                Document("http://a/", "12345678901"),
                Document("http://a/", "\u4e00\u4e00\u4e00\u4e00"),
                Document("http://a/", "<br>"),
                Document("http://a/", "1234567890"),
            )
        ]
    assert reasons == ["type", "size", "size", "no text", None]


def test_an_unknown_option_names_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="near_treshold is unknown; did you mean near_threshold"):
        Deduplicator(f"sqlite:///{tmp_path / 'a.sqlite'}", near_treshold=0.9)
    assert not (tmp_path / "a.sqlite").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"near_threshold": 2},
        {"canonicalizer": "words"},
        {"content_max_bytes": 0},
        {"store_timeout": 0},
        {"crawl_id": "a b"},
    ],
)
def test_a_wrong_value_names_the_option_and_what_is_allowed(
    tmp_path: Path, options: dict[str, object]
) -> None:
    (name,) = options
    with pytest.raises(SettingError, match=f"{name} is .* Allowed: "):
        Deduplicator(f"sqlite:///{tmp_path / 'a.sqlite'}", **options)


def test_a_store_that_is_away_says_so() -> None:
    with pytest.raises(StoreUnavailable, match=r"redis://127\.0\.0\.1:1/0"):
        Deduplicator("redis://127.0.0.1:1/0")


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    dedupe = Deduplicator(f"sqlite:///{tmp_path / 'a.sqlite'}")
    dedupe.close()
    dedupe.close()
    for use in (
        lambda: dedupe.check(Document("http://a/", "a")),
        lambda: dedupe.forget("http://a/"),
        dedupe.flush,
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


@pytest.mark.parametrize("name", ["url", "html", "content_type"])
@pytest.mark.parametrize("value", [None, b"bytes", 3])
def test_a_document_is_made_of_text(name: str, value: object) -> None:
    values: dict[str, object] = {"url": "http://a/", "html": "a", "content_type": "text/html", name: value}
    with pytest.raises(TypeError, match=name):
        Document(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"content_ttl": 0}, "content_ttl is 0"),
        ({"content_ttl": True}, "content_ttl is True"),
        ({"near_threshold": {"html": 0.9}}, "near_threshold.*'html'.*MIME types"),
        ({"store_url": "sqlite:///:memory:"}, "memory"),
    ],
)
def test_wrong_options_are_named_as_they_were_given(options: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Deduplicator(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_store_that_was_purged_whole_can_be_begun_with_other_options(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store_url = f"sqlite:///{tmp_path / 'a.sqlite'}"
    if kind == "redis":
        store_url = str(request.getfixturevalue("redis_url"))
    with Deduplicator(store_url) as dedupe:
        dedupe.check(Document("http://a/", LONG))
        dedupe._store.content.purge()
    with Deduplicator(store_url, near_num_perm=64) as dedupe:
        assert dedupe.check(Document("http://a/", LONG)).kind == "unique"
