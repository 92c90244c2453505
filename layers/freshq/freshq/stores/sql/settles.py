"""Changes of one task, each under a guard, and the ends of several tasks at once."""

from __future__ import annotations

import json
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.task import TaskStatus
from freshq.stores.base import ConflictError, Guard
from freshq.stores.sql.reads import Reads
from freshq.stores.sql.rows import END_COLUMNS, columns_of, end
from freshq.stores.sql.statements import TAKEN, Conditions, Statements, guard_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.model.task import Task
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.prepared import PreparedStatement
    from freshq.stores.sql.schema import Schema

ENDS: Final = (TaskStatus.SUCCESS, TaskStatus.FAILURE)
# Set by the put; no change touches them.
FIXED_COLUMNS: Final = (
    *("task_id", "queue", "task_group", "payload", "put_token", "put_us", "first_due_us", "kind"),
)
# The guard of a change, among the columns of its new version.
GIVEN_GUARD: Final = ("of_status", "of_lease_token", "of_request_token")
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
        """Store the new version of a task, for each kind of guard."""
        values: dict[str, Any] = {name: sa.bindparam(name) for name in self.replaced_columns}
        return {kind: sa.update(self.tasks).where(*self._guarded(*kind)).values(values) for kind in GUARDS}

    @cached_property
    def _given(self) -> sa.Subquery:
        """The new versions of several tasks and their guards, given as the JSON parameter `changes`."""
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - only the dialect in use is loaded

        names = [*self.replaced_columns, "task_id", "queue", *GIVEN_GUARD]
        numbers = (sa.Integer, sa.SmallInteger)
        types = [
            sa.BigInteger
            if name in self.tasks.c and isinstance(self.tasks.c[name].type, numbers)
            else sa.Text
            for name in names
        ]
        columns = [sa.column(name, kind) for name, kind in zip(names, types, strict=True)]
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
        return {kind: self.prepared(statement) for kind, statement in self.replacements.items()}

    @cached_property
    def deletions(self) -> dict[tuple[bool, bool], sa.Delete]:
        """Delete a task, for each kind of guard."""
        return {kind: sa.delete(self.tasks).where(*self._guarded(*kind)) for kind in GUARDS}

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
    def finish_listed(self) -> sa.Update:
        """End several held tasks, where an UPDATE returns nothing."""
        return sa.update(self.tasks).where(self.in_queue_by_id, self.listed, *self._held).values(self._end)

    @cached_property
    def finish_many(self) -> PreparedStatement:
        """End several held tasks, given as the one parameter `many_ids`; return their ids."""
        task_id = self.tasks.c.task_id
        if self.dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - only the dialect in use is loaded

            among = task_id == sa.any_(sa.bindparam("many_ids", type_=postgresql.ARRAY(sa.Text)))
        else:
            values = sa.func.json_each(sa.bindparam("many_ids")).table_valued("value")
            among = task_id.in_(sa.select(values.c.value))
        update = sa.update(self.tasks).where(self.in_queue_by_id, among, *self._held).values(self._end)
        return self.prepared(update.returning(task_id))


class Settles(Reads):
    """Changes tasks under guards."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.settle_sql = SettleStatements(schema, database.engine.dialect)

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        if not self._replaced(task, guard):
            current = self.find(task.task_id, task.queue)
            # An earlier try may have been committed, and its reply lost.
            if current is None or current.request_token != task.request_token:
                raise ConflictError(current)
        return task

    def _replaced(self, task: Task, guard: Guard) -> bool:
        if task.status in ENDS and guard.lease_token is not None and guard.request_token is None:
            parameters = end(task) | _this(task) | {"of_lease_token": guard.lease_token}
            return self.database.execute(self.settle_sql.finish, parameters).changed == 1
        statement = self.settle_sql.prepared_replacements[_kind(guard)]
        return self.database.execute(statement, _replacement(task, guard)).changed == 1

    def replace_in(self, task: Task, guard: Guard, connection: sa.Connection) -> bool:
        """Store the new version of a task in a transaction; return whether the guard held."""
        statement = self.settle_sql.replacements[_kind(guard)]
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
            rows = [columns_of(task) | _this(task) for task in tasks]
            connection.execute(self.settle_sql.replace_locked, rows)

    @override
    def end_many(self, tasks: Sequence[Task], lease_token: str) -> set[str]:
        ids = [task.task_id for task in tasks]
        parameters = end(tasks[0]) | {"of_queue": tasks[0].queue, "of_lease_token": lease_token}
        if self.settle_sql.has_returning:
            many_ids = json.dumps(ids) if self.database.dialect == "sqlite" else ids
            result = self.database.execute(self.settle_sql.finish_many, parameters | {"many_ids": many_ids})
            return {row[0] for row in result.rows}
        changed = self.database.changed(self.settle_sql.finish_listed, parameters | {"ids": sorted(ids)})
        # If some were lost, which is rare, the caller finds out one by one.
        return set(ids) if changed == len(ids) else set()

    @override
    def delete(self, task: Task, guard: Guard) -> None:
        statement = self.settle_sql.deletions[_kind(guard)]
        if self.database.changed(statement, _this(task) | guard_parameters(guard)) == 1:
            return
        current = self.find(task.task_id, task.queue)
        if current is not None:
            raise ConflictError(current)


def _kind(guard: Guard) -> tuple[bool, bool]:
    """Return the guard's key in `GUARDS`."""
    return guard.lease_token is not None, guard.request_token is not None


def _this(task: Task) -> dict[str, str]:
    return {"of_task_id": task.task_id, "of_queue": task.queue}


def _version(task: Task) -> tuple[str, str]:
    return task.task_id, task.request_token


def _given(task: Task, guard: Guard) -> dict[str, Any]:
    """Return a change as `SettleStatements.replace_many` takes it."""
    named = dict.fromkeys(GIVEN_GUARD) | guard_parameters(guard)
    return columns_of(task) | {"task_id": task.task_id, "queue": task.queue} | named


def _admits(guard: Guard, task: Task, row: sa.Row[Any]) -> bool:
    """Return whether a guard holds for a row, or the row is the new version already."""
    return row.request_token == task.request_token or (
        row.status == guard.status
        and guard.lease_token in (None, row.lease_token)
        and guard.request_token in (None, row.request_token)
    )


def _replacement(task: Task, guard: Guard) -> dict[str, Any]:
    return columns_of(task) | _this(task) | guard_parameters(guard)
