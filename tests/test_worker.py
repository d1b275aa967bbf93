from __future__ import annotations

import threading
import time

import pytest
from crawling import crawl_test

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.live.stores import FIRST_PAUSE_S, LONGEST_PAUSE_S, Breaker
from scrapy_dedupe.live.threads import EventLoop, Worker


def test_work_is_done_in_the_order_in_which_it_was_given() -> None:
    worker, done = Worker(), []
    futures = [worker.submit(done.append, number) for number in range(200)]
    futures[-1].result(60)
    worker.stop(60)
    assert done == list(range(200))


def test_an_error_goes_to_whoever_asked_and_the_next_task_runs() -> None:
    worker = Worker()

    def fail() -> None:
        raise ValueError("no")

    failed, worked = worker.submit(fail), worker.submit(lambda: 7)
    assert worked.result(60) == 7
    with pytest.raises(ValueError, match="no"):
        failed.result(60)
    worker.stop(60)


def test_an_error_of_a_task_without_result_is_logged_and_the_next_task_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker()

    def fail() -> None:
        raise ValueError("planted")

    worker.post(fail)
    assert worker.submit(lambda: 7).result(60) == 7
    worker.stop(60)
    assert "Unexpected error of the worker: planted" in caplog.text
    with pytest.raises(RuntimeError, match="stopped"):
        worker.post(fail)


def test_the_weight_of_what_waits_is_known() -> None:
    changes: list[int] = []
    go = threading.Event()
    worker = Worker(limit_bytes=2_000, on_limit=lambda: changes.append(worker.pending_bytes))
    worker.submit(go.wait, 60)
    waiting = [worker.submit_weighing(1_000, int) for _ in range(3)]
    assert worker.pending_bytes == 3_000
    go.set()
    waiting[-1].result(60)
    worker.stop(60)
    assert worker.pending_bytes == 0
    assert changes == [3_000, 1_000]


def test_stopping_finishes_what_waits_and_refuses_more() -> None:
    worker, done = Worker(), []
    for number in range(50):
        worker.submit(done.append, number)
    assert worker.stop(60)
    assert worker.stop(60)
    assert len(done) == 50
    with pytest.raises(RuntimeError, match="stopped"):
        worker.submit(int)


@crawl_test
async def test_calls_from_another_thread_run_in_order_and_after_one_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, worker, done = EventLoop(), Worker(), list[int]()
    loop.open()

    def fail() -> None:
        raise ValueError("no such call")

    def send() -> None:
        for number in range(200):
            loop.call(done.append, number)
            if number % 50 == 0:
                loop.call(fail)

    await loop.wait_for(worker.submit(send))
    worker.stop(60)
    loop.close()
    assert done == list(range(200))
    assert caplog.text.count("ValueError: no such call") == 4


@crawl_test
async def test_a_call_before_the_loop_is_open_delays_no_later_call() -> None:
    loop, worker, done = EventLoop(), Worker(), list[int]()
    worker.submit(loop.call, done.append, 1).result(60)
    loop.open()
    await loop.wait_for(worker.submit(time.sleep, 0.1))
    worker.stop(60)
    loop.close()
    assert done == [1]


def test_a_breaker_pauses_longer_each_time_and_closes_with_the_first_answer() -> None:
    now, told = [0.0], []
    breaker = Breaker(
        lambda error: told.append("failed"),
        lambda error: told.append("lost"),
        lambda: told.append("back"),
        clock=lambda: now[0],
    )
    error = OSError("gone")
    assert not breaker.open
    breaker.failed(error)
    assert breaker.open
    now[0] += FIRST_PAUSE_S
    assert not breaker.open
    for _ in range(10):
        breaker.failed(error)
    now[0] += LONGEST_PAUSE_S - 0.1
    assert breaker.open
    now[0] += 0.1
    assert not breaker.open
    breaker.worked()
    breaker.worked()
    assert not breaker.open
    assert [word for word in told if word != "failed"] == ["lost", "back"]
    assert told.count("failed") == 11


def test_a_breaker_takes_no_store_for_back_that_can_only_be_read() -> None:
    now, told, reads_only = [0.0], [], [True]

    def probe() -> None:
        if reads_only:
            raise StoreUnavailable("read only")

    breaker = Breaker(
        told.append,
        lambda error: told.append("lost"),
        lambda: told.append("back"),
        probe,
        clock=lambda: now[0],
    )
    breaker.worked()
    assert told == [], "while all is well nobody is asked more than he is"
    breaker.failed(StoreUnavailable("read only"))
    now[0] += FIRST_PAUSE_S
    breaker.worked()
    assert breaker.open
    now[0] += 2 * FIRST_PAUSE_S
    assert not breaker.open
    assert "back" not in told
    reads_only.clear()
    breaker.worked()
    assert told.count("lost") == told.count("back") == 1
    reads_only.append(True)
    breaker.failed(OSError("gone"))
    breaker.worked(has_written=True)
    assert told.count("back") == 2
