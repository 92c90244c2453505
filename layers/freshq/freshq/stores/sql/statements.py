"""Every statement of the store, each written once and built once.

What differs between the databases is here and nowhere else: SQLite and PostgreSQL return what an
UPDATE changed; PostgreSQL and MariaDB skip rows that others have locked, which on SQLite nobody can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from freshq.stores.sql.quick import DIALECTS, Prepared
from freshq.stores.sql.rows import COLUMNS, END_COLUMNS

if TYPE_CHECKING:
    from freshq.stores.sql.schema import Schema

PENDING: Final[sa.ColumnElement[str]] = sa.literal_column("'PENDING'")
TAKEN: Final[sa.ColumnElement[str]] = sa.literal_column("'TAKEN'")


class Statements:
    """The statements on the tables of one store, in the dialect of one database."""

    def __init__(self, schema: Schema, dialect: sa.Dialect) -> None:
        """Build them.

        Args:
            schema: The tables.
            dialect: That of SQLite, PostgreSQL, MySQL or MariaDB.
        """
        self.schema = schema
        self.dialect = dialect.name
        self.tasks = schema.tasks
        self.columns = [self._column(name) for name in COLUMNS]
        self._mine = self.tasks.c.queue == sa.bindparam("of_queue")
        self._build_puts()
        self._build_reads()
        self._build_claims()
        self._build_upkeep()
        self._build_records()
        self._prepare(dialect)

    def _prepare(self, dialect: sa.Dialect) -> None:
        """Compile what every task needs, for the databases that return what an UPDATE changed."""
        self.quick_take: dict[bool, Prepared] = {}
        self.quick_replacements: dict[tuple[bool, bool], Prepared] = {}
        self.quick_taken: Prepared | None = None
        self.quick_put: Prepared | None = None
        self.quick_finish: Prepared | None = None
        self.quick_finish_many: Prepared | None = None
        if self.dialect in DIALECTS:
            self.quick_take = {
                end: Prepared(statement, dialect) for end, statement in self.take_of_only_line.items()
            }
            self.quick_replacements = {
                guard: Prepared(statement, dialect) for guard, statement in self._replacements.items()
            }
            self.quick_taken = Prepared(self.taken, dialect)
            self.quick_put = Prepared(self.put, dialect)
            self.quick_finish = Prepared(self.finish, dialect)
            self.quick_finish_many = Prepared(self.finish_many, dialect)

    def _column(self, name: str) -> sa.ColumnElement[Any]:
        column = self.tasks.c[name]
        if name == "payload" and self.dialect == "sqlite":
            # SQLite keeps any bytes as a text; what is no UTF-8 must not break the whole result.
            return sa.cast(column, sa.LargeBinary).label("payload")
        return column

    def _build_puts(self) -> None:
        insert = self.insert_or_ignore(self.tasks)
        values: dict[str, Any] = {column.name: sa.bindparam(column.name) for column in self.tasks.c}
        # Where it says that all rows are in, they need not be looked for.
        self.put = insert.values(values).execution_options(preserve_rowcount=True)
        self.put_tokens = sa.select(self.tasks.c.task_id, self.tasks.c.put_token).where(
            self._mine, self.tasks.c.task_id.in_(sa.bindparam("ids", expanding=True))
        )
        self.row = (
            sa.select(*self.columns, self.tasks.c.put_token)
            .where(self.tasks.c.task_id == sa.bindparam("of_task_id"), self._mine)
            .with_for_update()
        )
        self.replace_row = (
            sa.update(self.tasks)
            .where(
                self.tasks.c.task_id == sa.bindparam("of_task_id"),
                self._mine,
                self.tasks.c.request_token == sa.bindparam("of_request_token"),
            )
            .values(
                {
                    column.name: sa.bindparam(column.name)
                    for column in self.tasks.c
                    if column.name not in ("task_id", "queue")
                }
            )
        )

    def insert_or_ignore(self, table: sa.Table) -> Any:  # noqa: ANN401 - the dialect's own class
        """Return an INSERT that leaves a row alone whose key is taken, and hides no other error."""
        if self.dialect == "postgresql":
            return postgresql.insert(table).on_conflict_do_nothing()
        if self.dialect == "sqlite":
            return sqlite.insert(table).on_conflict_do_nothing()
        key = next(iter(table.primary_key))
        # INSERT IGNORE would also cut what is too long.
        return mysql.insert(table).on_duplicate_key_update({key.name: key})

    def _build_reads(self) -> None:
        tasks = self.tasks
        by_id = sa.select(*self.columns).where(tasks.c.task_id == sa.bindparam("of_task_id"))
        self.get = by_id.where(self._mine)
        self.get_anywhere = by_id.order_by(tasks.c.queue).limit(1)
        self.scan = (
            sa.select(*self.columns)
            .where(self._mine, tasks.c.task_id > sa.bindparam("after"))
            .order_by(tasks.c.task_id)
            .limit(sa.bindparam("page"))
        )
        ready = (self._mine, tasks.c.line.is_not(None))
        first = sa.select(sa.func.min(tasks.c.line).label("line")).where(*ready)
        lines = first.cte("known_lines", recursive=True)
        following = (
            sa.select(sa.func.min(tasks.c.line))
            .where(self._mine, tasks.c.line > lines.c.line)
            .scalar_subquery()
            .correlate(lines)
        )
        lines = lines.union_all(sa.select(following).where(lines.c.line.is_not(None)))
        self.lines = sa.select(lines.c.line).where(lines.c.line.is_not(None))

    def _of_line(self) -> tuple[sa.ColumnElement[bool], ...]:
        tasks = self.tasks
        return (
            self._mine,
            tasks.c.line == sa.bindparam("of_line"),
            tasks.c.created_us > sa.bindparam("created_after_us"),
        )

    def _beyond(self, newest_first: bool) -> tuple[sa.ColumnElement[bool], ...]:  # noqa: FBT001 - a key
        """Return the condition that a candidate comes after a place in its line."""
        created, task_id = self.tasks.c.created_us, self.tasks.c.task_id
        place: sa.BindParameter[int] = sa.bindparam("beyond_us")
        place_id: sa.BindParameter[str] = sa.bindparam("beyond_id")
        if newest_first:
            return created <= place, sa.or_(created < place, task_id < place_id)
        return created >= place, sa.or_(created > place, task_id > place_id)

    def _build_claims(self) -> None:
        tasks = self.tasks
        of_line = self._of_line()
        live = (*of_line, tasks.c.deadline_us > sa.bindparam("deadline_after_us"))
        limit: sa.BindParameter[int] = sa.bindparam("at_most")
        newest = (tasks.c.created_us.desc(), tasks.c.task_id.desc())
        oldest = (tasks.c.created_us, tasks.c.task_id)
        # The candidates of one line, best first; each page goes on where the one before it ended. A page
        # that is claimed from is locked until the end of the transaction.
        self.look = {
            newest_first: sa.select(*self.columns)
            .where(*live, *self._beyond(newest_first))
            .order_by(*(newest if newest_first else oldest))
            .limit(limit)
            for newest_first in (True, False)
        }
        self.page = {end: look.with_for_update(skip_locked=True) for end, look in self.look.items()}
        self.oldest_of_line = sa.select(sa.func.min(tasks.c.created_us)).where(*of_line)
        taken = {
            "status": TAKEN,
            "line": sa.null(),
            "updated_us": sa.bindparam("now_us"),
            "attempts": tasks.c.attempts + 1,
            "lease_token": sa.bindparam("token"),
            "request_token": sa.bindparam("token"),
            "lease_until_us": sa.bindparam("lease_until_us"),
            "due_us": sa.bindparam("lease_until_us"),
            "expires": sa.bindparam("new_expires"),
        }
        self.take = (
            sa.update(tasks)
            .where(
                self._mine,
                tasks.c.task_id.in_(sa.bindparam("ids", expanding=True)),
                tasks.c.line.is_not(None),
            )
            .values(taken)
        )
        self.taken = sa.select(*self.columns).where(
            self._mine,
            tasks.c.due_us == sa.bindparam("lease_until_us"),
            tasks.c.lease_token == sa.bindparam("token"),
        )
        if self.dialect in DIALECTS:
            self.take_of_only_line = {
                newest_first: self._take_of_only_line(live, newest if newest_first else oldest, taken)
                for newest_first in (True, False)
            }

    def _take_of_only_line(self, live: Any, order: Any, taken: dict[str, Any]) -> sa.Update:  # noqa: ANN401
        """Return the UPDATE that claims the best of a line, if no other line has anything."""
        tasks = self.tasks
        others = [
            sa.exists(sa.select(sa.literal_column("1")).select_from(tasks).where(self._mine, other))
            for other in (
                tasks.c.line > sa.bindparam("of_line"),
                tasks.c.line < sa.bindparam("of_line"),
            )
        ]
        best = (
            sa.select(tasks.c.task_id)
            .where(*live, *(~other for other in others))
            .order_by(*order)
            .limit(sa.bindparam("at_most"))
        )
        if self.dialect == "postgresql":
            chosen = best.with_for_update(skip_locked=True).cte("chosen")
            statement = sa.update(tasks).where(tasks.c.task_id == chosen.c.task_id, self._mine)
        else:
            statement = sa.update(tasks).where(self._mine, tasks.c.task_id.in_(best))
        return statement.values(taken).returning(*self.columns)

    def replace(self, *, by_lease: bool, by_version: bool) -> sa.Update:
        """Return the UPDATE that stores a new version of a task under a guard."""
        return self._replacements[by_lease, by_version]

    def _build_upkeep(self) -> None:
        tasks = self.tasks
        this = (tasks.c.task_id == sa.bindparam("of_task_id"), self._mine)
        status = tasks.c.status == sa.bindparam("of_status")
        by_lease = tasks.c.lease_token == sa.bindparam("of_lease_token")
        by_version = tasks.c.request_token == sa.bindparam("of_request_token")
        fixed = ("task_id", "queue", "task_group", "payload", "put_token")
        values: dict[str, sa.BindParameter[Any]] = {
            column.name: sa.bindparam(column.name) for column in tasks.c if column.name not in fixed
        }
        self._replacements = {
            (lease, version): sa.update(tasks)
            .where(*this, status, *([by_lease] if lease else []), *([by_version] if version else []))
            .values(values)
            for lease in (True, False)
            for version in (True, False)
        }
        self.deletions = {
            (lease, version): sa.delete(tasks).where(
                *this, status, *([by_lease] if lease else []), *([by_version] if version else [])
            )
            for lease in (True, False)
            for version in (True, False)
        }
        self._build_ends(this)
        self.due = (
            sa.select(*self.columns, tasks.c.line)
            .where(self._mine, tasks.c.due_us <= sa.bindparam("now_us"))
            .order_by(tasks.c.due_us)
            .limit(sa.bindparam("page"))
        )
        # Claimable tasks are due at their deadline, where there is nothing to wait for.
        self.next_due = (
            sa.select(tasks.c.due_us)
            .where(
                self._mine,
                tasks.c.due_us > sa.bindparam("now_us"),
                tasks.c.line.is_(None),
                tasks.c.status.in_((PENDING, TAKEN)),
            )
            .order_by(tasks.c.due_us)
            .limit(1)
        )
        ids = tasks.c.task_id.in_(sa.bindparam("ids", expanding=True))
        # Still claimable by its state, but past its deadline: out of the index of claimable tasks.
        self.leave_line = (
            sa.update(tasks)
            .where(self._mine, ids, tasks.c.line.is_not(None), tasks.c.deadline_us <= sa.bindparam("now_us"))
            .values(line=sa.null(), due_us=tasks.c.expires * 1_000_000)
        )
        self.forget = sa.delete(tasks).where(
            self._mine,
            ids,
            tasks.c.due_us <= sa.bindparam("now_us"),
            tasks.c.status != TAKEN,
            tasks.c.line.is_(None),
            sa.or_(tasks.c.status != PENDING, tasks.c.not_before_us.is_(None)),
        )
        self.purge_page = sa.select(tasks.c.task_id).where(self._mine).limit(sa.bindparam("page"))
        self.purge = sa.delete(tasks).where(self._mine, ids)
        self.count_of_line = sa.select(sa.func.count()).select_from(
            sa.select(sa.literal_column("1").label("one"))
            .where(*self._of_line())
            .limit(sa.bindparam("at_most"))
            .subquery()
        )
        ends = sa.select(sa.func.min(tasks.c.created_us), sa.func.max(tasks.c.created_us))
        self.ends_of_line = ends.where(*self._of_line())
        self.page_of_agenda = (
            sa.select(tasks.c.status, tasks.c.not_before_us)
            .where(self._mine)
            .order_by(tasks.c.due_us)
            .limit(sa.bindparam("page"))
        )

    def _build_ends(self, this: tuple[sa.ColumnElement[bool], ...]) -> None:
        """Build what ends a task that is held: nothing but the lease can have changed since its claim."""
        tasks = self.tasks
        held = (tasks.c.status == TAKEN, tasks.c.lease_token == sa.bindparam("of_lease_token"))
        end: dict[str, Any] = {name: sa.bindparam(name) for name in END_COLUMNS}
        end |= {"lease_token": sa.null(), "lease_until_us": sa.null(), "line": sa.null()}
        self.finish = sa.update(tasks).where(*this, *held).values(end)
        self.finish_many = sa.update(tasks).where(self._mine, self._among("many_ids"), *held).values(end)
        if self.dialect in DIALECTS:
            self.finish_many = self.finish_many.returning(tasks.c.task_id)

    def _among(self, name: str) -> sa.ColumnElement[bool]:
        """Return the condition that a task is one of several, given as the one parameter `name`."""
        task_id = self.tasks.c.task_id
        if self.dialect == "postgresql":
            return task_id == sa.any_(sa.bindparam(name, type_=postgresql.ARRAY(sa.Text)))
        if self.dialect == "sqlite":
            values = sa.func.json_each(sa.bindparam(name)).table_valued("value")
            return task_id.in_(sa.select(values.c.value))
        return task_id.in_(sa.bindparam(name, expanding=True))

    def _build_records(self) -> None:
        records, counts = self.schema.records, self.schema.counts
        this = (records.c.queue == sa.bindparam("of_queue"), records.c.name == sa.bindparam("of_name"))
        self.read_record = sa.select(records.c.record, records.c.version).where(*this)
        self.add_record = self.insert_or_ignore(records)
        self.change_record = (
            sa.update(records)
            .where(*this, records.c.version == sa.bindparam("of_version"))
            .values(record=sa.bindparam("record"), version=sa.bindparam("version"))
        )
        self.delete_record = sa.delete(records).where(*this)
        self.read_counts = sa.select(counts.c.field, counts.c.number).where(
            counts.c.queue == sa.bindparam("of_queue"), counts.c.name == sa.bindparam("of_name")
        )
        self.add_counts = self._adding(counts)
        self.drop_counts = sa.delete(counts).where(
            counts.c.queue == sa.bindparam("of_queue"), counts.c.expires < sa.bindparam("before")
        )

    def _adding(self, counts: sa.Table) -> Any:  # noqa: ANN401 - the dialect's own class
        if self.dialect in ("postgresql", "sqlite"):
            insert: Any = (postgresql if self.dialect == "postgresql" else sqlite).insert(counts)
            total = counts.c.number + insert.excluded.number
            return insert.on_conflict_do_update(
                index_elements=list(counts.primary_key),
                set_={"number": total, "expires": insert.excluded.expires},
            )
        addition = mysql.insert(counts)
        return addition.on_duplicate_key_update(
            number=counts.c.number + addition.inserted.number, expires=addition.inserted.expires
        )
