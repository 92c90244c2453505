"""The store in a relational database."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from freshq.model.lifecycle import new_token
from freshq.model.new_task import json_text
from freshq.model.task import TaskStatus
from freshq.stores.base import ConflictError, Guard, SharedRecord, Stats, Store
from freshq.stores.sql.claims import Claims
from freshq.stores.sql.clock import database_clock
from freshq.stores.sql.database import Database, open_engine
from freshq.stores.sql.migrations import migrate
from freshq.stores.sql.puts import Puts
from freshq.stores.sql.quarantine import fit_for_work
from freshq.stores.sql.readings import Readings
from freshq.stores.sql.rows import changes, end, microseconds, task_of
from freshq.stores.sql.schema import schema
from freshq.stores.sql.statements import Statements
from freshq.stores.sql.transactions import SqlTransactions
from freshq.stores.sql.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from freshq.errors import FreshqError
    from freshq.model.task import Task
    from freshq.stores.base import ClaimRequest
    from freshq.stores.conflicts import OnConflict

# A pause that another process asked for is noticed after so long.
PAUSE_LOOK_SECONDS: Final = 1.0
ENDS: Final = (TaskStatus.SUCCESS, TaskStatus.FAILURE)
PAUSED: Final = "freshq#paused"
# Counts are kept so much longer than they were asked to be kept for.
LAPSED_SECONDS: Final = 60


class SqlStore(Store):
    """Tasks in a table of a relational database. Thread-safe; every process makes its own."""

    def __init__(
        self, url: str | sa.URL | sa.Engine, table: str = "tasks", *, queue: str | None = None
    ) -> None:
        """Use a database; nothing is sent before the first call.

        Args:
            url: Where it is, or an engine that `freshq.stores.sql.database.open_engine` made.
            table: Name of the table of tasks; the names of the others begin with it.
            queue: Whose task `get` returns. Ids are unique within a queue; without it, the id must be
                so in the table.

        Raises:
            ValueError: If an argument is wrong.
        """
        self._schema = schema(table)
        self._own_engine = not isinstance(url, sa.Engine)
        engine = url if isinstance(url, sa.Engine) else open_engine(url)
        self.database = Database(engine, table)
        self.statements = Statements(self._schema, engine.dialect)
        self.claims = Claims(self.database, self.statements)
        self.puts = Puts(self.database, self.statements)
        self._upkeep = Upkeep(self.database, self.statements)
        self._readings = Readings(self.database, self.statements)
        self.transactions = SqlTransactions(self)
        self._queue = queue
        self._clock: Callable[[], float] | None = None
        self._pauses: dict[str, tuple[float, bool]] = {}
        self._pauses_lock = threading.Lock()

    def clock(self) -> float:
        """Return the database's time in seconds since the epoch."""
        if self._clock is None:
            self._clock = database_clock(self.database)
        return self._clock()

    def create_table(self) -> None:
        """Bring the tables to the newest version of the schema."""
        self.migrate()

    def migrate(self) -> list[str]:
        """Do the same; return the names of the migrations that were applied."""
        return migrate(self.database, self._schema)

    # --- tasks

    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        """Add tasks whose ids are free."""
        return self.puts.insert(tasks)

    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> list[str]:
        """Put tasks, each over the one of its id."""
        return self.puts.put(tasks, on_conflict, None)

    def put_count(self) -> int:
        """Return a number that grows with each put of this process."""
        return self.puts.arrivals.number

    def wait_for_put(self, seen: int, seconds: float) -> None:
        """Wait until `put_count` differs from `seen`, at most `seconds`."""
        self.puts.arrivals.wait(seen, seconds)

    def claim(self, request: ClaimRequest) -> list[Task]:
        """Take up to `request.limit` claimable tasks, best first."""
        return fit_for_work(self, self.claims.claim(request), request.now)

    def replace(self, task: Task, guard: Guard) -> Task:
        """Store the new version of a task if the guard holds."""
        if not self._replaced(task, guard):
            current = self._get(task.task_id, task.queue)
            if current is None or current.request_token != task.request_token:
                raise ConflictError(current)
        return task

    def _replaced(self, task: Task, guard: Guard) -> bool:
        """Store the new version of a task by itself; return whether the guard held."""
        if task.status in ENDS and guard.lease_token is not None and guard.request_token is None:
            return self._ended(task, guard.lease_token)
        quick = self.statements.quick_replacements.get(
            (guard.lease_token is not None, guard.request_token is not None)
        )
        if quick is None:
            return self.database.single(partial(self.replace_in, task, guard))
        return self.database.quick(quick, _replacement(task, guard))[1] == 1

    def _ended(self, task: Task, lease_token: str) -> bool:
        parameters = end(task) | {
            "of_task_id": task.task_id,
            "of_queue": task.queue,
            "of_lease_token": lease_token,
        }
        if self.statements.quick_finish is not None:
            return self.database.quick(self.statements.quick_finish, parameters)[1] == 1
        return self.database.single(
            lambda connection, _again: connection.execute(self.statements.finish, parameters).rowcount == 1
        )

    def end_many(self, tasks: Sequence[Task], lease_token: str) -> set[str]:
        """Store the ends of tasks of one queue and lease, equal but for their ids; return whose it was."""
        ids = [task.task_id for task in tasks]
        parameters = end(tasks[0]) | {"of_queue": tasks[0].queue, "of_lease_token": lease_token}
        if self.statements.quick_finish_many is not None:
            listed = json.dumps(ids) if self.database.dialect == "sqlite" else ids
            many = self.statements.quick_finish_many
            return {row[0] for row in self.database.quick(many, parameters | {"many_ids": listed})[0]}

        def work(connection: sa.Connection, _again: bool) -> int:  # noqa: FBT001 - as it is called
            statement = self.statements.finish_many
            return connection.execute(statement, parameters | {"many_ids": sorted(ids)}).rowcount

        # Which were not its own is found out one by one: that is rare.
        return set(ids) if self.database.single(work) == len(ids) else set()

    def replace_in(self, task: Task, guard: Guard, connection: sa.Connection, _again: bool = False) -> bool:  # noqa: FBT001, FBT002 - as a unit of work is called
        """Store the new version of a task; return whether the guard held."""
        statement = self.statements.replace(
            by_lease=guard.lease_token is not None, by_version=guard.request_token is not None
        )
        return connection.execute(statement, _replacement(task, guard)).rowcount == 1

    def delete(self, task: Task, guard: Guard) -> None:
        """Delete a task if the guard holds; one that is gone already is no error."""
        statement = self.statements.deletions[guard.lease_token is not None, guard.request_token is not None]
        parameters: dict[str, str] = {
            "of_task_id": task.task_id,
            "of_queue": task.queue,
            "of_status": guard.status.value,
        }
        if guard.lease_token is not None:
            parameters["of_lease_token"] = guard.lease_token
        if guard.request_token is not None:
            parameters["of_request_token"] = guard.request_token
        deleted = self.database.single(
            lambda connection, _again: connection.execute(statement, parameters).rowcount == 1
        )
        if not deleted and (current := self._get(task.task_id, task.queue)) is not None:
            raise ConflictError(current)

    def due(self, queue: str, now: float) -> list[Task]:
        """Return tasks whose lease ran out or whose delay is over; forget what is past its retention."""
        return self._upkeep.due(queue, now)

    def next_due(self, queue: str, now: float) -> float | None:
        """Return when the next delay or lease of the queue ends, in seconds; None if there is none."""
        parameters = {"of_queue": queue, "now_us": microseconds(now)}
        due_us = self.database.single(
            lambda connection, _again: connection.execute(self.statements.next_due, parameters).scalar()
        )
        return None if due_us is None else due_us / 1e6

    def get(self, task_id: str) -> Task | None:
        """Return a task by its id."""
        return None if "\0" in task_id else self._get(task_id, self._queue)

    def _get(self, task_id: str, queue: str | None) -> Task | None:
        parameters = {"of_task_id": task_id}
        statement = self.statements.get_anywhere
        if queue is not None:
            parameters["of_queue"] = queue
            statement = self.statements.get
        row = self.database.single(
            lambda connection, _again: connection.execute(statement, parameters).one_or_none()
        )
        return None if row is None else task_of(row)

    def scan(self, queue: str, start_after: str | None = None) -> Iterator[Task]:
        """Yield the tasks of the queue by id."""
        return self._readings.scan(queue, start_after)

    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        """Return counts that cost at most a page per line."""
        return self._readings.approximate_stats(queue, now, created_after)

    def purge(self, queue: str) -> int:
        """Delete every task of the queue, in batches."""
        return self._upkeep.purge(queue)

    def count_waiting(self, queue: str, created_after: float, at_most: int) -> dict[str | None, int]:
        """Count the claimable tasks by group."""
        return self._readings.count_waiting(queue, created_after, at_most)

    def oldest_created(self, queue: str, created_after: float) -> float | None:
        """Return when the oldest claimable task was created."""
        return self._readings.oldest_created(queue, created_after)

    def oldest_tasks(
        self, queue: str, created_after: float, count: int, groups: Collection[str | None] | None = None
    ) -> list[Task]:
        """Return the oldest claimable tasks, those of the lowest priority level first."""
        return self._readings.oldest_tasks(queue, created_after, count, groups)

    # --- shared records

    def read_record(self, queue: str, name: str) -> SharedRecord | None:
        """Return a shared record; None if there is none."""
        parameters = {"of_queue": queue, "of_name": name}
        row = self.database.single(
            lambda connection, _again: connection.execute(
                self.statements.read_record, parameters
            ).one_or_none()
        )
        return None if row is None else SharedRecord(json.loads(row.record), row.version)

    def write_record(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        """Write a shared record unless it changed since it was read."""
        mine = new_token()
        new = {"record": json_text(dict(values)), "version": mine}

        def work(connection: sa.Connection, again: bool) -> bool:  # noqa: FBT001 - as it is called
            if version is None:
                statement: Any = self.statements.add_record
                connection.execute(statement, {"queue": queue, "name": name} | new)
                return self._version(connection, queue, name) == mine
            arguments = {"of_queue": queue, "of_name": name, "of_version": version} | new
            if connection.execute(self.statements.change_record, arguments).rowcount == 1:
                return True
            return again and self._version(connection, queue, name) == mine

        return self.database.transaction(work)

    def _version(self, connection: sa.Connection, queue: str, name: str) -> str | None:
        row = connection.execute(
            self.statements.read_record, {"of_queue": queue, "of_name": name}
        ).one_or_none()
        return None if row is None else row.version

    def add_counts(self, queue: str, name: str, counts: Mapping[str, int], expires: int | None) -> None:
        """Add to the numbers of a shared record of counts."""
        rows = [
            {"queue": queue, "name": name, "field": field, "number": number, "expires": expires}
            for field, number in sorted(counts.items())  # in one order, so that no two wait for each other
        ]
        if not rows:
            return

        def work(connection: sa.Connection, _again: bool) -> None:  # noqa: FBT001 - as it is called
            connection.execute(self.statements.add_counts, rows)
            if expires is not None:
                lapsed = {"of_queue": queue, "before": expires - LAPSED_SECONDS}
                connection.execute(self.statements.drop_counts, lapsed)

        self.database.transaction(work)

    def read_counts(self, queue: str, name: str) -> dict[str, int]:
        """Return the numbers of a record of counts."""
        parameters = {"of_queue": queue, "of_name": name}
        rows = self.database.single(
            lambda connection, _again: connection.execute(self.statements.read_counts, parameters).all()
        )
        return {field: int(number) for field, number in rows}

    def paused(self, queue: str) -> bool:
        """Return whether claims are suspended, as of a second ago at the most."""
        with self._pauses_lock:
            look_at, paused = self._pauses.get(queue, (0.0, False))
        if time.monotonic() < look_at:
            return paused
        record = self.read_record(queue, PAUSED)
        return self._note_pause(queue, paused=record is not None and bool(record.values["paused"]))

    def _note_pause(self, queue: str, *, paused: bool) -> bool:
        with self._pauses_lock:
            self._pauses[queue] = (time.monotonic() + PAUSE_LOOK_SECONDS, paused)
        return paused

    def set_paused(self, queue: str, *, paused: bool) -> None:
        """Suspend claims, or allow them again."""
        while True:
            record = self.read_record(queue, PAUSED)
            version = None if record is None else record.version
            if self.write_record(queue, PAUSED, {"paused": paused}, version):
                break
        self._note_pause(queue, paused=paused)

    def close(self) -> None:
        """Close the connections, if the store opened them; it may be used again."""
        if self._own_engine:
            self.database.engine.dispose()


def _replacement(task: Task, guard: Guard) -> dict[str, Any]:
    parameters = changes(task) | {
        "of_task_id": task.task_id,
        "of_queue": task.queue,
        "of_status": guard.status.value,
    }
    if guard.lease_token is not None:
        parameters["of_lease_token"] = guard.lease_token
    if guard.request_token is not None:
        parameters["of_request_token"] = guard.request_token
    return parameters
