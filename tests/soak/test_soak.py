"""Random verbs by many processes that are killed and stopped, and what their journals say afterwards.

The network between them and a store that is a server delays, cuts, swallows and resets. `make soak` sets
FRESHQ_SOAK_SECONDS, for each store, and restarts the servers too; without it, this is the short form of
`make test-all`. FRESHQ_SOAK_CALLS ends it earlier, after this number of calls.
"""

import math
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from local.faults import Proxy, client_at
from local.servers import HOST, DynamoDBLocal, MariaDB, Postgres, Server, create_without_stream

from freshq import AttachedQueue, Queue, Settlement, Task, TaskStatus
from freshq.queue.core import core_of
from freshq.stores.dynamodb.key import TableKey
from tests.soak.actors import LEASE_SECONDS, OPENING, Place
from tests.soak.cast import DOWN_SECONDS, Cast, Network
from tests.soak.history import OK, balance, check, last_number, read, traced
from tests.support.attached import Shipments

SERVERS: Final[dict[str, type[Server]]] = {"postgres": Postgres, "mariadb": MariaDB}
IS_LONG: Final = "FRESHQ_SOAK_SECONDS" in os.environ
SOAK_SECONDS: Final = float(os.environ.get("FRESHQ_SOAK_SECONDS", "2"))
SOAK_CALLS: Final = float(os.environ.get("FRESHQ_SOAK_CALLS", math.inf))
ACTORS: Final = 4
# For processes that first import everything on a busy machine, or have a store on a disk. Claims that take
# longer than a lease give their tasks up, until one does not.
START_SECONDS: Final = 300.0
PAUSE_SECONDS: Final = 0.5
# Calls between two bad things in the long form: on a slow store the actors would do little else than recover.
CALLS_BETWEEN: Final = 100 if IS_LONG else 0
SEED: Final = 20_260_000
# If shorter, leases would expire during a hundred claims on a busy machine.
DRAIN_LEASE_SECONDS: Final = 60.0
# How long an actor waits for an answer, since the proxy may drop it; DynamoDB Local is slow on a disk.
ANSWER_SECONDS: Final = 1.0
ON_DISK_ANSWER_SECONDS: Final = 4.0


@dataclass(frozen=True)
class Scene:
    """The store, the network and the clocks of one soak.

    Attributes:
        place: The queue, as the actors reach it.
        behind: The queue, as the checker reaches it.
        network: The network between the actors and the queue; None for a file.
    """

    place: Place
    behind: Callable[[], Place]
    network: Network | None = None

    def opened(self) -> Queue | AttachedQueue:
        """Return the queue as the checker reaches it."""
        return self.behind().open()


@pytest.fixture(params=["sqlite", "postgres", "mariadb", "dynamodb_local", "attached"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Return an empty queue that processes can open."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            place = Place(request.getfixturevalue("sqlite_url"))
            yield Scene(place, lambda: place)
        elif request.param in SERVERS:
            yield _on_server(request, stack)
        else:
            key = "id" if request.param == "attached" else None
            if IS_LONG:
                yield _on_restarted_dynamodb(tmp_path_factory.mktemp("dynamodb"), stack, key)
            else:
                yield _on_dynamodb(request, stack, key)


def _on_server(request: pytest.FixtureRequest, stack: ExitStack) -> Scene:
    if IS_LONG:
        server: Server = stack.enter_context(SERVERS[request.param]())
        with closing(Place(server.url).open()) as queue:
            queue.create_table()
    else:
        request.getfixturevalue(f"{request.param}_engine")
        server = request.getfixturevalue(f"{request.param}_server")

    def restart() -> None:
        server.stop()
        time.sleep(DOWN_SECONDS)
        server.start()

    proxy = stack.enter_context(Proxy(server.port))
    url = sa.make_url(server.url).set(host=HOST, port=proxy.port)
    return Scene(
        Place(url.render_as_string(hide_password=False), answer_seconds=ANSWER_SECONDS),
        lambda: Place(server.url),
        Network(proxy, restart if IS_LONG else None),
    )


def _table_at(url: str, key: str | None) -> str:
    """Make a table, attached if it has a key of the application's; return its name."""
    table = f"soak-{uuid.uuid4().hex}"
    if key is None:
        create_without_stream(client_at(url), table)
    else:
        Shipments(client_at(url), table, TableKey.named(key)).create_attached()
    return table


def _on_dynamodb(request: pytest.FixtureRequest, stack: ExitStack, key: str | None) -> Scene:
    url = request.getfixturevalue("dynamodb_local").meta.endpoint_url
    behind = Place(url, _table_at(url, key), key=key)
    proxy = stack.enter_context(Proxy(int(url.rpartition(":")[2])))
    place = replace(behind, url=f"http://{HOST}:{proxy.port}", answer_seconds=ANSWER_SECONDS)
    return Scene(place, lambda: behind, Network(proxy))


def _on_restarted_dynamodb(data: Path, stack: ExitStack, key: str | None) -> Scene:
    servers = [DynamoDBLocal(data=data).__enter__()]
    stack.callback(lambda: servers[-1].__exit__(None, None, None))
    table = _table_at(servers[-1].endpoint_url, key)
    proxy = stack.enter_context(Proxy(servers[-1].port))

    def restart() -> None:
        servers[-1].__exit__(None, None, None)
        time.sleep(DOWN_SECONDS)
        servers.append(DynamoDBLocal(data=data).__enter__())
        proxy.lead_to(servers[-1].port)

    return Scene(
        Place(f"http://{HOST}:{proxy.port}", table, ON_DISK_ANSWER_SECONDS, key),
        lambda: Place(servers[-1].endpoint_url, table, key=key),
        Network(proxy, restart),
    )


def drain(queue: Queue | AttachedQueue) -> list[str]:
    """Complete every task that is left; return their ids."""
    drained = []
    while claims := queue.claim(100, lease_seconds=DRAIN_LEASE_SECONDS):
        drained += [claim.task.task_id for claim in claims]
        assert all(
            isinstance(task, Task)
            for task in queue.settle_many([Settlement.complete(claim) for claim in claims])
        )
    return drained


def eventually(holds: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return whether it did in time."""
    deadline = time.monotonic() + START_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def begun_calls(folder: Path) -> int:
    """Return how many calls the actors have begun."""
    return sum(last_number(path) for path in folder.glob("*.jsonl"))


@pytest.mark.timeout(2 * SOAK_SECONDS + START_SECONDS + 180)
def test_no_history_breaks_a_rule(scene: Scene, tmp_path: Path) -> None:
    cast = Cast(scene.place, tmp_path, ACTORS, SEED, scene.network)
    try:
        assert eventually(lambda: not cast.unopened()), cast.unopened()
        until, calls, quiet_until = time.monotonic() + SOAK_SECONDS, 0, 0
        while not cast.tried_all or (time.monotonic() < until and calls < SOAK_CALLS):
            time.sleep(PAUSE_SECONDS)
            calls = begun_calls(tmp_path)
            if calls >= quiet_until:
                cast.disturb()
                quiet_until = calls + CALLS_BETWEEN
    finally:
        cast.end()
    time.sleep(LEASE_SECONDS)  # every lease that is left expires
    with closing(scene.opened()) as queue:
        queue.admin.recover()
        tasks = {task.task_id: task for task in core_of(queue).store.scan(queue.name)}
        drained = drain(queue)
        ended = {
            task.task_id: task.status_at(queue.admin.now()) for task in core_of(queue).store.scan(queue.name)
        }
    events = read(tmp_path.glob("*.jsonl"))

    assert [str(violation) for violation in check(events, tasks, cast.stops)] == []
    assert [str(violation) for violation in traced(events, tasks)] == []
    assert [task.task_id for task in tasks.values() if task.status is TaskStatus.TAKEN] == []
    assert [str(violation) for violation in balance(events, ended, drained)] == []
    assert {event.verb for event in events if event.outcome == OK} >= set(OPENING)
    assert cast.killed
    assert cast.stops
    assert scene.network is None or cast.faults
    assert scene.network is None or scene.network.restart is None or cast.restarts
