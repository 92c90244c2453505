"""Store resources and callers in a SQL database."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.matching.history import caller_events, numbered, queues_of, resource_events
from freshq.matching.places import MAX_NAME_BYTES, MAX_RESOURCE_ID_BYTES, places_of
from freshq.matching.resource import (
    Caller,
    CallerStatus,
    Entry,
    Resource,
    ResourceStatus,
    parsed_ranks,
)
from freshq.matching.stores.base import Changed, MatchStore, StoredValues
from freshq.model.lifecycle import new_token
from freshq.model.validation import json_text
from freshq.stores.sql.database import Database
from freshq.stores.sql.history import SqlHistory
from freshq.stores.sql.migrations import alone, check_owned, create_missing, lock_changes
from freshq.stores.sql.rows import microseconds
from freshq.stores.sql.schema import (
    STATUS_CHARS,
    TOKEN_BYTES,
    checked_table,
    history_table,
    key_text,
    long_text,
    required,
    schema,
    table_options,
)
from freshq.stores.sql.statements import insert_or_ignore
from freshq.stores.sql.url import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from freshq.matching.history import Event
    from freshq.matching.places import Place
    from freshq.matching.stores.base import Change, Span

DIGEST_CHARS: Final = 64
# A group, with both strings quoted; the time and an id; and their separator.
SORT_KEY_BYTES: Final = 800
LINE_KEY_BYTES: Final = 16 + 1 + MAX_RESOURCE_ID_BYTES
# Maximum number of lives whose events one call of `prune` deletes.
PRUNE_LIVES: Final = 1_000
# The name of the only row of options.
OPTIONS: Final = "options"
# Rows of resources to read at a time.
PAGE_ROWS: Final = 1000


@dataclass(frozen=True)
class MatchTables:
    """The tables of one store.

    Attributes:
        metadata: All of them.
        resources: One row for each resource.
        entries: One row for each entry of a queued resource. `place` is the hash of its partition.
        names: One row for each attribute name.
        combinations: One row for each full combination of values, by its hash.
        callers: One row for each caller. `line_key` is set only while the caller waits.
        asks: One row for each question of a waiting caller. `place` is the hash of the question.
        options: One row with the stored options, as JSON.
    """

    metadata: sa.MetaData
    resources: sa.Table
    entries: sa.Table
    names: sa.Table
    combinations: sa.Table
    callers: sa.Table
    asks: sa.Table
    options: sa.Table


@lru_cache(maxsize=16)
def tables_of(table: str, dialect: str) -> MatchTables:
    """Return the tables of a store, which all stores on the same tables share.

    Args:
        table: Name of the table of resources; the names of the other tables begin with it.
        dialect: Name of the database's dialect.

    Raises:
        ValueError: If the name is not valid.
    """
    checked_table(table)
    metadata, options = sa.MetaData(), table_options(dialect)

    def made(suffix: str, *parts: sa.Column[Any] | sa.Index) -> sa.Table:
        return sa.Table(table + suffix, metadata, *parts, **options)

    combination = (
        sa.Column("digest", sa.String(DIGEST_CHARS), primary_key=True),
        required("combination", long_text()),
    )
    return MatchTables(
        metadata,
        made("", *_resource_columns()),
        made("_entries", *_entry_columns()),
        made("_names", sa.Column("name", key_text(MAX_NAME_BYTES), primary_key=True)),
        made("_combinations", *combination),
        made("_callers", *_caller_columns(), sa.Index(f"{table}_line", "line_key")),
        made(
            "_asks",
            sa.Column("place", sa.String(DIGEST_CHARS), primary_key=True),
            sa.Column("line_key", key_text(LINE_KEY_BYTES), primary_key=True),
        ),
        made(
            "_options",
            sa.Column("name", key_text(MAX_NAME_BYTES), primary_key=True),
            required("record", long_text()),
            required("version", sa.String(TOKEN_BYTES)),
        ),
    )


def _resource_columns() -> Iterator[sa.Column[Any]]:
    yield sa.Column("resource_id", key_text(MAX_RESOURCE_ID_BYTES), primary_key=True)
    yield required("attributes", long_text())
    yield required("status", sa.String(STATUS_CHARS))
    yield required("token", sa.String(TOKEN_BYTES))
    yield sa.Column("since_us", sa.BigInteger)
    yield sa.Column("lease_until_us", sa.BigInteger)
    yield sa.Column("caller_id", key_text(MAX_RESOURCE_ID_BYTES))
    yield sa.Column("data", long_text())


def _entry_columns() -> Iterator[sa.Column[Any]]:
    yield sa.Column("place", sa.String(DIGEST_CHARS), primary_key=True)
    yield sa.Column("sort_key", key_text(SORT_KEY_BYTES), primary_key=True)
    yield required("resource_id", key_text(MAX_RESOURCE_ID_BYTES))
    yield required("last_name", key_text(MAX_NAME_BYTES))
    yield required("names", sa.SmallInteger)


def _caller_columns() -> Iterator[sa.Column[Any]]:
    yield sa.Column("caller_id", key_text(MAX_RESOURCE_ID_BYTES), primary_key=True)
    yield required("status", sa.String(STATUS_CHARS))
    yield required("token", sa.String(TOKEN_BYTES))
    yield required("since_us", sa.BigInteger)
    yield required("criteria", long_text())
    yield sa.Column("line_key", key_text(LINE_KEY_BYTES))
    yield sa.Column("resource_id", key_text(MAX_RESOURCE_ID_BYTES))
    yield required("preference", sa.SmallInteger)
    yield sa.Column("met", long_text())


def digest(text: str) -> str:
    """Return a hash of a string that may be too long for a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def resource_row(resource: Resource) -> dict[str, Any]:
    """Return the row of a resource."""
    return {
        "resource_id": resource.resource_id,
        "attributes": json.dumps(dict(resource.attributes), ensure_ascii=False),
        "status": resource.status.value,
        "token": resource.token,
        "since_us": None if resource.since is None else microseconds(resource.since),
        "lease_until_us": None if resource.lease_until is None else microseconds(resource.lease_until),
        "caller_id": resource.caller_id,
        "data": resource.data_json,
    }


def resource_of(row: sa.Row[Any]) -> Resource:
    """Return the resource of a row."""
    return Resource(
        row.resource_id,
        {name: tuple(values) for name, values in json.loads(row.attributes).items()},
        ResourceStatus(row.status),
        row.token,
        None if row.since_us is None else row.since_us / 1e6,
        None if row.lease_until_us is None else row.lease_until_us / 1e6,
        row.caller_id,
        row.data,
    )


def entry_rows(resource: Resource | None, last_name: str = "") -> list[dict[str, Any]]:
    """Return the rows of the entries of a version of a resource; none unless it is queued."""
    if resource is None or resource.status is not ResourceStatus.QUEUED or resource.since is None:
        return []
    return [
        {
            "place": digest(place.partition),
            "sort_key": place.sort_key(resource.since, resource.resource_id),
            "resource_id": resource.resource_id,
            "last_name": last_name,
            "names": len(resource.attributes),
        }
        for place in places_of(resource.attributes)
    ]


def asks_rows(caller: Caller | None) -> list[dict[str, Any]]:
    """Return the rows of the questions of a version of a caller; none unless the caller waits."""
    if caller is None or caller.status is not CallerStatus.WAITING:
        return []
    return [{"place": digest(question), "line_key": caller.sort_key} for question in caller.questions]


def caller_row(caller: Caller) -> dict[str, Any]:
    """Return the row of a caller."""
    return {
        "caller_id": caller.caller_id,
        "status": caller.status.value,
        "token": caller.token,
        "since_us": microseconds(caller.since),
        "criteria": caller.ranks_json,
        "line_key": caller.sort_key if caller.status is CallerStatus.WAITING else None,
        "resource_id": caller.resource_id,
        "preference": caller.rank,
        "met": None if caller.criteria is None else json.dumps(caller.criteria, ensure_ascii=False),
    }


def caller_of_row(row: sa.Row[Any]) -> Caller:
    """Return the caller of a row."""
    return Caller(
        row.caller_id,
        CallerStatus(row.status),
        row.token,
        parsed_ranks(row.criteria),
        row.since_us / 1e6,
        row.resource_id,
        row.preference,
        None if row.met is None else json.loads(row.met),
    )


class MatchHistory(SqlHistory):
    """The histories of the resources of a table and of its callers. Thread-safe."""

    command: ClassVar = "freshq match create"

    def __init__(self, database: Database, table: str) -> None:
        """Send nothing yet.

        Args:
            database: The database.
            table: Name of the table of resources; the names of the other tables begin with it.
        """
        parts = schema(f"{table}_lives", database.dialect)
        history = _history(f"{table}_lives_history", database.dialect)
        super().__init__(database, replace(parts, history=history))
        self.queues = queues_of(table)
        self.tables = (parts.records, parts.histories, history)
        self._insert = _insert_if_kept(history, parts.histories)

    def create_tables(self, connection: sa.Connection) -> None:
        """Create the tables that are missing."""
        create_missing(connection, self.tables)

    def drop_tables(self, connection: sa.Connection) -> None:
        """Drop the tables that are there."""
        for table in self.tables:
            table.drop(connection, checkfirst=True)

    def keep(self, seconds: float) -> None:
        """Keep the histories for some time; 0: end them."""
        for queue in self.queues:
            if seconds > 0:
                self.begin(queue, seconds)
            else:
                self.end(queue)

    def check_all(self) -> None:
        """Check that the histories are kept.

        Raises:
            TableMissing: If they are not.
        """
        for queue in self.queues:
            self.check(queue)

    def write(self, connection: sa.Connection, change: Change) -> None:
        """Write the events of a change, in its transaction, if the histories are kept."""
        resources, callers = self.queues
        rows = [
            *_rows(resources, resource_events(change.before, change.after, change.at)),
            *_rows(callers, caller_events(change.caller_before, change.caller_after, change.at)),
        ]
        if rows:
            connection.execute(self._insert, rows)

    def prune_all(self, now: float) -> None:
        """Delete a portion of the events that are past their retention.

        Args:
            now: The time, in seconds since the epoch.
        """
        for queue in self.queues:
            self.prune(queue, now, PRUNE_LIVES)

    @override
    def begin_writing(self, connection: sa.Connection) -> None:
        return

    @override
    def end_writing(self, connection: sa.Connection) -> None:
        return

    @override
    def events_of(self, history_id: str, row: sa.Row[Any]) -> Iterator[dict[str, Any]]:
        event = json.loads(row.event) | {"queue": row.queue}
        return numbered(iter([event]), f"{history_id}-{row.event_id}", str(row.event_id))


def _rows(queue: str, events: Iterator[Event]) -> Iterator[Mapping[str, Any]]:
    for event in events:
        at_us = microseconds(event["stream_ms"] / 1000)
        yield {"of_queue": queue, "new_at_us": at_us, "new_event": json.dumps(event)}


@lru_cache(maxsize=16)
def _history(name: str, dialect: str) -> sa.Table:
    event = required("event", long_text())
    return history_table(name, f"{name}_batches", sa.MetaData(), dialect, event)


def _insert_if_kept(history: sa.Table, histories: sa.Table) -> sa.Insert:
    """Return the statement that writes an event if a history of its queue is kept."""
    at_us = sa.cast(sa.bindparam("new_at_us", type_=sa.BigInteger), sa.BigInteger)
    event = sa.cast(sa.bindparam("new_event", type_=sa.Text), sa.Text)
    kept = histories.c.queue == sa.bindparam("of_queue")
    found = sa.select(histories.c.queue, at_us, event).where(kept)
    return sa.insert(history).from_select(["queue", "at_us", "event"], found)


class SqlMatchStore(MatchStore):
    """Resources in tables of a relational database. Every change is one transaction."""

    def __init__(
        self,
        url: str | sa.Engine,
        table: str = "resources",
        history_seconds: float | None = None,
    ) -> None:
        """Use a database; nothing is sent before the first call.

        Args:
            url: Address of the database, or an engine made by `freshq.stores.sql.database.open_engine`.
            table: Name of the table of resources; the names of the other tables begin with it.
            history_seconds: How long `create_table` makes the database keep the histories of resources and
                callers. 0: stop keeping them; None: change nothing.

        Raises:
            ValueError: If an argument is wrong.
        """
        self._database = Database(url, table)
        self._tables = tables_of(table, self._database.dialect)
        self.history = self._lives = MatchHistory(self._database, table)
        self._history_seconds = history_seconds
        if history_seconds:
            self._database.requirement = self._lives.check_all
        # Never deleted: names that this process added need not be added again.
        self._added: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return shown(self._database.engine.url, self._tables.resources.name)

    @override
    def clock(self) -> float:
        return self._database.clock()

    @override
    def create_table(self) -> None:
        self._database.requirement = None

        def create(connection: sa.Connection) -> None:
            lock_changes(connection, self._tables.resources.name)
            self._check_owned(connection)
            create_missing(connection, self._tables.metadata.sorted_tables)
            self._lives.create_tables(connection)

        self._database.allow_new_file()
        with alone(self._database, self._tables.resources.name):
            self._database.transaction(create)
        if self._history_seconds is not None:
            self._lives.keep(self._history_seconds)

    @override
    def delete_table(self) -> None:
        def delete(connection: sa.Connection) -> None:
            self._check_owned(connection)
            self._tables.metadata.drop_all(connection)

        self._database.transaction(delete)
        self._database.transaction(self._lives.drop_tables)
        self._added = frozenset()

    def _check_owned(self, connection: sa.Connection) -> None:
        check_owned(connection, [*self._tables.metadata.sorted_tables, *self._lives.tables])

    @override
    def close(self) -> None:
        self._database.close()

    @override
    def tidy(self, now: float) -> None:
        self._lives.prune_all(now)

    @override
    def read_options(self) -> StoredValues | None:
        row = self._database.row(sa.select(self._tables.options), {})
        return None if row is None else StoredValues(json.loads(row.record), row.version)

    @override
    def write_options(self, values: Mapping[str, Any], version: str | None) -> bool:
        options, token = self._tables.options, new_token()
        new = {"record": json_text(dict(values)), "version": token}

        def write(connection: sa.Connection) -> bool:
            if version is None:
                insert = insert_or_ignore(options, self._database.engine.dialect)
                connection.execute(insert, [{"name": OPTIONS, **new}])
            else:
                connection.execute(sa.update(options).where(options.c.version == version).values(new))
            # An earlier attempt may have been committed while its reply was lost.
            return connection.execute(sa.select(options.c.version)).scalar_one_or_none() == token

        return self._database.transaction(write)

    # --- what can be asked for

    @override
    def add_names(self, names: Collection[str]) -> None:
        self._add(self._tables.names, {f"name {name}": {"name": name} for name in names})

    @override
    def add_combinations(self, combinations: Collection[str]) -> None:
        rows = {
            f"combination {combination}": {"digest": digest(combination), "combination": combination}
            for combination in combinations
        }
        self._add(self._tables.combinations, rows)

    def _add(self, table: sa.Table, rows: dict[str, dict[str, str]]) -> None:
        """Insert rows unless they exist, each marked with a unique string of this process."""
        new = {known_as: row for known_as, row in rows.items() if known_as not in self._added}
        if new:
            insert, values = (
                insert_or_ignore(table, self._database.engine.dialect),
                [new[known_as] for known_as in sorted(new)],
            )
            self._database.transaction(lambda connection: connection.execute(insert, values))
            self._added |= new.keys()

    @override
    def last_name(self) -> str:
        name = self._tables.names.c.name
        row = self._database.row(sa.select(name).order_by(name.desc()).limit(1), {})
        return "" if row is None else str(row[0])

    @override
    def combinations(self) -> Iterator[str]:
        rows = self._database.rows(sa.select(self._tables.combinations.c.combination), {})
        yield from sorted(str(row[0]) for row in rows)

    @override
    def count(self, place: Place, names: int, at_most: int | None) -> int:
        entries = self._tables.entries
        found = sa.select(sa.literal(1)).where(
            entries.c.place == digest(place.partition),
            entries.c.sort_key >= place.bounds[0],
            entries.c.sort_key <= place.bounds[1],
            entries.c.names == names,
        )
        counted = sa.select(sa.func.count()).select_from(found.limit(at_most).subquery())
        row = self._database.row(counted, {})
        return 0 if row is None else int(row[0])

    # --- reads

    @override
    def get(self, resource_id: str) -> Resource | None:
        resources = self._tables.resources
        row = self._database.row(sa.select(resources).where(resources.c.resource_id == resource_id), {})
        return None if row is None else resource_of(row)

    @override
    def resources(self) -> Iterator[Resource]:
        resource_id = self._tables.resources.c.resource_id
        page = sa.select(self._tables.resources).order_by(resource_id).limit(PAGE_ROWS)
        after = ""
        while True:
            rows = self._database.rows(page.where(resource_id > after), {})
            yield from map(resource_of, rows)
            if len(rows) < PAGE_ROWS:
                return
            after = rows[-1].resource_id

    @override
    def page(self, span: Span) -> list[Entry]:
        entries, resources = self._tables.entries, self._tables.resources
        key = entries.c.sort_key
        conditions = [
            entries.c.place == digest(span.partition),
            key >= span.low,  # not BETWEEN, which takes no collation in PostgreSQL
            key <= span.high,
            resources.c.status == ResourceStatus.QUEUED.value,
        ]
        if span.start_after is not None:
            conditions.append(key < span.start_after if span.newest_first else key > span.start_after)
        both = entries.join(resources, entries.c.resource_id == resources.c.resource_id)
        selected = sa.select(key, entries.c.last_name, *resources.c).select_from(both).where(*conditions)
        ordered = selected.order_by(key.desc() if span.newest_first else key).limit(span.limit)
        return [
            Entry(row.sort_key, resource_of(row), row.last_name) for row in self._database.rows(ordered, {})
        ]

    @override
    def caller(self, caller_id: str) -> Caller | None:
        callers = self._tables.callers
        row = self._database.row(sa.select(callers).where(callers.c.caller_id == caller_id), {})
        return None if row is None else caller_of_row(row)

    @override
    def waiting_callers(self, limit: int, start_after: str | None) -> list[Caller]:
        callers = self._tables.callers
        after = callers.c.line_key > (start_after or "")
        in_line = sa.select(callers).where(after).order_by(callers.c.line_key).limit(limit)
        return [caller_of_row(row) for row in self._database.rows(in_line, {})]

    @override
    def line_keys(self, question: str, limit: int, start_after: str | None) -> list[str]:
        asks = self._tables.asks
        asking = (asks.c.place == digest(question), asks.c.line_key > (start_after or ""))
        in_line = sa.select(asks.c.line_key).where(*asking).order_by(asks.c.line_key).limit(limit)
        return [row.line_key for row in self._database.rows(in_line, {})]

    # --- the change of a version

    @override
    def commit(self, change: Change) -> None:
        def work(connection: sa.Connection) -> bool:
            self._change_resource(connection, change)
            self._change_caller(connection, change)
            self._lives.write(connection, change)
            return True

        self._database.transaction(work, lambda connection: self._made(connection, change))

    def _change_resource(self, connection: sa.Connection, change: Change) -> None:
        before, after = change.before, change.after
        resource = after or before
        if resource is None:
            return
        if before is not None and after is not None and change.caller_after is None:
            self._skip_locked(connection, before)
        row = None if after is None else resource_row(after)
        self._replace(connection, self._tables.resources, resource.resource_id, row, before)
        old, new = entry_rows(change.before), entry_rows(change.after, change.last_name)
        self._exchange(connection, self._tables.entries, old, new)

    def _exchange(
        self, connection: sa.Connection, table: sa.Table, old: list[dict[str, Any]], new: list[dict[str, Any]]
    ) -> None:
        """Delete rows of a table by their primary keys, and insert others."""
        keys = list(table.primary_key)
        if old:
            this = sa.and_(*(key == sa.bindparam(f"of_{key.name}") for key in keys))
            deleted = [{f"of_{key.name}": row[key.name] for key in keys} for row in old]
            connection.execute(sa.delete(table).where(this), deleted)
        if new:
            connection.execute(sa.insert(table), new)

    def _change_caller(self, connection: sa.Connection, change: Change) -> None:
        before, after = change.caller_before, change.caller_after
        caller = after or before
        if caller is None:
            return
        row = None if after is None else caller_row(after)
        self._replace(connection, self._tables.callers, caller.caller_id, row, before)
        self._exchange(connection, self._tables.asks, asks_rows(before), asks_rows(after))

    def _skip_locked(self, connection: sa.Connection, before: Resource) -> None:
        """Skip a queued resource that another caller is taking at this moment, rather than waiting for it.

        Raises:
            Changed: If it is locked, or has changed.
        """
        if before.status is not ResourceStatus.QUEUED:
            return
        resources = self._tables.resources
        this = (resources.c.resource_id == before.resource_id, resources.c.token == before.token)
        locked = sa.select(resources.c.token).where(*this).with_for_update(skip_locked=True)
        if connection.execute(locked).one_or_none() is None:
            raise Changed

    def _replace(
        self,
        connection: sa.Connection,
        table: sa.Table,
        key: str,
        row: dict[str, Any] | None,
        before: Resource | Caller | None,
    ) -> None:
        """Replace the row of a key by the next.

        Args:
            connection: In a transaction.
            table: Its table.
            key: Its primary key.
            row: The next row; None to delete it.
            before: The version in the row; None if there must be none.

        Raises:
            Changed: If the row has another version.
        """
        this = next(iter(table.primary_key)) == key
        change: sa.Delete | sa.Update = sa.delete(table) if row is None else sa.update(table).values(row)
        if before is not None:
            done = connection.execute(change.where(this, *_is_still(table, before))).rowcount == 1
        else:
            new = row or {}
            connection.execute(insert_or_ignore(table, self._database.engine.dialect), [new])
            token = connection.execute(sa.select(table.c.token).where(this)).scalar_one_or_none()
            done = token == new["token"]
        if not done:
            raise Changed

    def _made(self, connection: sa.Connection, change: Change) -> bool:
        """Return whether an earlier try of a change was committed while its reply was lost."""
        before, after = change.leading
        stored = after or before
        table = self._tables.resources if isinstance(stored, Resource) else self._tables.callers
        key = getattr(stored, next(iter(table.primary_key)).name)
        this = next(iter(table.primary_key)) == key
        wanted = [] if after is None else _is_still(table, after)
        found = connection.execute(sa.select(table.c.token).where(this, *wanted)).one_or_none()
        return (found is None) == (after is None)


def _is_still(table: sa.Table, version: Resource | Caller) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that a row has a version: its token, and the end of its lease."""
    conditions: list[sa.ColumnElement[bool]] = [table.c.token == version.token]
    if isinstance(version, Resource):
        lease = table.c.lease_until_us
        conditions.append(lease.is_not_distinct_from(resource_row(version)["lease_until_us"]))
    return conditions
