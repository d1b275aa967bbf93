from __future__ import annotations

from scrapy_dedupe.urls.failed import FailedTracker


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
