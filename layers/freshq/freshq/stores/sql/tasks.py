"""Put, read, change and delete tasks by their ids."""

from __future__ import annotations

import json
import logging
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.errors import StoreError
from freshq.model.answers import PutOutcome
from freshq.model.fields import NEVER
from freshq.model.lifecycle import UNHELD, new_token, put_over, truncated
from freshq.model.task import TaskStatus, Verb, advance, changed, has_made_id
from freshq.stores.base import Conflict, DeadLetters, Guard, place_of
from freshq.stores.held import OPEN
from freshq.stores.sql.horizon import EVER_US
from freshq.stores.sql.rows import (
    END_COLUMNS,
    NEW_COLUMNS,
    OVER,
    PUT_COLUMNS,
    VERSION_COLUMNS,
    end_values,
    microseconds,
    new_values,
    new_version,
    outcome_of,
    put_values,
    remember,
    row_of,
    task_of,
)
from freshq.stores.sql.statements import (
    TAKEN,
    Conditions,
    SqlPart,
    Statements,
    guard_parameters,
    insert_or_ignore,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from freshq.errors import FreshqError
    from freshq.model.task import Task
    from freshq.stores.base import DeadPlace, OnConflict
    from freshq.stores.sql.database import Database, PreparedStatement
    from freshq.stores.sql.postgresql import Copy
    from freshq.stores.sql.schema import Schema

# Rows per transaction: enough to amortize the commit, few enough not to block other writers.
BATCH_ROWS: Final = 500
SCAN_ROWS: Final = 500
DEAD_ROWS: Final = 100
COUNTED_DEAD: Final = 10_000
ENDS: Final = (TaskStatus.SUCCESS, TaskStatus.FAILURE)
# Names of the guard's columns beside the columns of the new version.
GIVEN_GUARD: Final = ("of_status", "of_lease_token", "of_request_token")
# Values that `finish` takes, and that `finish_many` takes for each task; its statement has the shared agenda.
HELD_END: Final = ("of_task_id", "of_queue", "of_lease_token", *END_COLUMNS)
GIVEN_END: Final = ("task_id", "queue", "of_lease_token", *END_COLUMNS[:-1])
# Whether a guard names a lease token, and whether it names a version.
GUARDS: Final = [(by_lease, by_version) for by_lease in (True, False) for by_version in (True, False)]
logger = logging.getLogger(__name__)


def _bound(columns: Iterable[str]) -> dict[str, Any]:
    """Return a parameter for each column, under its name."""
    return {name: sa.bindparam(name) for name in columns}


class PutStatements(Statements):
    """Statements of puts."""

    @cached_property
    def put(self) -> sa.Executable:
        """Insert tasks whose ids are free."""
        insert: sa.Executable = insert_or_ignore(self.tasks, self.dialect).values(_bound(PUT_COLUMNS))
        return insert.execution_options(preserve_rowcount=True)

    @cached_property
    def put_one(self) -> PreparedStatement:
        """As `put`, but takes the values of `PUT_COLUMNS`."""
        return self.prepared(self.put, PUT_COLUMNS)

    def copy_of(self, tasks: Sequence[Task]) -> Copy:
        """Return the COPY of tasks whose ids nobody else can have. PostgreSQL only."""
        from freshq.stores.sql.postgresql import Copy  # noqa: PLC0415 - needs the driver

        table = self.dialect.identifier_preparer.format_table(self.tasks)
        statement = f"COPY {table} ({', '.join(NEW_COLUMNS)}) FROM STDIN"
        return Copy(table, statement, partial(map, new_values, tasks))

    @cached_property
    def overwrite(self) -> sa.Update:
        """Overwrite a task of the same id, unless it has changed."""
        unchanged = self.tasks.c.request_token == sa.bindparam("of_request_token")
        values = _bound(name for name in PUT_COLUMNS if name not in ("task_id", "queue"))
        return sa.update(self.tasks).where(*self.this_task, unchanged).values(values)


def as_dead_letter(task: Task, problem: str, now: float) -> Task:
    """Return a claimed task as a dead letter.

    Args:
        task: The task.
        problem: Why its payload cannot be decoded.
        now: Current time in seconds.
    """
    logger.error("task %s of queue %r is a dead letter: %s", task.task_id, task.queue, problem)
    failed = advance(task, Verb.FAIL, TaskStatus.FAILURE, now, error=truncated(problem), **UNHELD)
    # A person must repair it, so it stays until it is purged.
    return changed(failed, request_token=new_token(), expires=int(NEVER))


class SettleStatements(Statements):
    """Statements that change one task or end several."""

    def _guarded(self, by_lease: bool, by_version: bool) -> Conditions:  # noqa: FBT001 - a key of GUARDS
        """Return the conditions of a guard on one task."""
        tasks = self.tasks
        conditions = [*self.this_task, tasks.c.status == sa.bindparam("of_status")]
        if by_lease:
            conditions.append(tasks.c.lease_token == sa.bindparam("of_lease_token"))
        if by_version:
            conditions.append(tasks.c.request_token == sa.bindparam("of_request_token"))
        return tuple(conditions)

    @cached_property
    def replacements(self) -> dict[tuple[bool, bool], sa.Update]:
        """Store the new version of a task, for each form of guard."""
        return {
            guard_key: sa.update(self.tasks).where(*self._guarded(*guard_key)).values(_bound(VERSION_COLUMNS))
            for guard_key in GUARDS
        }

    @cached_property
    def _given(self) -> sa.Subquery:
        """New versions of several tasks and their guards, read from the JSON parameter `changes`."""
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - only the dialect in use is loaded

        names = [*VERSION_COLUMNS, "task_id", "queue", *GIVEN_GUARD]
        columns = [sa.column(name, _given_type(self.tasks, name)) for name in names]
        rows = sa.func.json_to_recordset(sa.cast(sa.bindparam("changes", type_=sa.Text), postgresql.JSON))
        given = rows.table_valued(*columns, name="given").render_derived(with_types=True)
        return sa.select(*given.c).subquery("given")

    @cached_property
    def replace_many(self) -> sa.Update:
        """Store new versions of several tasks, except tasks with a locked row; on PostgreSQL."""
        given, current = self._given, self.tasks.alias("current_tasks")
        admitted = sa.and_(
            current.c.status == given.c.of_status,
            sa.or_(given.c.of_lease_token.is_(None), current.c.lease_token == given.c.of_lease_token),
            sa.or_(given.c.of_request_token.is_(None), current.c.request_token == given.c.of_request_token),
        )
        # An earlier try may have been committed, and its reply lost.
        made_before = sa.and_(
            current.c.request_token == given.c.request_token,
            # With a successor since then, it is not the same version.
            current.c.lease_token.is_not_distinct_from(given.c.lease_token),
        )
        free = (
            sa.select(given)
            .join(current, sa.and_(current.c.task_id == given.c.task_id, current.c.queue == given.c.queue))
            .where(sa.or_(admitted, made_before))
            .with_for_update(of=current, skip_locked=True)
            .cte("free")
        )
        values = {name: free.c[name] for name in VERSION_COLUMNS}
        # Join by both columns of the key: with a constant queue, PostgreSQL may read the whole agenda.
        key = (self.tasks.c.task_id == free.c.task_id, self.tasks.c.queue == free.c.queue)
        update = sa.update(self.tasks).where(*key)
        return update.values(values).returning(self.tasks.c.task_id, self.tasks.c.request_token)

    @cached_property
    def replace_locked(self) -> sa.Update:
        """Store the new version of a locked task."""
        return sa.update(self.tasks).where(*self.this_task).values(_bound(VERSION_COLUMNS))

    @cached_property
    def prepared_replacements(self) -> dict[tuple[bool, bool], PreparedStatement]:
        """As `replacements`."""
        return {guard_key: self.prepared(statement) for guard_key, statement in self.replacements.items()}

    @cached_property
    def deletions(self) -> dict[tuple[bool, bool], sa.Delete]:
        """Delete a task, for each form of guard."""
        return {guard_key: sa.delete(self.tasks).where(*self._guarded(*guard_key)) for guard_key in GUARDS}

    @cached_property
    def _held(self) -> Conditions:
        tasks = self.tasks
        return (tasks.c.status == TAKEN, tasks.c.lease_token == sa.bindparam("of_lease_token"))

    @cached_property
    def _end(self) -> dict[str, Any]:
        """Columns that the end of a held task changes: since the claim only the lease can have changed."""
        return _bound(END_COLUMNS) | dict.fromkeys(("lease_token", "lease_until_us", "line"), sa.null())

    @cached_property
    def finish(self) -> PreparedStatement:
        """End one held task; takes the values of `HELD_END`."""
        update = sa.update(self.tasks).where(*self.this_task, *self._held).values(self._end)
        return self.prepared(update, HELD_END)

    @cached_property
    def finish_many(self) -> PreparedStatement:
        """End several held tasks, each with its own outcome; return their ids."""
        given = self._given_ends
        ended = {
            name: given.c[name] if name in GIVEN_END else sa.literal(OVER) if name == "agenda" else value
            for name, value in self._end.items()
        }
        held = (
            # Search by the id alone: by another column, PostgreSQL may keep reading the whole agenda.
            self.tasks.c.task_id == given.c.task_id,
            self.unindexed(self.tasks.c.queue) == given.c.queue,
            self.unindexed(self.tasks.c.status) == TAKEN,
            self.tasks.c.lease_token == given.c.of_lease_token,
        )
        return self.prepared(sa.update(self.tasks).where(*held).values(ended).returning(self.tasks.c.task_id))

    @cached_property
    def _given_ends(self) -> sa.FromClause:
        """The columns `GIVEN_END` of several tasks, passed as arrays, or as a JSON array on SQLite."""
        columns = [sa.column(name, _given_type(self.tasks, name)) for name in GIVEN_END]
        if self.dialect.name != "postgresql":
            rows = sa.func.json_each(sa.bindparam("many_ends")).table_valued("value", name="rows")
            cells = [
                sa.func.json_extract(rows.c.value, f"$[{place}]", type_=column.type).label(column.name)
                for place, column in enumerate(columns)
            ]
            return sa.select(*cells).subquery("given")
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - only the dialect in use is loaded

        arrays = [
            sa.cast(sa.bindparam(f"many_{column.name}"), postgresql.ARRAY(column.type)) for column in columns
        ]
        return sa.func.unnest(*arrays).table_valued(*columns).render_derived(name="given")


class SqlTasks(SqlPart):
    """Puts, reads, changes and deletes tasks by their ids."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        dialect = database.engine.dialect
        self.put_sql = PutStatements.shared(schema, dialect)
        self.settle_sql = SettleStatements.shared(schema, dialect)

    @override
    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        added: list[bool | FreshqError] = []
        try:
            for start in range(0, len(tasks), BATCH_ROWS):
                some = tasks[start : start + BATCH_ROWS]
                if len(some) == 1:
                    inserted = self.database.execute(self.put_sql.put_one, put_values(some[0])).changed
                else:
                    inserted = self._insert_many(some)
                if self.horizon.watches:
                    self.horizon.entered(some)
                if inserted == len(some) and self.put_sql.has_returning:
                    added += [True] * len(some)
                else:
                    added += self.database.read(partial(self._added, tasks=some))
        except StoreError as error:
            if len(tasks) <= BATCH_ROWS:
                raise
            added += [error] * (len(tasks) - len(added))  # the failed batch, and all later ones
        return added

    def _insert_many(self, tasks: Sequence[Task]) -> int:
        """Insert several tasks in one transaction; return how many were new, if the database counts them."""
        insert = self.put_sql.put_one

        def values() -> list[tuple[Any, ...]]:
            return list(map(put_values, tasks))

        copied = None
        if self._can_copy(tasks):
            copied = self.database.write_rows(self.put_sql.copy_of(tasks).write, insert, values)
        return self.database.execute_many(insert, values()) if copied is None else copied

    def _can_copy(self, tasks: Sequence[Task]) -> bool:
        """Return whether PostgreSQL may copy several tasks: only an INSERT passes over ids that are taken."""
        return self.database.dialect == "postgresql" and len(tasks) > 1 and all(map(has_made_id, tasks))

    @override
    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> list[PutOutcome]:
        if OPEN.get():
            for task in tasks:
                self.database.refuse_held(task.queue, task.task_id)
        return self.database.transaction(lambda connection: self._put(connection, tasks, on_conflict))

    def put_in(self, tasks: Sequence[Task], on_conflict: OnConflict | None) -> list[PutOutcome]:
        """Put tasks in the caller's transaction that this thread goes through; return each put's outcome."""

        def put(connection: sa.Connection) -> list[PutOutcome]:
            if self._copied_in(connection, tasks):
                outcomes = [PutOutcome.CREATED] * len(tasks)
            else:
                outcomes = self._put(connection, tasks, on_conflict)
            if tasks:
                self.notifier.put_in(tasks[0].queue, connection)
            return outcomes

        return self.database.transaction(put)

    def _copied_in(self, connection: sa.Connection, tasks: Sequence[Task]) -> bool:
        """Copy new tasks in the transaction of a caller; return False if they must be inserted."""
        if not self._can_copy(tasks):
            return False
        copied = self.put_sql.copy_of(tasks).write_in(connection)
        if copied:
            self.horizon.entered(tasks)
        return copied

    def _put(
        self, connection: sa.Connection, tasks: Sequence[Task], on_conflict: OnConflict | None
    ) -> list[PutOutcome]:
        outcomes: list[PutOutcome] = []
        for task, is_new in zip(tasks, self._insert(connection, tasks), strict=True):
            if is_new:
                outcomes.append(PutOutcome.CREATED)
            elif on_conflict is None:
                outcomes.append(PutOutcome.DUPLICATE)
            else:
                outcomes.append(self._put_over(connection, task, on_conflict))
        self.horizon.entered(tasks)
        return outcomes

    def _insert(self, connection: sa.Connection, tasks: Sequence[Task]) -> list[bool]:
        """Insert the tasks whose ids are free; return for each task whether it was inserted."""
        result = connection.execute(self.put_sql.put, list(map(row_of, tasks)))
        if self.put_sql.has_returning and result.rowcount == len(tasks):
            return [True] * len(tasks)
        return self._added(connection, tasks)

    def _added(self, connection: sa.Connection, tasks: Sequence[Task]) -> list[bool]:
        """Return for each task whether this put created its row, in this or an earlier attempt."""
        remembered: dict[str, str] = {}
        ids = [task.task_id for task in tasks]
        for start in range(0, len(ids), BATCH_ROWS):
            listed = {"of_queue": tasks[0].queue, "of_ids": ids[start : start + BATCH_ROWS]}
            found = connection.execute(self.sql.statement("put_tokens"), listed)
            remembered |= {row.task_id: row.put_token for row in found}
        return [
            outcome_of(task.request_token, remembered.get(task.task_id, "")) is PutOutcome.CREATED
            for task in tasks
        ]

    def _put_over(self, connection: sa.Connection, task: Task, on_conflict: OnConflict) -> PutOutcome:
        """Put a task whose id is taken: replace a task that ended, or update a live one."""
        where = {"of_task_id": task.task_id, "of_queue": task.queue}
        found = connection.execute(self.sql.statement("lock"), where).one_or_none()
        if found is None:  # deleted a moment ago
            return PutOutcome.CREATED if self._insert(connection, [task])[0] else PutOutcome.DUPLICATE
        current = task_of(found)
        earlier = outcome_of(task.request_token, found.put_token)
        if earlier is not None:  # the reply to an earlier attempt was lost
            return earlier
        outcome, version = put_over(current, task, on_conflict)
        if outcome is PutOutcome.DUPLICATE:
            return PutOutcome.DUPLICATE
        new = row_of(version) | {"put_token": remember(task.request_token, outcome, found.put_token)}
        connection.execute(self.put_sql.overwrite, new | where | {"of_request_token": current.request_token})
        self.horizon.entered([version])
        return outcome

    @override
    def get(self, task_id: str) -> Task | None:
        return None if "\0" in task_id else self.find(task_id, self.queue)

    def find(self, task_id: str, queue: str | None) -> Task | None:
        """Return a task by its id and queue; with None for the queue, from any queue."""
        name = "get_anywhere" if queue is None else "get"
        row = self.row(name, {"of_task_id": task_id, "of_queue": queue})
        return None if row is None else task_of(row)

    @override
    def scan(self, queue: str, start_after: str | None = None) -> Iterator[Task]:
        after = start_after or ""
        while True:
            where = {"of_queue": queue, "of_after": after, "page": SCAN_ROWS}
            rows = self.rows("scan", where)
            yield from map(task_of, rows)
            if len(rows) < SCAN_ROWS:
                return
            after = rows[-1].task_id

    @override
    def dead(self, queue: str, start_after: DeadPlace | None = None) -> Iterator[Task]:
        place = start_after
        while True:
            until_us = EVER_US if place is None else microseconds(place.dead_at)
            after = {"until_us": until_us, "of_before_id": "" if place is None else place.task_id}
            where = {"of_queue": queue, "page": DEAD_ROWS, **after}
            rows = self.rows("dead", where)
            tasks = list(map(task_of, rows))
            yield from tasks
            if len(tasks) < DEAD_ROWS:
                return
            place = place_of(tasks[-1])

    @override
    def count_dead(self, queue: str) -> DeadLetters:
        where = {"of_queue": queue, "until_us": EVER_US, "page": COUNTED_DEAD + 1}
        ((count, oldest_us),) = map(tuple, self.rows("count_dead", where))
        oldest_at = None if oldest_us is None else oldest_us / 1e6
        return DeadLetters(min(count, COUNTED_DEAD), more=count > COUNTED_DEAD, oldest_at=oldest_at)

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        if OPEN.get():
            self.database.refuse_held(task.queue, task.task_id)
        if guard.request_token is None and guard.lease_token is not None and task.status in ENDS:
            statement = self.settle_sql.finish
            parameters: Any = (task.task_id, task.queue, guard.lease_token, *end_values(task))
        else:
            statement = self.settle_sql.prepared_replacements[_guard_key(guard)]
            parameters = _replacement(task, guard)
        if self.database.execute(statement, parameters).changed != 1:
            task = self.replace_followed(task, guard, self.find(task.task_id, task.queue))
        if self.horizon.watches:
            self.horizon.entered([task])
        return task

    def replace_in(self, task: Task, guard: Guard, connection: sa.Connection) -> bool:
        """Store the new version of a task in a transaction; return whether the guard held."""
        statement = self.settle_sql.replacements[_guard_key(guard)]
        self.horizon.entered([task])
        return connection.execute(statement, _replacement(task, guard)).rowcount == 1

    @override
    def replace_many(self, changes: Sequence[tuple[Task, Guard]]) -> list[Task | None]:
        if not changes:
            return []
        if self.database.dialect == "postgresql":
            parameters = {"changes": json.dumps([_given(task, guard) for task, guard in changes])}
            made = {tuple(row) for row in self.database.rows(self.settle_sql.replace_many, parameters)}
        else:
            made = self.database.transaction(partial(self._replace_locked, changes=changes))
        self.horizon.entered([task for task, _guard in changes])
        return [
            task if _version(task) in made else self._replaced_after_all(task, guard)
            for task, guard in changes
        ]

    def _replaced_after_all(self, task: Task, guard: Guard) -> Task | None:
        """Store the new version of a task that the batch left out, if perhaps only for its successor."""
        is_holders = guard.lease_token is not None and guard.request_token is None
        return self._replaced_or_none(task, guard) if guard.is_followed or is_holders else None

    @override
    def succeed(self, current: Task, ended: Task, entered: Task) -> None:
        where = _this(entered)

        def succeed(connection: sa.Connection) -> None:
            found = connection.execute(self.sql.statement("lock"), where).one_or_none()
            if found is None or not Guard.exact(current).admits(task_of(found)):
                raise Conflict(None if found is None else task_of(found))
            # Two versions, so that a history has an event for each.
            over = changed(ended, request_token=new_token())
            self.store_locked([over], connection)
            new = row_of(entered) | {"put_token": found.put_token}
            connection.execute(self.put_sql.overwrite, new | where | {"of_request_token": over.request_token})

        self.database.transaction(succeed)
        self.horizon.entered([entered])

    def _replace_locked(self, connection: sa.Connection, changes: Sequence[tuple[Task, Guard]]) -> set[Any]:
        """Store new versions in a transaction; return the ids and tokens of the stored ones."""
        ids = sorted({task.task_id for task, _guard in changes})
        listed = {"of_queue": changes[0][0].queue, "of_ids": ids}
        locked = connection.execute(self.sql.statement("lock_listed"), listed)
        found = {row.task_id: row for row in locked}
        admitted = [
            task
            for task, guard in changes
            if (row := found.get(task.task_id)) is not None and _admits(guard, task, row)
        ]
        self.store_locked(admitted, connection)
        return {_version(task) for task in admitted}

    def store_locked(self, tasks: Sequence[Task], connection: sa.Connection) -> None:
        """Store new versions of tasks whose rows the transaction has locked."""
        if tasks:
            rows = [new_version(task) | _this(task) for task in tasks]
            connection.execute(self.settle_sql.replace_locked, rows)

    @override
    def settle_many(self, settled: Sequence[tuple[Task, str]]) -> list[Task | FreshqError]:
        if len(settled) == 1:
            return super().settle_many(settled)
        ended: list[tuple[Task, str]] = []
        others: list[tuple[Task, str]] = []
        for each in settled:
            ends = each[0].status in ENDS and self.settle_sql.has_returning
            (ended if ends else others).append(each)
        answers = self._settled_by(self._end_many, ended) | self._settled_by(self._replace_many, others)
        return [answers[task.task_id] for task, _lease_token in settled]

    def _settled_by(
        self,
        store: Callable[[Sequence[tuple[Task, str]]], Mapping[str, Task]],
        settled: Sequence[tuple[Task, str]],
    ) -> dict[str, Task | FreshqError]:
        """Settle claims in one call; return the answers by task id."""
        try:
            stored = store(settled) if settled else {}
        except StoreError as error:
            return {task.task_id: error for task, _lease_token in settled}
        # Retry the settlements that were not stored: their lease is lost, another transaction had locked the
        # row, or an earlier attempt was committed while its reply was lost.
        return {
            task.task_id: stored.get(task.task_id) or self._settled(task, lease_token)
            for task, lease_token in settled
        }

    def _end_many(self, ended: Sequence[tuple[Task, str]]) -> Mapping[str, Task]:
        """End tasks in one statement; return by id the tasks that were held."""
        given = given_ends(ended, self.database.dialect)
        held = {row[0] for row in self.database.execute(self.settle_sql.finish_many, given).rows}
        return {task.task_id: task for task, _lease_token in ended if task.task_id in held}

    def _replace_many(self, settled: Sequence[tuple[Task, str]]) -> Mapping[str, Task]:
        """Store new versions of tasks in one call; return by id the tasks that were held and not locked."""
        changes = [(task, Guard(TaskStatus.TAKEN, lease_token=lease_token)) for task, lease_token in settled]
        return {task.task_id: task for task in self.replace_many(changes) if task is not None}

    @override
    def delete(self, task: Task, guard: Guard) -> None:
        if OPEN.get():
            self.database.refuse_held(task.queue, task.task_id)
        statement = self.settle_sql.deletions[_guard_key(guard)]
        if self.database.changed(statement, _this(task) | guard_parameters(guard)) == 1:
            return
        current = self.find(task.task_id, task.queue)
        if current is not None:
            raise Conflict(current)


def _guard_key(guard: Guard) -> tuple[bool, bool]:
    """Return the guard's key in `GUARDS`."""
    return guard.lease_token is not None, guard.request_token is not None


def _this(task: Task) -> dict[str, str]:
    return {"of_task_id": task.task_id, "of_queue": task.queue}


def _version(task: Task) -> tuple[str, str]:
    return task.task_id, task.request_token


def _given(task: Task, guard: Guard) -> dict[str, Any]:
    """Return a change in the form that `SettleStatements.replace_many` takes."""
    named = dict.fromkeys(GIVEN_GUARD) | guard_parameters(guard)
    return new_version(task) | {"task_id": task.task_id, "queue": task.queue} | named


def given_ends(ended: Sequence[tuple[Task, str]], dialect: str) -> dict[str, Any]:
    """Return the parameters of `SettleStatements.finish_many`.

    Args:
        ended: The next versions of tasks, with their lease tokens.
        dialect: Name of the database's dialect, PostgreSQL or SQLite.
    """
    rows = [(task.task_id, task.queue, lease_token, *end_values(task)[:-1]) for task, lease_token in ended]
    if dialect == "postgresql":
        return {
            f"many_{name}": [*column] for name, column in zip(GIVEN_END, zip(*rows, strict=True), strict=True)
        }
    return {"many_ends": json.dumps(rows)}


def _given_type(tasks: sa.Table, name: str) -> sa.types.TypeEngine[Any]:
    numbers = (sa.Integer, sa.SmallInteger)
    is_number = name in tasks.c and isinstance(tasks.c[name].type, numbers)
    return sa.BigInteger() if is_number else sa.Text()


def _admits(guard: Guard, task: Task, row: sa.Row[Any]) -> bool:
    """Return whether a guard holds for a row, or the row already is the new version."""
    version = (row.request_token, row.lease_token)
    return version == (task.request_token, task.lease_token) or (
        row.status == guard.status
        and guard.lease_token in (None, row.lease_token)
        and guard.request_token in (None, row.request_token)
    )


def _replacement(task: Task, guard: Guard) -> dict[str, Any]:
    return new_version(task) | _this(task) | guard_parameters(guard)
