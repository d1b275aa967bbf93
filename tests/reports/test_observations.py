"""Observations of a crawl: exact sums in bounded memory, for any input."""

from __future__ import annotations

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.reports.observations import KINDS, Observations, pack, unpack

T = 1_793_000_000.0


def observed(**values: Any) -> Observations:
    return Observations(lambda: T, **values)


def judge(seen: Observations, url: str, kind: str = "exact", original: str | None = "http://a/") -> None:
    seen.judged(url, "text/html", 200, kind, original, 0.9 if kind == "near" else 1.0)


def json_size(seen: Observations) -> int:
    return len(json.dumps(seen.as_dict(), ensure_ascii=False).encode())


def test_each_event_is_counted_in_its_totals_and_rows() -> None:
    seen = observed(spider="shop")
    seen.filtered("https://example.com/a")
    seen.judged("https://Example.com/", "Text/HTML; charset=utf-8", 200, "unique", size_bytes=10)
    seen.judged("https://example.com/b", "text/html", 200, "near", "https://example.com/", 0.913, True, 20)
    seen.judged("https://example.com/c", "text/html", 200, "unknown")
    seen.recorded("https://example.com/", "text/html", 200, "response", 1_000, 0)
    seen.recorded("https://example.com/b", "text/html", 404, "revisit", 300, 700)
    seen.recorded("https://example.com/b", "text/html", 404, "skipped", 0, 0)
    assert seen.totals == {
        "requests_filtered": 1,
        "pages_judged": 2,
        "duplicates": 1,
        "dropped": 1,
        "responses": 1,
        "revisits": 1,
        "bytes_written": 1_300,
        "bytes_conserved": 700,
        "bytes_judged": 30,
    }
    assert seen.verdicts == {"unique": 1, "unchanged": 0, "changed": 0, "exact": 0, "near": 1, "unknown": 1}
    assert seen.similarities[91] == sum(seen.similarities) == 1
    ((host, row),) = list(seen.hosts)
    assert (host, row.counts) == ("example.com", [2, 1, 1, 1, 1, 1_300, 700])
    seen.recorded("https://example.org/", "image/png", 203, "skipped", 0, 0)
    assert {name: row.counts[3:5] for name, row in seen.statuses} == {"200": [1, 0], "404": [0, 1]}
    assert [name for name, _ in seen.mime_types] == ["text/html"]
    assert seen.timeline.slices() == [(int(T), [1, 2, 1, 1_300, 700])]
    assert seen.spider == "shop"


def test_a_page_is_not_a_copy_of_itself() -> None:
    seen = observed()
    for number in range(30):
        url = f"http://a/{number}"
        seen.judged(url, "", 200, "unchanged", url, 1.0, same_url=True)
        seen.judged(url, "", 200, "near", url, 0.95, same_url=True)
    assert len(seen.groups) == 0
    assert seen.url_patterns.traps(5) == []
    assert seen.totals["duplicates"] == 60


def test_unchanged_pages_neither_join_nor_evict_groups() -> None:
    seen = observed()
    for number in range(3):
        judge(seen, f"http://a/copy{number}", original="http://a/first")
    for number in range(2_000):
        # The text was first read at another URL.
        seen.judged(
            f"http://b/{number}", "", 200, "unchanged", f"http://b/{number}?first", 1.0, same_url=True
        )
        seen.judged(f"http://b/{number}", "", 200, "near", f"http://b/{number}?first", 0.9, same_url=True)
    (group,) = seen.groups.largest(10)
    assert (group.url, group.pages, group.exact, group.is_bound) == ("http://a/first", 3, 3, False)
    assert seen.verdicts["unchanged"] == seen.verdicts["changed"] == 2_000
    assert seen.verdicts["near"] == 0
    assert unpack(pack(seen), "crawl").groups.largest(10) == [group]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind of verdict"):
        judge(observed(), "http://a/", "other")
    # This kind exists only in reports.
    with pytest.raises(ValueError, match="kind of verdict"):
        judge(observed(), "http://a/", "changed")


def enlarged(text: str) -> str:
    return text.replace("LONG", "http://x" + "é" * 5_000)


TEXTS = st.one_of(
    st.text(max_size=50),
    st.sampled_from(["http://a/", "//@", "LONG", "http://[", "a\ud800\n", "http://u:p@h/?a=1;b"]),
    st.integers(0, 10**6).map(lambda number: f"http://host{number}.com/{number}/?p={number}"),
)
NUMBERS = st.one_of(st.integers(0, 1_000), st.integers(-(10**30), 10**30))
JUDGED = st.tuples(
    TEXTS,
    TEXTS,
    NUMBERS,
    st.sampled_from([kind for kind in KINDS if kind != "changed"]),
    st.one_of(st.none(), TEXTS),
    st.floats(),
    st.booleans(),
    NUMBERS,
)
RECORDED = st.tuples(
    TEXTS, TEXTS, NUMBERS, st.sampled_from(["response", "revisit", "skipped"]), NUMBERS, NUMBERS
)


@given(st.lists(TEXTS, max_size=20), st.lists(JUDGED, max_size=30), st.lists(RECORDED, max_size=20))
@settings(
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
    max_examples=examples(50),
    phases=[Phase.generate],
)
def test_any_observations_are_stored_and_restored_unchanged(
    filtered: list[str], judged: list[Any], recorded: list[Any]
) -> None:
    seen = observed()
    for url in filtered:
        seen.filtered(enlarged(url))
    for url, mime, status, kind, original, *rest in judged:
        seen.judged(enlarged(url), enlarged(mime), status, kind, original and enlarged(original), *rest)
    for url, *exchange in recorded:
        seen.recorded(enlarged(url), *exchange)
    plain = seen.as_dict()
    again = unpack(pack(seen), "crawl")
    assert again.as_dict() == json.loads(json.dumps(plain)) == plain
    pages = [page for page in judged if page[3] != "unknown"]
    for tallies in (again.hosts, again.mime_types, again.statuses):
        sums = tallies.sums()
        assert sums[0] == len(pages) == again.totals["pages_judged"]
        assert sums[3] == sum(exchange[3] == "response" for exchange in recorded)
        assert sums[5] == again.totals["bytes_written"]
    assert again.hosts.sums()[2] == len(filtered)


def test_many_hosts_and_long_urls_are_stored_in_bounded_size_with_exact_sums() -> None:
    seen = observed()
    pages = 3_000
    for number in range(pages):
        long = f"https://h{number}.{'é' * 300}.com/{number}/{'ü' * 3_000}?{number}={number}"
        seen.judged(long, f"a{number}/b", number, "exact", f"http://o{number}/{'ñ' * 3_000}", 1.0)
        seen.filtered(f"https://h{number}.com/")
        seen.recorded(long, f"a{number}/b", number, "revisit", 10**12, 10**12)
    for _ in range(3):
        judge(seen, "http://a/" + "é" * 2_000_000, "near", "http://b/" + "é" * 2_000_000)
    assert json_size(seen) < 400_000
    assert seen.hosts.sums()[:3] == [pages + 3, pages + 3, pages]
    assert seen.mime_types.sums()[4:] == [pages, pages * 10**12, pages * 10**12]
    assert len(pack(seen)) < 100_000


def test_harmful_characters_and_passwords_are_removed() -> None:
    seen = observed(spider="a\nb")
    for number in range(25):
        judge(
            seen,
            f"http://me:secret@a\x1b[0m/<script>\u202e{number}",
            original="http://me:secret@b/\x00\ud800",
        )
    text = json.dumps(seen.as_dict(), ensure_ascii=False)
    text.encode()
    assert not set(text) & {"\x1b", "\x00", "\n", "\u202e"}
    assert "\\u001b" not in text
    assert "secret" not in text
    # The page escapes HTML.
    assert "<script>" in text


def test_concurrent_threads_lose_no_counts() -> None:
    seen = observed()

    def work(number: int) -> None:
        for turn in range(500):
            judge(seen, f"http://h{turn % 150}/{number}")
            seen.recorded(f"http://h{turn % 150}/", "text/html", 200, "response", 7, 0)
            if turn % 100 == 0:
                seen.as_dict()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert seen.totals["pages_judged"] == seen.hosts.sums()[0] == 2_000
    assert seen.hosts.sums()[5] == seen.totals["bytes_written"] == 14_000
    assert seen.groups.largest(1)[0].pages == 2_000


def test_a_resumed_job_adds_to_its_observations() -> None:
    first = Observations(lambda: T, spider="shop")
    judge(first, "http://a/1")
    first.set_stats({"dedupe/url/seen": 1})
    second = unpack(pack(first), "crawl", lambda: T + 1_000)
    # Reading observations does not count as a run.
    assert second.as_dict()["ended"] == T
    judge(second, "http://a/2", "near")
    assert (second.spider, second.started, second.ended) == ("shop", T, T + 1_000)
    assert second.verdicts == {"unique": 0, "unchanged": 0, "changed": 0, "exact": 1, "near": 1, "unknown": 0}
    assert [start for start, _ in second.timeline.slices()] == [int(T), int(T) + 1_000]
    assert second.groups.largest(1)[0].pages == 2


def test_stats_that_each_run_counts_from_zero_are_summed() -> None:
    seen = observed()
    for run in range(3):
        seen = unpack(pack(seen), "crawl", lambda: T)
        # The stats are set several times in a run, each time with all counts so far.
        for confirmed in (2, 5):
            errors = {"dedupe/errors/report": 1} if run == 0 else {}
            seen.set_stats({"dedupe/url/confirmed": confirmed, "dedupe/url/seen": 10 * run, **errors})
    assert seen.stats == {"dedupe/url/confirmed": 15, "dedupe/url/seen": 20, "dedupe/errors/report": 1}
    assert unpack(pack(seen), "crawl").stats == seen.stats


@pytest.mark.parametrize("clock", [-5.0, 1e12])
def test_observations_with_a_wrong_clock_can_be_restored(clock: float) -> None:
    seen = Observations(lambda: clock)
    judge(seen, "http://a/1")
    assert unpack(pack(seen), "crawl").totals == seen.totals


def test_a_crawl_does_not_end_before_its_start() -> None:
    moments = iter([T, T - 3_600, T - 3_590, T - 3_590])
    seen = Observations(lambda: next(moments))
    judge(seen, "http://a/1")
    judge(seen, "http://a/2")
    again = unpack(pack(seen), "crawl")
    assert (again.started, again.ended) == (T - 3_600, T - 3_590)


def test_no_part_of_a_long_password_is_stored() -> None:
    seen = observed()
    for number in range(25):
        url = f"http://me:{'secret' * 1_000}@h/{number}"
        judge(seen, url, original=f"http://me:{'secret' * 1_000}@o/")
    text = json.dumps(seen.as_dict())
    assert "secret" not in text
    assert '"http://h/0"' in text


def test_harmful_characters_written_by_other_programs_are_removed() -> None:
    seen = observed(spider="S1")
    judge(seen, "http://h/S1/x?S1=1", original="http://o/S1")
    bad = json.dumps(seen.as_dict()).replace("S1", "\\u001b[31m\\ud800\\u202e")
    text = json.dumps(Observations.from_dict(json.loads(bad)).as_dict(), ensure_ascii=False)
    text.encode()
    assert text.count("\ufffd[31m\ufffd\ufffd") == bad.count("\\u001b") > 5
    assert "\u202e" not in text
    assert "\\u001b" not in text


def test_only_numeric_stats_are_stored() -> None:
    seen = observed()
    seen.set_stats(
        {
            "dedupe/url/seen": 3,
            "dedupe/url/fill_ratio": 0.5,
            "dupefilter/filtered": 2,
            "dedupe/a": "text",
            "dedupe/b": True,
            "dedupe/c": float("nan"),
            "dedupe/d": 10**400,
            "item_scraped_count": 4,
            "dedupe/" + "x" * 500: 1,
            "dedupe/\ud800": 1,
        }
    )
    assert seen.stats == {
        "dedupe/url/seen": 3,
        "dedupe/url/fill_ratio": 0.5,
        "dupefilter/filtered": 2,
        "dedupe/d": 2**80,
        "dedupe/\ufffd": 1,
    }
    seen.set_stats({f"dedupe/{number}": number for number in range(5_000)})
    assert len(seen.stats) == 200


def damaged(key: str, value: object) -> dict[str, Any]:
    seen = observed()
    judge(seen, "http://a/1")
    return {**seen.as_dict(), key: value}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"format": 1},
        damaged("format", 0),
        damaged("format", "1"),
        damaged("format", True),
        damaged("spider", 5),
        damaged("started", None),
        damaged("started", 1e30),
        damaged("ended", float("nan")),
        damaged("totals", {}),
        damaged("verdicts", {"unique": -1}),
        damaged("verdicts", {**dict.fromkeys(KINDS, 0), "near": 2**80}),
        damaged("similarities", [1]),
        damaged("similarities", [2**80, *[0] * 99]),
        damaged("similarities", "x" * 100),
        damaged("hosts", {"rows": [["a", 1, 0]], "others": [], "floor": 0}),
        damaged(
            "hosts",
            {"rows": [["a\0", 1, 0, *[0] * 7], ["a\x01", 1, 0, *[0] * 7]], "others": [0] * 9, "floor": 0},
        ),
        damaged("hosts", {"rows": [[5, 1, 0, *[0] * 7]], "others": [0] * 9, "floor": 0}),
        damaged("groups", {"rows": [[None, "a", 0, 2.0, 1, 1]], "floor": 0}),
        damaged("groups", {"rows": [[None, "a", 0, 1.0, 1, 1, ["u", "odd", 1.0]]], "floor": 0}),
        damaged("url_patterns", {"rows": [["a", 1, 0, 2, 0, 0]], "floor": 0}),
        damaged("url_patterns", {"rows": [["a"]], "floor": 0}),
        damaged("stats", []),
    ],
)
def test_damaged_values_are_refused_with_a_message(data: object) -> None:
    with pytest.raises(StoreRefused, match="damaged"):
        Observations.from_dict(data)


def test_a_newer_format_is_refused_with_a_remedy() -> None:
    with pytest.raises(StoreRefused, match=r"have format 2.*Upgrade"):
        Observations.from_dict(damaged("format", 2))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        zlib.compress(b"{"),
        zlib.compress(b"[" * 100_000),
        zlib.compress(b"\xff"),
        zlib.compress(zlib.decompress(pack(observed())) + b" " * 1_000_000),
        pack(observed())[:-4],
    ],
)
def test_damaged_bytes_are_refused_with_the_name_of_the_crawl(data: bytes) -> None:
    with pytest.raises(StoreRefused, match=r"The report of the crawl my-crawl cannot be read\..*not changed"):
        unpack(data, "my-crawl")


@given(st.data())
def test_damage_raises_no_other_exception(data: st.DataObject) -> None:
    seen = observed()
    judge(seen, "http://a/1")
    packed = bytearray(zlib.decompress(pack(seen)))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(32, 126))
    with suppress(StoreRefused):
        unpack(zlib.compress(bytes(packed)), "crawl").as_dict()
