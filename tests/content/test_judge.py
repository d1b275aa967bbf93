from __future__ import annotations

import json
import pickle
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.content import Judge, JudgeOptions, NearOptions, Page, Verdict
from scrapy_dedupe.content import judge as judge_module
from scrapy_dedupe.errors import SettingError, StoreRefused
from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.stores import Store

WORDS = ["".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=6)) for seed in range(5000)]


def prose(seed: int, words: int = 300) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path / 'texts.sqlite'}")
    yield store
    store.close()


def judged(judge: Judge, text: str, url: str = "http://a/", crawl: str = "c1", **kwargs: object) -> Verdict:
    page = Page(url, text, crawl, **kwargs)  # type: ignore[arg-type]
    return judge.decide([judge.read(page)], pending=False)[0].verdict


def near(**values: object) -> JudgeOptions:
    return JudgeOptions(near=NearOptions.by_type(**values))


def test_a_new_text_is_unique(store: Store) -> None:
    assert judged(Judge(store.content), "<p>Hello") == Verdict("unique")


def test_an_equal_text_at_another_url_is_exact(store: Store) -> None:
    judge = Judge(store.content)
    judged(judge, "<p>Hello", "http://a/1", "c1", seen_ms=1_700_000_000_123)
    verdict = judged(judge, "<div>Hello</div>", "http://a/2", "c2")
    assert verdict == Verdict(
        "exact",
        original_url="http://a/1",
        original_crawl="c1",
        original_seen=datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
        same_url=False,
        similarity=1.0,
    )
    assert verdict.is_duplicate


def test_an_equal_text_at_its_own_url_is_unchanged(store: Store) -> None:
    judge = Judge(store.content)
    judged(judge, "<p>Hello")
    verdict = judged(judge, "<p>Hello", crawl="c2")
    assert (verdict.kind, verdict.same_url, verdict.original_crawl) == ("unchanged", True, "c1")


def test_copies_of_one_page_of_a_new_host_take_one_call(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    claim = store.content.claim
    monkeypatch.setattr(
        store.content,
        "claim",
        lambda captures, *args, **options: (calls.append(len(captures)), claim(captures, *args, **options))[
            1
        ],
    )
    judge = Judge(store.content)
    readings = [judge.read(Page(f"http://a/{number}", f"<p>{prose(1)}", "c1")) for number in range(16)]
    readings += [judge.read(Page(f"http://a/new{seed}", f"<p>{prose(seed)}", "c1")) for seed in range(2, 7)]
    kinds = [judgement.verdict.kind for judgement in judge.decide(readings)]
    assert kinds == ["unique", *["exact"] * 15, *["unique"] * 5]
    # The first four texts are counted before the others are compared.
    assert calls == [19, 2]


def test_a_page_takes_one_call_and_known_texts_no_signatures(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def count(holder: object, name: str) -> None:
        real = getattr(holder, name)
        monkeypatch.setattr(
            holder, name, lambda *args, **options: (calls.append(name), real(*args, **options))[1]
        )

    for name in ("claim", "find"):
        count(store.content, name)
    count(judge_module.signature, "shingle_hashes")
    judge, pages = Judge(store.content), [prose(number) for number in range(20)]
    assert {judged(judge, text).kind for text in pages} == {"unique"}
    assert calls == ["shingle_hashes", "claim"] * 20
    calls.clear()
    assert {judged(judge, text, crawl="c2").kind for text in pages} == {"unchanged"}
    assert calls.count("find") >= 18
    assert calls.count("shingle_hashes") <= 2


def test_any_earlier_capture_of_a_url_makes_its_text_unchanged(store: Store) -> None:
    judge = Judge(store.content)
    kinds = [judged(judge, text, url).kind for text, url in [
        ("one", "http://a/"), ("one", "http://b/"), ("two", "http://b/"), ("one", "http://b/"), ("one", "http://c/"),
    ]]  # fmt: skip
    assert kinds == ["unique", "exact", "unique", "unchanged", "exact"]


def test_a_similar_text_is_near(store: Store) -> None:
    judge = Judge(store.content)
    text = prose(1)
    judged(judge, text, "http://a/1")
    verdict = judged(judge, text + " one more sentence", "http://a/2")
    assert (verdict.kind, verdict.original_url, verdict.same_url) == ("near", "http://a/1", False)
    assert verdict.similarity is not None
    assert 0.9 < verdict.similarity <= 1


def test_a_page_that_is_near_to_its_own_earlier_version_has_the_same_url(store: Store) -> None:
    judge = Judge(store.content)
    judged(judge, prose(1))
    verdict = judged(judge, prose(1) + " updated today")
    assert (verdict.kind, verdict.same_url) == ("near", True)


def test_an_unlike_text_is_unique(store: Store) -> None:
    judge = Judge(store.content)
    judged(judge, prose(1), "http://a/1")
    assert judged(judge, prose(2), "http://a/2").kind == "unique"


def test_a_near_copy_is_not_kept_so_that_small_changes_do_not_chain(store: Store) -> None:
    judge = Judge(store.content)
    words = prose(1, 400).split()
    fresh = prose(2, 400).split()
    kinds, similarities = [], []
    for replaced in range(0, 400, 12):
        verdict = judged(judge, " ".join(fresh[:replaced] + words[replaced:]), f"http://a/{replaced}")
        kinds.append(verdict.kind)
        similarities.append(verdict.similarity)
    assert "near" in kinds
    assert kinds.count("unique") >= 3  # a chain would have called all but the first one near


def test_the_threshold_decides(tmp_path: Path) -> None:
    text = prose(1)
    changed = prose(2, 45) + text[300:]  # about 15 % replaced: a Jaccard similarity near 0.74
    kinds = []
    for number, threshold in enumerate((0.5, 0.95)):
        store = open_store(f"sqlite:///{tmp_path / f'{number}.sqlite'}")
        judge = Judge(store.content, near(threshold=threshold))
        judged(judge, text, "http://a/1")
        kinds.append(judged(judge, changed, "http://a/2").kind)
        store.close()
    assert kinds == ["near", "unique"]


def test_threshold_one_turns_the_near_layer_off(store: Store) -> None:
    judge = Judge(store.content, near(threshold=1))
    judged(judge, prose(1))
    assert judged(judge, prose(1) + " x", "http://a/2").kind == "unique"
    assert (store.content.statistics()["texts"], store.content.statistics()["kept"]) == (2, 0)


def test_short_texts_are_compared_exactly_alone(store: Store) -> None:
    judge = Judge(store.content, near(min_chars=200))
    judged(judge, "x" * 199, "http://a/1")
    judged(judge, "y" * 200, "http://a/2")
    assert (store.content.statistics()["texts"], store.content.statistics()["kept"]) == (2, 1)


@pytest.mark.parametrize("shell", ["", "<div id=app></div><script>load()</script>", " \xa0\u200b<!-- -->"])
def test_a_page_without_text_is_not_judged(store: Store, shell: str) -> None:
    judge = Judge(store.content)
    for url in ("http://a/1", "http://a/2"):
        assert judged(judge, shell, url) == Verdict("unknown", reason="no text")
    assert store.content.statistics()["texts"] == 0


def test_a_raw_body_of_white_space_is_no_text(store: Store) -> None:
    judge = Judge(store.content, JudgeOptions(canonicalizer="raw"))
    assert judged(judge, " \n").reason == "no text"


def test_canonicalisers_do_not_meet_in_one_store(store: Store) -> None:
    text = prose(1)
    for name in ("text", "html", "raw"):
        judge = Judge(store.content, JudgeOptions(canonicalizer=name))
        assert judged(judge, text, "http://a/1").kind == "unique"
        assert judged(judge, text, "http://a/1").kind == "unchanged"
        assert judged(judge, text + " more", "http://a/1").kind == "near"


def test_another_kind_of_page_is_read_differently(store: Store) -> None:
    judge = Judge(store.content)
    judged(judge, "<a>1</a><b>2</b>", kind="xml")
    assert judged(judge, "1 2", kind="text").kind == "unchanged"
    assert judged(judge, "<a>1</a><b>2</b>").kind == "unique"


def test_a_store_with_other_parameters_is_refused(store: Store) -> None:
    store.content.check_parameters({"near_num_perm": "256"})
    with pytest.raises(StoreRefused, match=r"near_num_perm = 256.*near_num_perm = 128"):
        Judge(store.content)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"canonicalizer": "txt"}, "'txt'.*'text', 'html', 'raw'"),
        ({"template_guard": "no"}, "template_guard.*'no'.*True or False"),
        ({"remember_for_s": 0}, "remember_for.*0.*at least 1"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        JudgeOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threshold": 1.1}, "1.1.*from 0.5 to 1"),
        ({"threshold": True}, "True.*number"),
        ({"threshold": float("nan")}, "nan"),
        ({"min_chars": -1}, "-1.*at least 0"),
        ({"num_perm": 8}, "near_num_perm.*8.*16 to 512"),
        ({"shingle_size": 1.5}, "near_shingle_size.*1.5.*2 to 64"),
        ({"recall": 1}, "near_recall.*1.*0.5 to 0.9999"),
        ({"threshold": 0.5, "recall": 0.9999, "num_perm": 16, "min_chars": {"text/plain": -2}}, "-2"),
    ],
)
def test_a_wrong_option_of_the_near_layer_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        near(**options)


def test_content_types_can_have_options_of_their_own(store: Store) -> None:
    judge = Judge(
        store.content, near(threshold={"text/plain": 1, "*": 0.6}, shingle_size={"text/markdown": 5})
    )
    kinds = []
    for seed, mime in enumerate(("text/html", "text/plain", "text/markdown")):
        text = prose(10 + seed)
        judged(judge, text, f"http://a/{mime}", kind="text", mime=mime)
        changed = prose(2, 30) + text[200:]
        kinds.append(judged(judge, changed, f"http://b/{mime}", kind="text", mime=mime).kind)
    assert kinds == ["near", "unique", "near"]
    assert store.content.parameters()["near_shingle_size[text/markdown]"] == "5"


def test_a_higher_threshold_goes_on_with_the_bands_of_the_store(store: Store) -> None:
    judged(Judge(store.content), prose(1), "http://a/1")
    judge = Judge(store.content, near(threshold=0.95))
    assert judged(judge, prose(1) + " x", "http://a/2").kind == "near"
    assert store.content.parameters()["near_bands"] == "16 x 8"


def test_a_lower_threshold_needs_other_bands_than_the_store_has(store: Store) -> None:
    Judge(store.content)
    with pytest.raises(StoreRefused, match=r"near_bands = 16 x 8.*near_bands = \d+ x \d"):
        Judge(store.content, near(threshold=0.5))


def test_a_page_that_failed_is_not_a_copy_of_itself(store: Store) -> None:
    judge = Judge(store.content)

    def pending(text: str, url: str, crawl: str) -> object:
        (judgement,) = judge.decide([judge.read(Page(url, text, crawl))])
        return judgement

    first = pending(prose(1), "http://a/1", "c1")
    copy = pending(prose(1), "http://a/2", "c1")
    assert (first.verdict.kind, copy.verdict.kind, copy.verdict.pending) == ("unique", "exact", True)
    near_copy = pending(prose(1) + " more", "http://a/3", "c1")
    assert (near_copy.verdict.kind, near_copy.verdict.pending) == ("near", True)
    judge.settle([], [first.capture, copy.capture, near_copy.capture])
    assert pending(prose(1), "http://a/2", "c1").verdict.kind == "unique"
    assert pending(prose(1), "http://a/2", "c1").verdict.kind == "unique"


def test_pages_judged_together_are_compared_with_each_other(store: Store) -> None:
    judge = Judge(store.content)
    texts = [prose(1), prose(2), prose(1), "", prose(2) + " more", prose(3)]
    readings = [judge.read(Page(f"http://a/{n}", text, "c1")) for n, text in enumerate(texts)]
    found = [judged.verdict.kind for judged in judge.decide(readings)]
    assert found == ["unique", "unique", "exact", "unknown", "near", "unique"]


def test_looking_remembers_nothing(store: Store) -> None:
    judge = Judge(store.content)
    reading = judge.read(Page("http://a/1", prose(1), "c1"))
    assert [judge.find([reading])[0].verdict.kind for _ in range(2)] == ["unique", "unique"]
    judge.decide([reading], pending=False)
    assert judge.find([reading])[0].verdict.kind == "unchanged"
    other = judge.read(Page("http://a/2", prose(1) + " more", "c1"))
    assert [judge.find([other])[0].verdict.kind for _ in range(2)] == ["near", "near"]
    assert store.content.statistics()["texts"] == 1


def test_a_text_is_forgotten_after_its_lifetime(store: Store) -> None:
    judge = Judge(store.content, JudgeOptions(remember_for_s=10))
    kinds = [judged(judge, prose(1), seen_ms=ms).kind for ms in (1_000, 10_999, 11_000, 20_999)]
    assert kinds == ["unique", "unchanged", "unique", "unchanged"]


def test_hostile_markup_is_not_judged_and_soon_told(store: Store) -> None:
    judge = Judge(store.content)
    assert judged(judge, "<div>" * 60_000 + "text") == Verdict("unknown", reason="markup")
    assert store.content.statistics()["texts"] == 0


def test_a_verdict_has_a_plain_form_for_logs_and_can_be_pickled_with_the_request(store: Store) -> None:
    judge = Judge(store.content)
    judged(judge, "Hello", seen_ms=1_700_000_000_120)
    verdict = judged(judge, "Hello", "http://b/")
    assert json.loads(json.dumps(verdict.as_dict())) == {
        "kind": "exact",
        "original_url": "http://a/",
        "original_crawl": "c1",
        "original_seen": "2023-11-14T22:13:20.120Z",
        "same_url": False,
        "similarity": 1.0,
        "reason": None,
        "pending": False,
        "rest_similarity": None,
        "same_title": None,
        "same_path": None,
        "same_beginning": None,
        "same_words": None,
    }
    assert pickle.loads(pickle.dumps(verdict)) == verdict
    assert not Verdict("unknown", reason="store").is_duplicate


SHELL = """<!doctype html><title>App</title><script src="/{0}.js"></script><div id="root"></div>
<noscript>You need to enable JavaScript to run this app.</noscript>"""


def test_pages_that_javascript_fills_are_not_copies_of_each_other(store: Store) -> None:
    judge = Judge(store.content)
    verdicts = [judged(judge, SHELL.format(name), f"http://a.example/{name}") for name in "abc"]
    assert {(verdict.kind, verdict.reason) for verdict in verdicts} == {("unknown", "no text")}


def test_a_page_with_few_words_of_its_own_is_judged(store: Store) -> None:
    judge = Judge(store.content)
    page = "<title>App</title><noscript>Enable JavaScript.</noscript><p>Closed today."
    assert judged(judge, page, "http://a.example/1").kind == "unique"
    assert judged(judge, page, "http://a.example/2").kind == "exact"


def site(number: int, more: str = "") -> str:
    """A page of a site whose template is most of each page: two of them are alike by some 0.86."""
    return f"{prose(99, 300)} {prose(1000 + number, 25)} {more}"


@pytest.mark.parametrize(("is_guarded", "most"), [(True, 6), (False, 40)])
def test_pages_that_share_a_template_alone_are_not_near(store: Store, is_guarded: bool, most: int) -> None:
    judge = Judge(store.content, JudgeOptions(template_guard=is_guarded))
    kinds = [judged(judge, site(number), f"http://a/{number}").kind for number in range(60)]
    assert (kinds.count("near") <= most) == is_guarded
    assert set(kinds) == {"unique", "near"}


@pytest.mark.parametrize(
    ("is_guarded", "own_words", "is_bare"), [(True, 4, True), (True, 25, False), (False, 4, False)]
)
def test_new_pages_with_hardly_a_word_besides_the_template_are_told(
    store: Store, is_guarded: bool, own_words: int, is_bare: bool
) -> None:
    judge = Judge(store.content, JudgeOptions(template_guard=is_guarded))
    pages = [f"{prose(99, 300)} {prose(1000 + number, own_words)}" for number in range(40)]
    judgements = [
        judge.decide([judge.read(Page(f"http://a/{number}", page, "crawl"))], pending=False)[0]
        for number, page in enumerate(pages)
    ]
    # Until its template is known, a host has none.
    assert not any(judged.is_bare for judged in judgements[:4])
    assert {judged.is_bare for judged in judgements[10:]} == {is_bare}
    assert all(judged.verdict.kind == "unique" for judged in judgements if judged.is_bare)


def test_a_short_page_without_a_template_is_not_bare(store: Store) -> None:
    judge = Judge(store.content, JudgeOptions(near=NearOptions.by_type(min_chars=0)))
    for number in range(40):
        reading = judge.read(Page(f"http://a/{number}", f"Page {prose(number, 5)}", "crawl"))
        assert not judge.decide([reading], pending=False)[0].is_bare


def test_a_small_site_is_recognised_in_its_next_crawl(tmp_path: Path) -> None:
    for number, pages in enumerate((12, 40)):
        store = open_store(f"sqlite:///{tmp_path / f'{number}.sqlite'}")
        first = Judge(store.content)
        for page in range(pages):
            judged(first, site(page) + prose(page, 60), f"http://a/{page}")
        first.save()
        second = Judge(store.content)
        changed = [
            judged(second, site(page) + prose(page, 60) + " new", f"http://a/{page}") for page in range(pages)
        ]
        assert [verdict.kind for verdict in changed].count("near") >= 0.7 * pages
        own = [verdict for verdict in changed if verdict.kind == "near" and verdict.same_url]
        assert len(own) >= 0.7 * pages
        store.close()
