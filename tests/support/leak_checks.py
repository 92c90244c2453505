"""Fails a test that leaves a thread of freshq behind, or during which a line of the log could not be written.

Such a thread would work and log during other tests, into streams that are already closed.
"""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.support.patience import PATIENCE_SECONDS

# The event loop of a `Handlers`, which has nothing to do between tasks, lives as long as the process.
STAYS: Final = "freshq-handlers"
_BEFORE: Final = pytest.StashKey[set[threading.Thread]]()
_unwritten: Final[list[str]] = []


def _not_written(_handler: logging.Handler, record: logging.LogRecord) -> None:
    """Note an error of a handler, which only prints it as a rule."""
    thread = threading.current_thread().name
    _unwritten.append(f"{thread}: {record.msg!r} of {record.name}: {sys.exception()!r}")


def is_of_freshq(thread: threading.Thread) -> bool:
    """Return whether a thread runs code of the library, and is to end with what started it."""
    module = getattr(getattr(thread, "_target", None), "__module__", None) or ""
    return thread.name != STAYS and (thread.name.startswith("freshq") or module.startswith("freshq."))


def pytest_configure() -> None:
    """Learn of every line that a handler cannot write."""
    logging.Handler.handleError = _not_written  # type: ignore[method-assign,assignment]  # for all handlers


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember what runs already."""
    item.stash[_BEFORE] = set(threading.enumerate())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[Any]:
    """Wait for threads that end by themselves, and fail if a thread stays."""
    result = yield
    deadline = time.monotonic() + PATIENCE_SECONDS
    left = [each for each in threading.enumerate() if is_of_freshq(each) and each not in item.stash[_BEFORE]]
    for thread in left:
        watcher = getattr(getattr(thread, "_target", None), "__self__", None)
        if (
            thread.name == "freshq-notifier" and watcher is not None
        ):  # it listens for seconds after the last wait
            watcher.close()
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    names = [thread.name for thread in left if thread.is_alive()]
    assert names == [], "it leaves threads behind"
    unwritten, _unwritten[:] = list(_unwritten), []
    assert unwritten == [], "lines of the log could not be written"
    return result
