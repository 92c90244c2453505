"""Change one task under a guard, and settle several claims in one call."""

from __future__ import annotations

import json
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.errors import StoreError
from freshq.model.task import TaskStatus
from freshq.stores.base import ConflictError, Guard
from freshq.stores.sql.reads import ReadPart
from freshq.stores.sql.rows import END_COLUMNS, FIXED_COLUMNS, OVER, end, new_version
from freshq.stores.sql.statements import TAKEN, Conditions, Statements, guard_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from freshq.errors import FreshqError
    from freshq.model.task import Task
    from freshq.stores.sql.database import Database, PreparedStatement
    from freshq.stores.sql.schema import Schema

ENDS: Final = (TaskStatus.SUCCESS, TaskStatus.FAILURE)
# The guard of a change, among the columns of its new version.
GIVEN_GUARD: Final = ("of_status", "of_lease_token", "of_request_token")

# What `finish_many` is given of each task: what all of them share is in the statement.
GIVEN_END: Final = (
    *("task_id", "queue", "of_lease_token"),
    *(name for name in END_COLUMNS if name != "agenda"),
)


# Whether a guard names a lease token, and whether it names a version.
GUARDS: Final = [(by_lease, by_version) for by_lease in (True, False) for by_version in (True, False)]


class SettleStatements(Statements):
    """The statements that change one task, or end several."""

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
        values: dict[str, Any] = {name: sa.bindparam(name) for name in self.replaced_columns}
        return {
            guard_key: sa.update(self.tasks).where(*self._guarded(*guard_key)).values(values)
            for guard_key in GUARDS
        }

    @cached_property
    def _given(self) -> sa.Subquery:
        """The new versions of several tasks and their guards, given as the JSON parameter `changes`."""
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - only the dialect in use is loaded

        names = [*self.replaced_columns, "task_id", "queue", *GIVEN_GUARD]
        columns = [sa.column(name, _given_type(self.tasks, name)) for name in names]
        rows = sa.func.json_to_recordset(sa.cast(sa.bindparam("changes", type_=sa.Text), postgresql.JSON))
        given = rows.table_valued(*columns, name="given").render_derived(with_types=True)
        return sa.select(*given.c).subquery("given")

    @property
    def replaced_columns(self) -> list[str]:
        """The columns of a new version."""
        return [column.name for column in self.tasks.c if column.name not in FIXED_COLUMNS]

    @cached_property
    def replace_many(self) -> sa.Update:
        """Store new versions of several tasks, but of none whose row a transaction holds; on PostgreSQL."""
        given, current = self._given, self.tasks.alias("current_tasks")
        admitted = sa.and_(
            current.c.status == given.c.of_status,
            sa.or_(given.c.of_lease_token.is_(None), current.c.lease_token == given.c.of_lease_token),
            sa.or_(given.c.of_request_token.is_(None), current.c.request_token == given.c.of_request_token),
        )
        # An earlier try may have been committed, and its reply lost.
        made_before = current.c.request_token == given.c.request_token
        free = (
            sa.select(given)
            .join(current, sa.and_(current.c.task_id == given.c.task_id, current.c.queue == given.c.queue))
            .where(sa.or_(admitted, made_before))
            .with_for_update(of=current, skip_locked=True)
            .cte("free")
        )
        values = {name: free.c[name] for name in self.replaced_columns}
        # Joined by both columns of the key: with a constant queue, PostgreSQL may read the whole agenda.
        key = (self.tasks.c.task_id == free.c.task_id, self.tasks.c.queue == free.c.queue)
        update = sa.update(self.tasks).where(*key)
        return update.values(values).returning(self.tasks.c.task_id, self.tasks.c.request_token)

    @cached_property
    def lock_listed(self) -> sa.Select[Any]:
        """Lock several tasks, but for those whose row a transaction holds."""
        tasks = self.tasks
        columns = (tasks.c.task_id, tasks.c.status, tasks.c.lease_token, tasks.c.request_token)
        return sa.select(*columns).where(self.in_queue, self.listed).with_for_update(skip_locked=True)

    @cached_property
    def replace_locked(self) -> sa.Update:
        """Store the new version of a task that the transaction has locked."""
        values: dict[str, Any] = {name: sa.bindparam(name) for name in self.replaced_columns}
        return sa.update(self.tasks).where(*self.this_task).values(values)

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
        """The columns that the end of a held task changes: since its claim, only the lease can have."""
        values: dict[str, Any] = {name: sa.bindparam(name) for name in END_COLUMNS}
        return values | {"lease_token": sa.null(), "lease_until_us": sa.null(), "line": sa.null()}

    @cached_property
    def finish(self) -> PreparedStatement:
        """End one held task."""
        return self.prepared(sa.update(self.tasks).where(*self.this_task, *self._held).values(self._end))

    @cached_property
    def finish_many(self) -> PreparedStatement:
        """End several held tasks, each in its own way; return their ids."""
        given = self._given_ends
        ended = {
            name: given.c[name] if name in GIVEN_END else sa.literal(OVER) if name == "agenda" else value
            for name, value in self._end.items()
        }
        held = (
            # By both columns of the key: with a constant queue, PostgreSQL may read the whole agenda.
            *(self.tasks.c.task_id == given.c.task_id, self.tasks.c.queue == given.c.queue),
            *(self.tasks.c.status == TAKEN, self.tasks.c.lease_token == given.c.of_lease_token),
        )
        return self.prepared(sa.update(self.tasks).where(*held).values(ended).returning(self.tasks.c.task_id))

    @cached_property
    def _given_ends(self) -> sa.FromClause:
        """The columns `GIVEN_END` of several tasks: given as arrays, or to SQLite as one of JSON."""
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


class SettlePart(ReadPart):
    """Changes tasks under guards."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.settle_sql = SettleStatements.shared(schema, database.engine.dialect)

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        if guard.request_token is None and guard.lease_token is not None and task.status in ENDS:
            statement, parameters = self.settle_sql.finish, end(task)
            parameters["of_lease_token"] = guard.lease_token
            parameters["of_task_id"] = task.task_id
            parameters["of_queue"] = task.queue
        else:
            statement = self.settle_sql.prepared_replacements[_guard_key(guard)]
            parameters = _replacement(task, guard)
        if self.database.execute(statement, parameters).changed != 1:
            current = self.find(task.task_id, task.queue)
            # An earlier try may have been committed, and its reply lost.
            if current is None or current.request_token != task.request_token:
                raise ConflictError(current)
        return task

    def replace_in(self, task: Task, guard: Guard, connection: sa.Connection) -> bool:
        """Store the new version of a task in a transaction; return whether the guard held."""
        statement = self.settle_sql.replacements[_guard_key(guard)]
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
        return [task if _version(task) in made else None for task, _guard in changes]

    def _replace_locked(self, connection: sa.Connection, changes: Sequence[tuple[Task, Guard]]) -> set[Any]:
        """Store new versions in a transaction; return the ids and tokens of those that were stored."""
        ids = sorted({task.task_id for task, _guard in changes})
        listed = {"of_queue": changes[0][0].queue, "ids": ids}
        found = {row.task_id: row for row in connection.execute(self.settle_sql.lock_listed, listed)}
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
        self, store: Callable[[Sequence[tuple[Task, str]]], set[str]], settled: Sequence[tuple[Task, str]]
    ) -> dict[str, Task | FreshqError]:
        """Settle claims together; return the answers by task id."""
        try:
            stored = store(settled) if settled else set()
        except StoreError as error:
            return {task.task_id: error for task, _lease_token in settled}
        # Check settlements that were not stored once more: the lease is lost, another transaction had the
        # row, or an earlier try was committed and its reply lost.
        return {
            task.task_id: task if task.task_id in stored else self._settled(task, lease_token)
            for task, lease_token in settled
        }

    def _end_many(self, ended: Sequence[tuple[Task, str]]) -> set[str]:
        """End tasks by one statement; return the ids of those that were held."""
        rows = [_given_end(task, lease_token) for task, lease_token in ended]
        if self.database.dialect == "postgresql":
            cells: dict[str, Any] = {f"many_{name}": [row[name] for row in rows] for name in GIVEN_END}
        else:
            cells = {"many_ends": json.dumps([[row[name] for name in GIVEN_END] for row in rows])}
        return {row[0] for row in self.database.execute(self.settle_sql.finish_many, cells).rows}

    def _replace_many(self, settled: Sequence[tuple[Task, str]]) -> set[str]:
        """Store new versions of tasks together; return the ids of those that were held, and not locked."""
        changes = [(task, Guard(TaskStatus.TAKEN, lease_token=lease_token)) for task, lease_token in settled]
        return {task.task_id for task in self.replace_many(changes) if task is not None}

    @override
    def delete(self, task: Task, guard: Guard) -> None:
        statement = self.settle_sql.deletions[_guard_key(guard)]
        if self.database.changed(statement, _this(task) | guard_parameters(guard)) == 1:
            return
        current = self.find(task.task_id, task.queue)
        if current is not None:
            raise ConflictError(current)


def _guard_key(guard: Guard) -> tuple[bool, bool]:
    """Return the guard's key in `GUARDS`."""
    return guard.lease_token is not None, guard.request_token is not None


def _this(task: Task) -> dict[str, str]:
    return {"of_task_id": task.task_id, "of_queue": task.queue}


def _version(task: Task) -> tuple[str, str]:
    return task.task_id, task.request_token


def _given(task: Task, guard: Guard) -> dict[str, Any]:
    """Return a change as `SettleStatements.replace_many` takes it."""
    named = dict.fromkeys(GIVEN_GUARD) | guard_parameters(guard)
    return new_version(task) | {"task_id": task.task_id, "queue": task.queue} | named


def _given_end(task: Task, lease_token: str) -> dict[str, Any]:
    """Return the end of a task as `SettleStatements.finish_many` takes it."""
    return end(task) | {"task_id": task.task_id, "queue": task.queue, "of_lease_token": lease_token}


def _given_type(tasks: sa.Table, name: str) -> sa.types.TypeEngine[Any]:
    numbers = (sa.Integer, sa.SmallInteger)
    is_number = name in tasks.c and isinstance(tasks.c[name].type, numbers)
    return sa.BigInteger() if is_number else sa.Text()


def _admits(guard: Guard, task: Task, row: sa.Row[Any]) -> bool:
    """Return whether a guard holds for a row, or the row is the new version already."""
    return row.request_token == task.request_token or (
        row.status == guard.status
        and guard.lease_token in (None, row.lease_token)
        and guard.request_token in (None, row.request_token)
    )


def _replacement(task: Task, guard: Guard) -> dict[str, Any]:
    return new_version(task) | _this(task) | guard_parameters(guard)
