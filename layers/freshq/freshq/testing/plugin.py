"""Fixtures for pytest: `pytest_plugins = ["freshq.testing.plugin"]`."""

from __future__ import annotations

import random

import pytest

from freshq.queue.queue import Queue
from freshq.testing.clock import ManualClock


@pytest.fixture
def freshq_clock() -> ManualClock:
    """Return the clock of `freshq_queue`, which stands still until a test advances it."""
    return ManualClock()


@pytest.fixture
def freshq_queue(freshq_clock: ManualClock) -> Queue:
    """Return an empty queue in memory, with the default options and a fixed random source."""
    return Queue.memory(clock=freshq_clock, rng=random.Random(1))  # noqa: S311 - for repeatable tests
