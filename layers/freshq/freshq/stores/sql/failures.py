"""Translates the errors of databases into freshq's."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from freshq.errors import StoreError, TableMissing, Throttled, Unreachable
from freshq.stores.sql import codes
from freshq.stores.sql.codes import ENDED_BY, REFUSED_BY, code_of, number_of, state_of

CREATE_COMMANDS: Final = "`freshq table create` for tasks, `freshq match create` for resources"
FOREIGN_TABLE: Final = (
    "it is not freshq's; choose another name for freshq's own, #TABLE at the end of the address or table="
)
# SQLite's messages about an unusable file, and the advice for each.
_FILE_ADVICE: Final = {
    "unable to open": "check the path, and the rights to the file and its folder",
    "readonly": "check the rights to the file and its folder",
    "not a database": "check the path: another program may have made this file",
}
# PostgreSQL refuses the connection, and its driver gives no error code.
_NO_DATABASE: Final = re.compile(r'database "[^"]*" does not exist')


class RightsMissing(StoreError):
    """The database's user lacks a right to a table."""


def translated(error: Exception, dialect: str, table: str) -> StoreError:
    """Translate an error of SQLAlchemy or of a driver into one of freshq's.

    Args:
        error: The error.
        dialect: Name of the dialect.
        table: Name of the table of tasks.
    """
    cause = error.orig if isinstance(error, DBAPIError) else error
    reason = " ".join(str(cause or error).split())
    error_class = _error_class(error, cause, dialect)
    code = code_of(cause, dialect)
    if code in REFUSED_BY or code in ENDED_BY:
        reason = _because_of_a_setting(code, reason)
    elif error_class is TableMissing:
        reason = _without_table(_missing_table(reason, table), dialect)
    elif error_class is RightsMissing:
        reason = _without_right(reason)
    else:
        reason = _with_advice(reason, error, error_class, dialect)
    return error_class(f"table {table!r}: {reason:.500}")


def _with_advice(reason: str, error: Exception, error_class: type[StoreError], dialect: str) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    if advice := _file_advice(dialect, reason):
        return f"SQLite cannot use the file of the url ({reason:.300}); {advice}"
    if error_class is Unreachable:
        return _no_answer(reason, cause)
    if _lacks_a_column(cause, dialect):
        return f"{FOREIGN_TABLE} ({reason:.300})"
    if error_class is Throttled and not isinstance(error, PoolTimeout):
        return f"the database was too busy ({reason:.300})"
    return reason


def _because_of_a_setting(code: object, reason: str) -> str:
    refusal = REFUSED_BY.get(code) or f"the server ended the call by its setting {ENDED_BY[code]}"
    return f"{refusal} ({reason:.300})"


def _without_table(missing: str, dialect: str) -> str:
    where = " in any schema of the role's search_path" if dialect == "postgresql" else ""
    return f"{missing} does not exist{where}; run {CREATE_COMMANDS}, or create_table()"


def _without_right(reason: str) -> str:
    if "row-level security" in reason:
        return f"row-level security hides rows from the user of the url ({reason:.300}); drop its policies"
    return f"the user of the url lacks a right ({reason:.300}); docs/sql.md lists those it needs"


def is_read_only(cause: BaseException | None) -> bool:
    """Return whether a server of PostgreSQL, MariaDB or MySQL refused a write because it takes none now."""
    return state_of(cause) in codes.READ_ONLY_STATES or number_of(cause) in codes.READ_ONLY_NUMBERS


def _no_answer(reason: str, cause: BaseException | None) -> str:
    if is_read_only(cause):
        return (
            f"the server takes no writes ({reason:.200}), as a standby does; connect to the primary, or name "
            "all servers in the url (docs/sql.md#failover); a primary takes none while read_only, or "
            "default_transaction_read_only of the server, the database or the role, is on"
        )
    if _NO_DATABASE.search(reason):
        what = f"the server has no such database ({reason:.300})"
        return f"{what}; create it first, or check its name in the url"
    return (
        f"the database did not answer ({reason:.300}); "
        "check that it runs, and the address and credentials in the url"
    )


def _file_advice(dialect: str, reason: str) -> str:
    """Return advice about a file that SQLite cannot use; empty if the file is not the reason."""
    if dialect != "sqlite":
        return ""
    return next((advice for said, advice in _FILE_ADVICE.items() if said in reason), "")


def _error_class(error: Exception, cause: BaseException | None, dialect: str) -> type[StoreError]:
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return Unreachable
    elif isinstance(error, SQLAlchemyError):
        return Throttled if isinstance(error, PoolTimeout) else StoreError
    if isinstance(error, OSError) or is_read_only(cause):
        return Unreachable
    if dialect == "sqlite":
        return _sqlite_error_class(str(cause))
    return _postgresql_error_class(cause) if dialect == "postgresql" else _mysql_error_class(cause)


def _missing_table(reason: str, table: str) -> str:
    """Return the table that a message reports as missing: `table`, or a table derived from it."""
    named = re.search(rf"\b{re.escape(table)}(_\w+)?\b", reason)
    return f"its table {named.group()!r}" if named and named.group() != table else "it"


def _lacks_a_column(cause: BaseException | None, dialect: str) -> bool:
    if dialect == "sqlite":
        return "no such column" in str(cause) or "has no column named" in str(cause)
    if dialect == "postgresql":
        return state_of(cause) in codes.NO_COLUMN_STATES
    return number_of(cause) in codes.NO_COLUMN_NUMBERS


def _sqlite_error_class(reason: str) -> type[StoreError]:
    if "no such table" in reason:
        return TableMissing
    if any(said in reason for said in codes.BUSY_MESSAGES):
        return Throttled
    return Unreachable if "unable to open" in reason else StoreError


def _postgresql_error_class(error: BaseException | None) -> type[StoreError]:
    state = state_of(error)
    if state is None:  # of the driver: the server was not reached, or the connection broke
        # A connect timeout is a subclass.
        names = {base.__name__ for base in type(error).__mro__}
        return Unreachable if "OperationalError" in names else StoreError
    if state.startswith(codes.GONE_STATES):
        return Unreachable
    if state.startswith(codes.BUSY_STATES):
        return Throttled
    if state in codes.DENIED_STATES:
        return RightsMissing
    return TableMissing if state in codes.MISSING_STATES else StoreError


def _mysql_error_class(error: BaseException | None) -> type[StoreError]:
    number = number_of(error)
    if number in codes.GONE_NUMBERS:
        return Unreachable
    if number in codes.BUSY_NUMBERS:
        return Throttled
    if number in codes.DENIED_NUMBERS:
        return RightsMissing
    return TableMissing if number in codes.MISSING_NUMBERS else StoreError
