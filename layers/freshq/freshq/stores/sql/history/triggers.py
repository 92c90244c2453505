"""The triggers that write a history, in the transaction of the change, whichever program makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq.stores.sql.rows import OVER
from freshq.stores.sql.schema import COPIED

if TYPE_CHECKING:
    import sqlalchemy as sa

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
# Every version of a task has a token of its own. Upkeep that leaves a task as it is changes no token.
CHANGED: Final = "NEW.request_token <> OLD.request_token"
# A transaction claims a task and ends the claim in one write.
CLAIMED: Final = (
    "OLD.status = 'PENDING' AND NEW.status <> 'TAKEN' AND NEW.last_claim_us IS NOT NULL AND "
    "(OLD.last_claim_us IS NULL OR NEW.last_claim_us <> OLD.last_claim_us OR NEW.attempts > OLD.attempts)"
)


class Triggers:
    """The statements that create and drop the triggers of a table."""

    def __init__(self, schema: Schema, dialect: sa.Dialect) -> None:
        """Build nothing yet."""
        self._tasks = schema.tasks.name
        self._dialect = dialect.name
        self._quoted = dialect.identifier_preparer.quote
        self._table = self._quoted(self._tasks)
        self._history = self._quoted(schema.history.name)
        self._histories = self._quoted(schema.histories.name)

    def create(self) -> list[str]:
        """Return the statements that create the triggers, or replace them."""
        return [text for event in CHANGES for text in self._create(event)]

    def drop(self) -> list[str]:
        """Return the statements that drop the triggers."""
        if self._dialect != "postgresql":
            return [f"DROP TRIGGER IF EXISTS {self._name(event)}" for event in CHANGES]
        return [f"DROP FUNCTION IF EXISTS {self._name(event)}() CASCADE" for event in CHANGES]

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
            function = f"{name}() RETURNS trigger LANGUAGE plpgsql AS $history$ {body} $history$"
            return [
                f"CREATE OR REPLACE FUNCTION {function}",
                f"DROP TRIGGER IF EXISTS {name} ON {self._table}",
                f"CREATE TRIGGER {name} {on}{condition} EXECUTE FUNCTION {name}()",
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
