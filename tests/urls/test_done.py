from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.urls.done import DoneTracker, FailedTracker

SITE = "http://a.example"


def watching(*pages: str, depth: int = 1) -> DoneTracker[str]:
    """Watches pages that are known by their paths."""
    watch: DoneTracker[str] = DoneTracker()
    for page in pages:
        watch.received(page, SITE + page, depth, [page.encode()])
    return watch


def done(watch: DoneTracker[str]) -> list[bytes]:
    assert watch.tick(set()) == []
    return sorted(watch.tick(set()))


def test_a_request_is_done_when_it_was_missing_twice() -> None:
    watch = watching("/1", "/2")
    watch.received("/2", f"{SITE}/2", 1, [b"2", b"0"])
    assert watch.tick({"/2"}) == []
    assert watch.tick({"/1", "/2"}) == []
    assert watch.tick({"/2"}) == []
    assert watch.tick(set()) == [b"/1"]
    assert "/1" not in watch
    assert watch.tick(set()) == [b"2", b"0"]
    assert watch.tick(set()) == []
    assert watch.all() == []


def test_the_page_that_the_referer_names_is_no_leaf() -> None:
    watch = watching("/1", "/2")
    watch.found(f"{SITE}/new", 2, f"{SITE}/1", {"/1", "/2"})
    assert done(watch) == [b"/2"]


def test_an_inner_page_is_not_told_at_the_end_either() -> None:
    watch = watching("/1", "/2")
    watch.found(f"{SITE}/new", 2, f"{SITE}/1", {"/1", "/2"})
    assert watch.all() == [b"/2"]
    assert "/1" not in watch


def test_on_doubt_every_page_at_work_counts_as_the_parent() -> None:
    for referer in (None, "", f"{SITE}/", f"{SITE}/unknown"):
        watch = watching("/1", "/2", "/over")
        watch.found(f"{SITE}/new", 2, referer, {"/1", "/2", "/not-watched"})
        assert done(watch) == [b"/over"]


def test_a_page_that_is_over_is_no_parent_whatever_the_referer_says() -> None:
    watch = watching("/over", "/1", "/2")
    watch.found(f"{SITE}/new", 2, f"{SITE}/over", {"/1", "/2"})
    assert done(watch) == [b"/over"]


def test_a_referer_from_further_up_is_not_believed() -> None:
    # A callback that changes its own request keeps the Referer of that.
    watch = watching("/parent", depth=1)
    watch.received("/page", f"{SITE}/page", 2, [b"/page"])
    watch.found(f"{SITE}/new", 3, f"{SITE}/parent", {"/parent", "/page"})
    assert done(watch) == []
    watch = watching("/parent", depth=1)
    watch.received("/page", f"{SITE}/page", 2, [b"/page"])
    watch.found(f"{SITE}/new", 2, f"{SITE}/parent", {"/parent", "/page"})
    assert done(watch) == [b"/page"]


def test_without_a_depth_the_referer_is_enough() -> None:
    watch = watching("/1", "/2", depth=0)
    watch.found(f"{SITE}/new", None, f"{SITE}/1", {"/1", "/2"})
    assert done(watch) == [b"/2"]


def test_a_page_that_asks_for_itself_again_is_not_done() -> None:
    watch = watching("/1", "/2")
    watch.found(f"{SITE}/2", 2, f"{SITE}/1", {"/1", "/2"})
    assert done(watch) == []


def test_pages_with_the_same_url_are_parents_together() -> None:
    watch: DoneTracker[str] = DoneTracker()
    for name in ("get", "post"):
        watch.received(name, f"{SITE}/form", 1, [name.encode()])
    watch.found(f"{SITE}/new", 2, f"{SITE}/form", {"get", "post"})
    assert done(watch) == []


def test_where_it_cannot_be_told_what_runs_every_page_is_watched_as_at_work() -> None:
    watch = watching("/1", "/2")
    watch.found(f"{SITE}/new", 2, f"{SITE}/1", None)
    assert done(watch) == [b"/2"]
    watch = watching("/1", "/2")
    watch.found(f"{SITE}/new", 2, None, None)
    assert done(watch) == []


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("rtf")), max_size=30))
def test_nothing_is_kept_of_what_is_done(steps: list[tuple[str, str]]) -> None:
    watch: DoneTracker[str] = DoneTracker()
    for page, step in steps:
        if step == "r":
            watch.received(page, f"{SITE}/{page}", 0, [page.encode()])
        elif step == "t":
            watch.tick({page})
        else:
            watch.found(f"{SITE}/new", 1, f"{SITE}/{page}", {page})
    watch.tick(set())
    watch.tick(set())
    assert (watch._pages, watch._by_url, watch._missing) == ({}, {}, set())


def test_what_was_sent_and_is_gone_without_an_answer_failed() -> None:
    watch: FailedTracker[str] = FailedTracker()
    for request in ("answered", "lost", "busy"):
        watch.sent(request)
    watch.ended("answered")
    assert watch.take({"busy"}) == ["lost"]
    assert watch.take({"busy"}) == []
    assert watch.take(set()) == ["busy"]


def test_a_bad_answer_is_a_failure_at_once_and_once() -> None:
    watch: FailedTracker[str] = FailedTracker()
    watch.sent("bad")
    watch.ended("bad", failed=True)
    assert watch.take({"bad"}) == ["bad"]
    assert watch.take(set()) == []


def test_a_request_that_another_one_replaces_did_not_fail() -> None:
    watch: FailedTracker[str] = FailedTracker()
    watch.sent("first")
    watch.sent("second")
    watch.ended("first")
    assert watch.take(set()) == ["second"]
