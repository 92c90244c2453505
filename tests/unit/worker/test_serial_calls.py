"""A function that is called for each item in a thread: one thread for many items, which ends."""

import threading
from collections import deque
from functools import partial

import pytest

from freshq.worker import run
from freshq.worker.run import SerialCalls
from tests.support.worker_threads import wait_until


def alive(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


def test_one_thread_calls_the_function_for_items_in_order() -> None:
    called: deque[tuple[int, int]] = deque()

    def has(number: int) -> bool:
        return len(called) == number

    calls = SerialCalls[int]("in-order", lambda item: called.append((item, threading.get_ident())))
    for item in range(3):
        calls.add(item)
        wait_until(partial(has, item + 1))
    assert [item for item, _thread in called] == [0, 1, 2]
    assert len({thread for _item, thread in called}) == 1
    assert alive("in-order")
    calls.close()
    wait_until(lambda: not alive("in-order"))


def test_the_thread_ends_by_itself_and_another_item_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "IDLE_SECONDS", 0.001)
    called: deque[str] = deque()
    calls = SerialCalls[str]("idle", called.append)
    calls.add("first")
    wait_until(lambda: not alive("idle"))
    calls.add("second")
    wait_until(lambda: not alive("idle"))
    assert [*called] == ["first", "second"]


def test_an_item_after_the_end_is_still_called() -> None:
    called: deque[str] = deque()
    calls = SerialCalls[str]("closed", called.append)
    calls.close()
    calls.add("late")
    wait_until(lambda: not alive("closed"))
    assert [*called] == ["late"]


def test_without_a_thread_the_caller_calls_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    called: deque[int] = deque()
    calls = SerialCalls[int]("short", lambda _item: called.append(threading.get_ident()))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    calls.add(1)
    assert [*called] == [threading.get_ident()]
