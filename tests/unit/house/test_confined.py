"""Only the test's own thread sees a clock that a test replaces."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from freshq.queue.stopping import Wake
from freshq.worker import executor as executor_module
from tests.support.cooperative import playing
from tests.support.one_thread_patch import confined

TESTS = Path(__file__).parents[2]
PATCHED = re.compile(
    r"(?:setattr|patch\.object)\(\s*(?:time|os|random), \"(?:monotonic|time|sleep|urandom)\"(.*)"
)


executor: Any = executor_module


class Schedule:
    """As much of a schedule as `playing` needs; its time stands still."""

    seed = 7
    now_seconds = 5.0

    def now(self) -> float:
        return 5.0

    def pause(self, *_until: Any) -> None:
        return

    def random_bytes(self, count: int) -> bytes:
        return bytes(count)

    def start(self, *_target: Any) -> None:
        return


def elsewhere(call: Callable[[], Any]) -> Any:
    """Return the result of a call in another thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def test_the_time_of_a_schedule_stands_still_for_its_own_thread_only() -> None:
    schedule: Any = Schedule()
    lock, real = type(threading.Lock()), time.monotonic()
    with playing(schedule):
        assert (time.monotonic(), time.time(), os.urandom(2)) == (5.0, 5.0, b"\0\0")
        assert elsewhere(time.monotonic) >= real
        assert elsewhere(time.time) > 1e9
        assert elsewhere(lambda: os.urandom(16)) != bytes(16)
        assert elsewhere(lambda: random.SystemRandom().getrandbits(64)) >= 0
        assert elsewhere(lambda: type(executor.threading.Lock())) is lock
        assert type(executor.threading.Lock()) is not lock
        woken = Wake()
        woken.set()
        assert elsewhere(lambda: woken.wait(60)) is None
    assert time.monotonic() >= real


def test_a_clock_of_a_test_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", confined(lambda: 1.0, time.monotonic))
    assert time.monotonic() == 1.0
    assert elsewhere(time.monotonic) != 1.0


def test_no_test_replaces_a_clock_for_the_whole_process() -> None:
    wrong = [
        f"{file.relative_to(TESTS)}: {found.group(0).strip()}"
        for file in sorted(TESTS.rglob("*.py"))
        for found in PATCHED.finditer(re.sub(r"\(\n\s+", "(", file.read_text("utf-8")))
        if "confined(" not in found.group(1)
    ]
    assert wrong == [], "wrap the replacement in tests.support.one_thread_patch.confined"
