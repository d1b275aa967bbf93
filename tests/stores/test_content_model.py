"""The content stores against a plain model, and with several processes at once."""

from __future__ import annotations

import multiprocessing
import random
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import redis
from content_pages import (
    ROWS,
    A,
    B,
    C,
    band,
    changed,
    claim_near,
    copy_of,
    digest,
    page,
    seen,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.content import JudgeOptions
from scrapy_dedupe.content.judge import Judge, Judgement
from scrapy_dedupe.content.pages import Page
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import NearAnswer, SeenText, Signature, TextMatch
from scrapy_dedupe.stores.content_values import NO_REST, NOTHING, near_candidates, packed_signature

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest
    from servers import RedisCluster


@dataclass
class Model:
    """A content store as it is meant: plain dictionaries."""

    lifetime: int | None = None
    texts: dict[bytes, tuple[SeenText, bool]] = field(default_factory=dict)
    notes: dict[tuple[str, bytes], SeenText] = field(default_factory=dict)
    kept: dict[bytes, bytes] = field(default_factory=dict)
    buckets: dict[bytes, bytes] = field(default_factory=dict)
    sources: dict[bytes, bytes] = field(default_factory=dict)

    def is_over(self, then: int, now: int) -> bool:
        return self.lifetime is not None and then + self.lifetime <= now

    def look(self, name: bytes, capture: SeenText, similarity: float = 1.0) -> TextMatch | None:
        if name not in self.texts:
            return None
        first, pending = self.texts[name]
        if self.is_over(first.seen_ms, capture.seen_ms) or (pending and first.url == capture.url):
            return None
        note = self.notes.get((capture.url, name))
        had = first.url == capture.url or (
            note is not None and not self.is_over(note.seen_ms, capture.seen_ms)
        )
        return seen(first, had, similarity=similarity, pending=pending)

    def claim(
        self, captures: list[SeenText], signatures: Sequence[Signature | None] = (), *, pending: bool = True
    ) -> list[TextMatch | NearAnswer | None]:
        answers: list[TextMatch | NearAnswer | None] = []
        for capture in captures:
            answers.append(self.look(capture.digest, capture))
            if answers[-1] is None:
                self.texts[capture.digest] = (capture, pending)
                if capture.source:
                    self.sources[capture.source] = capture.digest
        for number, it in enumerate(signatures):
            if answers[number] is None and it is not None:
                answers[number] = answer = self._nearest(it)
                if answer.seen is None:
                    self.kept[it.capture.digest] = packed_signature(it)
                    self.buckets.update(dict.fromkeys(it.bands, it.capture.digest))
        return answers

    def find(
        self, captures: list[SeenText], signatures: Sequence[Signature | None] = ()
    ) -> list[TextMatch | NearAnswer | None]:
        seen = [self.look(capture.digest, capture) for capture in captures]
        pairs = zip(seen, signatures or [None] * len(seen), strict=True)
        return [self._nearest(it) if text is None and it is not None else text for text, it in pairs]

    def recall(self, captures: list[SeenText]) -> list[TextMatch | None]:
        names = [self.sources.get(capture.source, b"") for capture in captures]
        return [self.look(name, capture) for name, capture in zip(names, captures, strict=True)]

    def _nearest(self, it: Signature) -> NearAnswer:
        names = {self.buckets[band] for band in it.bands if band in self.buckets} - {it.capture.digest}
        candidates, is_template = near_candidates(it, [(n, self.kept[n]) for n in names if n in self.kept])
        for near in candidates:
            found = self.look(near.digest, it.capture, near.equal / len(it.rows))
            if found is not None:
                return NearAnswer(found, rest=near.rest, identity=near.identity)
        return NearAnswer(None, is_template)

    def settle(self, passed: list[SeenText], failed: list[SeenText]) -> None:
        for capture in passed:
            first, pending = self.texts.get(capture.digest, (None, True))
            if pending:
                self.texts[capture.digest] = (replace(capture, kind="unique"), False)
            if capture.kind == "near" or (not pending and first is not None and first.url != capture.url):
                place = (capture.url, capture.digest)
                if place not in self.notes or self.is_over(self.notes[place].seen_ms, capture.seen_ms):
                    self.notes[place] = capture
        for capture in failed:
            first, pending = self.texts.get(capture.digest, (None, False))
            its = (capture.url, capture.crawl, capture.seen_ms)
            if pending and first is not None and (first.url, first.crawl, first.seen_ms) == its:
                del self.texts[capture.digest]
                self.kept.pop(capture.digest, None)

    def forget(self, url: str) -> int:
        names = [name for name, (first, _) in self.texts.items() if first.url == url]
        for name in names:
            del self.texts[name]
            self.kept.pop(name, None)
        self.notes = {place: note for place, note in self.notes.items() if place[0] != url}
        return len(names)

    def captures(self, url: str) -> list[SeenText]:
        known = {}
        for name, (first, _) in self.texts.items():
            if first.url == url:
                known[name] = SeenText(name, url, first.crawl, first.seen_ms)
        for (its_url, name), note in self.notes.items():
            if its_url == url and (note.kind == "near" or name not in known):
                known[name] = replace(note, original=None if note.original == name else note.original)
        return sorted(known.values(), key=lambda capture: (capture.seen_ms, capture.digest))

    def statistics(self) -> dict[str, int]:
        pending = sum(pending for _, pending in self.texts.values())
        return {"texts": len(self.texts), "kept": len(self.kept), "pending": pending, "templates": 0}


some_pages = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([A, B, C]), st.sampled_from(["c1", "c2"])),
    min_size=1,
    max_size=4,
)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["claim", "sure", "find", "recall", "claim near", "sure near", "find near"]),
            some_pages,
        ),
        st.tuples(st.just("settle"), st.lists(st.integers(0, 9), max_size=4)),
        st.tuples(st.just("fail"), st.lists(st.integers(0, 9), max_size=4)),
        st.tuples(st.just("forget"), st.sampled_from([A, B, C])),
    ),
    max_size=14,
)


@given(
    steps,
    st.sampled_from([None, 5]),
    st.sampled_from([0, 1]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_all_stores_answer_like_a_plain_model(
    tmp_path_factory: pytest.TempPathFactory,
    redis_url: str,
    redis_cluster: RedisCluster,
    steps: list[tuple[str, Any]],
    lifetime: int | None,
    apart_ms: int,
    is_new_server: bool,
    chance: random.Random,
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        if is_new_server:
            client.script_flush()
    redis_cluster.flush()
    path = tmp_path_factory.mktemp("model") / "texts.sqlite"
    stores = [open_store(url) for url in (f"sqlite:///{path}", redis_url, redis_cluster.url)]
    for store in stores:
        store.content.remember_for(None if lifetime is None else 1000 * lifetime)
    model = Model(None if lifetime is None else 1_000_000 * lifetime)
    in_hand: list[SeenText] = []
    for moment, (step, value) in enumerate(steps):
        arguments: list[Any]
        if step in {"settle", "fail"}:
            captures = [in_hand[index % len(in_hand)] for index in value] if in_hand else []
            arguments = [captures, []] if step == "settle" else [[], captures]
            name = "settle"
        elif step == "forget":
            arguments, name = [value], "forget"
        else:
            captures = [
                page(text, url, crawl, 1_000_000 * moment + place * apart_ms)
                for place, (text, url, crawl) in enumerate(value)
            ]
            # A page may change without its text, and two pages may have the same text.
            captures = [
                replace(it, source=chance.choice([b"", b"1" + it.digest[1:], b"2" + it.digest[1:]]))
                for it in captures
            ]
            arguments, name = [captures], step.split()[0].replace("sure", "claim")
            if step.endswith("near"):
                arguments.append([chance.choice([None, _drawn_signature(it, chance)]) for it in captures])
        options = {"pending": False} if step.startswith("sure") else {}
        expected = getattr(model, name)(*arguments, **options)
        for store in stores:
            found = getattr(store.content, name)(*arguments, **options)
            assert found == expected
            if expected and name in {"claim", "find"}:
                assert list(map(_compared, found)) == list(map(_compared, expected))
        if name == "claim":
            in_hand += [
                replace(capture, kind=chance.choice(["exact", "near"]), original=answer.digest)
                if isinstance(answer, TextMatch)
                else capture
                for capture, answer in zip(captures, expected, strict=True)
            ]
    for store in stores:
        assert store.content.statistics() == model.statistics()
        for url in (A, B, C):
            assert [capture for capture, _ in store.content.captures(url)] == model.captures(url)
        store.close()


# Near to each other are those with the same letter.
_SENTENCES = [" ".join(f"{letter}{number * 7919:x}" for number in range(90)) for letter in "ab"]
TEXTS = ["short", *(f"{text} {end}" for text in _SENTENCES for end in ("one", "two"))]

batches = st.lists(
    st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.sampled_from(TEXTS), st.integers(0, 1)),
        min_size=1,
        max_size=7,
    ),
    min_size=1,
    max_size=4,
)


@given(batches, st.booleans(), st.booleans())
@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example([[(A, "short", 0), (B, "short", 0), (A, "short", 0), (B, "short", 0)]], True, False)
@example([[(A, TEXTS[1], 0), (B, TEXTS[1], 0), (B, TEXTS[2], 0), (A, TEXTS[2], 0)]], False, False)
@example([[(A, "short", 0)], [(A, "short", 0)]], True, False)
def test_a_batch_is_judged_as_its_pages_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    redis_url: str,
    redis_cluster: RedisCluster,
    batches: list[list[tuple[str, str, int]]],
    is_new_server: bool,
    pending: bool,
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        redis_cluster.flush()
        folder = tmp_path_factory.mktemp("batches")
        urls = [redis_url, redis_cluster.url, *(f"sqlite:///{folder}/{name}" for name in "ab")]
        stores = [open_store(url) for url in urls]
        # What is template is learnt after a batch.
        options = JudgeOptions(template_guard=False)
        judges = [Judge(store.content, options) for store in stores]
        for batch in batches:
            # A text that is pending and claimed once more at its URL has the later time.
            pages = [
                Page(url, text, "c", kind="text", mime="text/plain", seen_ms=0 if pending else ms)
                for url, text, ms in batch
            ]
            found = []
            for number, judge in enumerate(judges):
                if is_new_server:
                    client.script_flush()
                readings = [judge.read(page) for page in pages]
                at_once = [readings] if number < 3 else [[reading] for reading in readings]
                found.append([judged for some in at_once for judged in judge.decide(some, pending=pending)])
            for answers in found[:3]:
                assert _told(answers) == _told(found[3])
    for store in stores:
        assert store.content.statistics() == stores[0].content.statistics()
        for url in (A, B, C):
            assert store.content.captures(url) == stores[0].content.captures(url)
        store.close()


def _told(judgements: list[Judgement]) -> list[object]:
    return [(judged.verdict, judged.capture) for judged in judgements]


def _compared(answer: object) -> object:
    return (answer.rest, answer.identity) if isinstance(answer, NearAnswer) else None


KEYS = [b"key", b"oth", NOTHING, NO_REST]


def _drawn_signature(capture: SeenText, chance: random.Random) -> Signature:
    rows = changed(ROWS, chance.choice([0, 10, 30, 60]))
    rare_rows = chance.choice([b"", changed(ROWS, chance.choice([0, 30]))])
    its_bands = [band((place, chance.randrange(3))) for place in range(4)]
    identity = b"".join(chance.choice(KEYS) for _ in range(5))
    return Signature(
        capture, its_bands, rows, chance.choice([0, 90, 120]), rare_rows, 90, (), identity, min_equal_named=70
    )


def test_the_last_capture_of_a_text_in_a_batch_is_the_original_of_a_near_text(
    tmp_path: Path, redis_url: str, redis_cluster: RedisCluster
) -> None:
    first, again, near = page(1, A, "c1"), page(1, A, "c2"), page(2, B, "c1")
    signatures = [Signature(it, [band(0)], ROWS, 109) for it in (first, near)]
    for url in (f"sqlite:///{tmp_path}/texts.sqlite", redis_url, redis_cluster.url):
        with closing(open_store(url)) as store:
            *_, answer = store.content.claim([first, again, near], [signatures[0], None, signatures[1]])
        assert isinstance(answer, NearAnswer)
        assert answer.seen is not None
        assert answer.seen.crawl == "c2"


# Several processes


def _work(url: str, seed: int, start: Any, results: Any) -> None:
    chance = random.Random(seed)
    store = open_store(url, timeout_s=240)
    content = store.content
    names = list(range(300))
    chance.shuffle(names)
    start.wait()
    new, near_answers = [], 0
    for place in range(0, len(names), 7):
        captures = [page(name, f"http://{seed}/{name}", f"c{seed}", 1) for name in names[place : place + 7]]
        asked = [Signature(it, [band((it.digest, n)) for n in range(16)], ROWS, 109) for it in captures]
        answers = content.claim(captures, asked)
        is_new = [isinstance(answer, NearAnswer) for answer in answers]
        unseen = [capture for capture, answer in zip(captures, is_new, strict=True) if answer]
        copies = [copy_of(capture, 0) for capture, answer in zip(captures, is_new, strict=True) if not answer]
        new += [capture.digest for capture in unseen]
        near_answers += sum(isinstance(it, NearAnswer) and it.seen is not None for it in answers)
        content.settle(unseen[::2] + copies)
        # Others go into the buckets of a text that this process failed with, before it gets there again.
        content.settle(unseen[1::2], unseen[::2])
    pending = []
    for name in range(100):
        capture = page(("failed", name), f"http://{seed}/", f"c{seed}", seed)
        if content.claim([capture]) == [None]:
            content.settle([], [capture])
            pending.append(content.find([replace(capture, url="http://other/")])[0])
    store.close()
    results.put((new, near_answers, [it for it in pending if it is not None and it.crawl == f"c{seed}"]))


def test_several_processes_at_once_claim_each_text_once(content_store_url: str) -> None:
    context = multiprocessing.get_context("forkserver")
    start, results = context.Barrier(3), context.Queue()
    processes = [
        context.Process(target=_work, args=(content_store_url, seed, start, results)) for seed in range(3)
    ]
    for process in processes:
        process.start()
    answers = [results.get(timeout=240) for _ in processes]
    for process in processes:
        process.join(240)
    claimed = [name for names, _, _ in answers for name in names]
    assert sorted(claimed) == sorted(digest(name) for name in range(300))
    # The bands of each text are its own.
    assert [near_answers for _, near_answers, _ in answers] == [0, 0, 0]
    # What failed was gone at once.
    assert [failed for _, _, failed in answers] == [[], [], []]
    store = open_store(content_store_url)
    assert store.content.statistics() == {"texts": 300, "kept": 300, "pending": 0, "templates": 0}
    for name in (0, 150, 299):
        urls = [f"http://{seed}/{name}" for seed in range(3)]
        captures = [store.content.captures(url) for url in urls]
        assert [len(found) for found in captures] == [1, 1, 1]
    store.close()


def _claim_near(url: str, seed: int, start: Any, results: Any) -> None:
    store = open_store(url, timeout_s=240)
    start.wait()
    kept = 0
    for name in range(60):
        capture = page((seed, name), f"http://{seed}/{name}", f"c{seed}")
        asked = Signature(capture, [band((name, n)) for n in range(16)], ROWS, 109)
        kept += claim_near(store.content, [asked], pending=False)[0].seen is None
    store.close()
    results.put(kept)


def test_several_processes_at_once_keep_one_of_similar_texts(store_url: str) -> None:
    context = multiprocessing.get_context("forkserver")
    start, results = context.Barrier(3), context.Queue()
    processes = [
        context.Process(target=_claim_near, args=(store_url, seed, start, results)) for seed in range(3)
    ]
    for process in processes:
        process.start()
    assert sum(results.get(timeout=240) for _ in processes) == 60
    for process in processes:
        process.join(240)
    store = open_store(store_url)
    assert store.content.statistics() == {"texts": 180, "kept": 60, "pending": 0, "templates": 0}
    store.close()
