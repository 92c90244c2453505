"""Fixtures for pytest, which finds them by the entry point of this distribution.

Every run of pytest loads this module if freshq is installed, so it loads the rest only when a test needs it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from freshq.queue.queue import Queue
    from freshq.simulate.advice import Replay
    from freshq.testing.tasks import ManualClock


@pytest.fixture
def freshq_clock() -> ManualClock:
    """Return the clock of `freshq_queue`, which stands still until a test advances it."""
    from freshq.testing.tasks import ManualClock

    return ManualClock()


@pytest.fixture
def freshq_queue(freshq_clock: ManualClock) -> Queue:
    """Return an empty queue in memory, with the default options and a fixed random source."""
    from freshq.queue.queue import Queue

    return Queue.memory(clock=freshq_clock, rng=random.Random(1))  # noqa: S311 - for repeatable tests


@pytest.fixture
def freshq_replay() -> Callable[..., Replay]:
    """Return a function that fails the test if new settings serve a recorded load worse.

    It takes the recording, the present settings and the new ones, each a path of a TOML file or a dict, and
    `fail_if`, such as "in_time<-1%"; by default "value<-1%" if the recording has values. It returns the
    measures.
    """
    from freshq.simulate.advice import Threshold, limit_for, read_settings, replay
    from freshq.simulate.load import read_recording

    def check(
        recording: Path, settings: Path | dict[str, object], against: Path | dict[str, object],
        fail_if: str | None = None,
    ) -> Replay:  # fmt: skip
        now, new = read_settings(settings, "settings"), read_settings(against, "against")
        load = read_recording(recording)
        limit = fail_if or limit_for(load)
        found = replay(load, now, new, Threshold.parse(limit))
        if found.fails:
            pytest.fail(f"{found}; the limit is {limit}")
        return found

    return check
