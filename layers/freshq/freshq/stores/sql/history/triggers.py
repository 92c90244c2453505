"""The triggers that write a history, in the transaction of the change, whichever program makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from freshq.stores.sql.rows import OVER
from freshq.stores.sql.schema import COPIED

if TYPE_CHECKING:
    from freshq.stores.sql.schema import Schema

# The change of each event of a table, and the row that has the state to keep.
CHANGES: Final = {"insert": ("INSERT", "NEW"), "update": ("MODIFY", "NEW"), "delete": ("REMOVE", "OLD")}
# The time of the database, in microseconds. SQLite has milliseconds.
NOW_US: Final = {
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
    "postgresql": "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    "mysql": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
    "mariadb": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
}
# Every version of a task has its own token. Upkeep that leaves a task as it is changes no token.
CHANGED: Final = "NEW.request_token <> OLD.request_token"
# A transaction claims a task and ends the claim in one write.
CLAIMED: Final = (
    "OLD.status = 'PENDING' AND NEW.status <> 'TAKEN' AND NEW.last_claim_us IS NOT NULL AND "
    "(OLD.last_claim_us IS NULL OR NEW.last_claim_us <> OLD.last_claim_us OR NEW.attempts > OLD.attempts)"
)
# The names of the triggers of a table that work. Those that earlier versions made on PostgreSQL have only the
# rights and the search path of the writer.
_WORKING_MYSQL: Final = (
    "SELECT trigger_name FROM information_schema.triggers "
    "WHERE trigger_schema = DATABASE() AND event_object_table = :of_table"
)
WORKING: Final = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :of_table",
    "postgresql": "SELECT tgname FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid "
    "WHERE tgrelid = to_regclass(CAST(:of_table AS text)) AND tgenabled IN ('O', 'A') AND prosecdef",
    "mysql": _WORKING_MYSQL,
    "mariadb": _WORKING_MYSQL,
}
# The schema of PostgreSQL that a table is in, quoted.
SCHEMA: Final = sa.text(
    "SELECT quote_ident(nspname) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE pg_class.oid = to_regclass(CAST(:of_table AS text))"
)
# A trigger of PostgreSQL has the rights of who made it, so its search path holds nothing that others can
# fill, and nobody else may make it the trigger of a table of theirs.
SAFE: Final = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp"


class Triggers:
    """The triggers of a table. On PostgreSQL they name schemas: a writer may have another search path."""

    def __init__(self, schema: Schema, connection: sa.Connection) -> None:
        """Look where the tables are.

        Args:
            schema: The tables.
            connection: Where to look, and to create and drop the triggers.
        """
        self._tasks = schema.tasks.name
        self._connection = connection
        self._dialect = connection.dialect.name
        self._quoted = connection.dialect.identifier_preparer.quote
        self._schema = self._schema_of(self._tasks)
        self._table = self._schema + self._quoted(self._tasks)
        self._history = self._schema_of(schema.history.name) + self._quoted(schema.history.name)
        self._histories = self._schema_of(schema.histories.name) + self._quoted(schema.histories.name)

    def create_missing(self) -> None:
        """Create the triggers that are not there or do not work.

        Those that work stay: to make one anew waits for all writers of the table, and MariaDB would lose
        what is written in between.
        """
        table = self._table if self._dialect == "postgresql" else self._tasks
        working = self._connection.execute(sa.text(WORKING[self._dialect]), {"of_table": table})
        found = set(working.scalars())
        for event in CHANGES:
            if f"{self._tasks}_history_{event}" not in found:
                self._run(self._create(event))

    def drop(self) -> None:
        """Drop the triggers."""
        if self._dialect == "postgresql":
            functions = [f"{self._schema}{self._name(event)}()" for event in CHANGES]
            self._run([f"DROP FUNCTION IF EXISTS {function} CASCADE" for function in functions])
        else:
            self._run([f"DROP TRIGGER IF EXISTS {self._name(event)}" for event in CHANGES])

    def _run(self, statements: list[str]) -> None:
        for statement in statements:
            self._connection.exec_driver_sql(statement)

    def _schema_of(self, table: str) -> str:
        """Return what stands before the name of a table."""
        if self._dialect != "postgresql":
            return ""
        schema = self._connection.execute(SCHEMA, {"of_table": self._quoted(table)}).scalar_one()
        return f"{schema}."

    def _name(self, event: str) -> str:
        return self._quoted(f"{self._tasks}_history_{event}")

    def _create(self, event: str) -> list[str]:
        name, write = self._name(event), self._write(event)
        on = f"AFTER {event.upper()} ON {self._table} FOR EACH ROW"
        condition = f" WHEN ({CHANGED})" if event == "update" else ""
        if self._dialect == "sqlite":
            return [f"CREATE TRIGGER IF NOT EXISTS {name} {on}{condition} BEGIN {write}; END"]
        if self._dialect == "postgresql":
            body = f"BEGIN {write}; RETURN NULL; END"
            function = f"{self._schema}{name}()"
            does = f"RETURNS trigger LANGUAGE plpgsql {SAFE} AS $history$ {body} $history$"
            return [
                f"CREATE OR REPLACE FUNCTION {function} {does}",
                f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC",
                f"DROP TRIGGER IF EXISTS {name} ON {self._table}",
                f"CREATE TRIGGER {name} {on}{condition} EXECUTE FUNCTION {function}",
            ]
        also = f" AND {CHANGED}" if event == "update" else ""
        return [f"CREATE TRIGGER IF NOT EXISTS {name} {on} {write}{also}"]

    def _write(self, event: str) -> str:
        """Return the INSERT of a trigger: of one row if the queue keeps a history, otherwise of none."""
        _change, row = CHANGES[event]
        values = self._values(event)
        into = f"INSERT INTO {self._history} ({', '.join(values)}) SELECT {', '.join(values.values())}"
        return f"{into} FROM {self._histories} kept WHERE kept.queue = {row}.queue"

    def _values(self, event: str) -> dict[str, str]:
        """Return what a trigger writes, by column."""
        change, row = CHANGES[event]
        now_us = NOW_US[self._dialect]
        values = {
            "queue": f"{row}.queue",
            "at_us": now_us,
            "change_kind": f"'{change}'",
            "ttl_removal": "0",
            **{name: f"{row}.{name}" for name in COPIED},
        }
        if event == "update":
            values["claimed_us"] = f"CASE WHEN {CLAIMED} THEN NEW.last_claim_us END"
            values["claimed_attempts"] = f"CASE WHEN {CLAIMED} THEN OLD.attempts + 1 END"
        elif event == "delete":
            # As the TTL of DynamoDB: its retention has passed.
            over = f"OLD.agenda = '{OVER}' AND OLD.due_us <= {now_us}"
            values["ttl_removal"] = f"CASE WHEN {over} THEN 1 ELSE 0 END"
        return values
