"""Fixtures for pytest, which finds them by the entry point of this distribution.

Every run of pytest loads this module if freshq is installed, so it loads the rest only when a test needs it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from freshq.queue.queue import Queue
    from freshq.testing.tasks import ManualClock


@pytest.fixture
def freshq_clock() -> ManualClock:
    """Return the clock of `freshq_queue`, which stands still until a test advances it."""
    from freshq.testing.tasks import ManualClock  # noqa: PLC0415 - see above

    return ManualClock()


@pytest.fixture
def freshq_queue(freshq_clock: ManualClock) -> Queue:
    """Return an empty queue in memory, with the default options and a fixed random source."""
    from freshq.queue.queue import Queue  # noqa: PLC0415 - see above

    return Queue.memory(clock=freshq_clock, rng=random.Random(1))  # noqa: S311 - for repeatable tests
