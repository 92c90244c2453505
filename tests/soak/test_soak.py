"""Random verbs by many processes that are killed and stopped, and what their journals say afterwards.

`make soak` sets FRESHQ_SOAK_SECONDS, for each store; without it, this is the short form of `make test`.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from freshq import TaskStatus
from tests.soak.actors import LEASE_SECONDS, Cast, Place
from tests.soak.history import OK, check, read
from tests.support.dynamodb_local import stop_stream
from tests.support.faults import client_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.databases import Server

SOAK_SECONDS: Final = float(os.environ.get("FRESHQ_SOAK_SECONDS", "3"))
ACTORS: Final = 4
# Of processes on a busy machine, which import everything first.
START_SECONDS: Final = 60.0
# Completed tasks that make a history worth checking.
ENOUGH: Final = 20
PAUSE_SECONDS: Final = 0.5
SEED: Final = 20_260_000


@pytest.fixture(params=["sqlite", "postgres", "dynamodb_local"])
def place(request: pytest.FixtureRequest) -> Place:
    """Return an empty queue that processes can open."""
    if request.param == "sqlite":
        return Place(request.getfixturevalue("sqlite_url"))
    if request.param == "postgres":
        request.getfixturevalue("postgres_engine")
        server: Server = request.getfixturevalue("postgres_server")
        return Place(server.url)
    endpoint_url = request.getfixturevalue("dynamodb_local").meta.endpoint_url
    place = Place(endpoint_url, f"soak-{uuid.uuid4().hex}")
    place.open().create_table()
    stop_stream(client_at(endpoint_url), place.table or "")
    return place


def completed(journals: Path) -> int:
    """Return how many tasks were completed, by calls that were answered."""
    events = read(journals.glob("*.jsonl"))
    return sum(event.verb == "complete" and event.outcome == OK for event in events)


def eventually(holds: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return whether it did within the deadline."""
    deadline = time.monotonic() + START_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.timeout(SOAK_SECONDS + 180)
def test_no_history_breaks_a_rule(place: Place, tmp_path: Path) -> None:
    cast = Cast(place, tmp_path, ACTORS, SEED)
    try:
        assert eventually(cast.acts)
        begun = time.monotonic()
        while time.monotonic() < begun + SOAK_SECONDS or (
            completed(tmp_path) < ENOUGH and time.monotonic() < begun + SOAK_SECONDS + START_SECONDS
        ):
            time.sleep(PAUSE_SECONDS)
            cast.disturb()
    finally:
        cast.end()
    time.sleep(LEASE_SECONDS)  # every lease that is left expires
    with closing(place.open()) as queue:
        queue.recover()
        tasks = {task.task_id: task for task in queue.store.scan(queue.name)}
    events = read(tmp_path.glob("*.jsonl"))

    assert [str(violation) for violation in check(events, tasks)] == []
    assert [task.task_id for task in tasks.values() if task.status is TaskStatus.TAKEN] == []
    assert cast.killed
    assert cast.stopped
    assert completed(tmp_path) >= ENOUGH
