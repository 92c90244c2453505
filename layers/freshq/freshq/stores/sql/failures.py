"""Translates the errors of databases into freshq's: most say that the session is gone, or "not now".

PostgreSQL's codes are from its documentation, appendix A, "PostgreSQL Error Codes"; those of MariaDB and
MySQL from "MariaDB Error Code Reference" and "MySQL Error Message Reference", server and client errors.
SQLite's are the messages of its "Result and Error Codes".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from freshq.errors import StoreError, TableMissing, Throttled, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

# SQLSTATEs of PostgreSQL; a prefix stands for a class. The session is gone, or there is none yet.
GONE_STATES: Final = (
    "08",  # connection exceptions; PgBouncer also sends 08P01 when it ends a client
    "25P03",  # idle_in_transaction_session_timeout
    "25P04",  # transaction_timeout, from PostgreSQL 17 on
    "26000",  # unknown prepared statement: a pooler changed the session
    "57P01",  # admin_shutdown, also pg_terminate_backend
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
    "57P04",  # database_dropped
    "57P05",  # idle_session_timeout
)
# Not now: the same statement may succeed later.
BUSY_STATES: Final = (
    "40",  # serialization failure (also by a standby's recovery), deadlock, unknown completion
    "53",  # insufficient resources: disk, memory, connections, limits
    "55006",  # object_in_use
    "55P03",  # lock_not_available
    "57014",  # query_canceled, also by statement_timeout
)
MISSING_STATES: Final = ("42P01",)
# Undefined column.
NO_COLUMN_STATES: Final = ("42703",)
# Insufficient privilege.
DENIED_STATES: Final = ("42501",)
# The right to create a function is missing: for want of CREATE ROUTINE 1044 and 1370, because of MariaDB's
# binary log 1227, 1418 and 1419.
NO_FUNCTION: Final = frozenset({*DENIED_STATES, 1044, 1227, 1370, 1418, 1419})
# Read-only transaction: the server is a standby, or a primary that is about to be replaced.
READ_ONLY_STATES: Final = ("25006",)

# Numbers of MariaDB and MySQL. The session is gone, or there is none yet.
GONE_NUMBERS: Final = frozenset(
    {
        0,  # PyMySQL and mysqlclient: the connection is closed
        1047,  # Galera: the node is not ready
        1053,  # the server shuts down
        1077,
        1079,
        1129,  # the host is blocked after failed connections
        1152,  # the connection was aborted
        1158,  # a packet could not be read or written, or not in time
        1159,
        1160,
        1161,
        1184,
        1927,  # MariaDB: the connection was killed
        2002,  # of the client: it cannot connect
        2003,
        2005,
        2006,  # the server has gone away, also by wait_timeout
        2012,
        2013,  # the connection was lost during a query
        2014,
        2026,
        2027,
        2055,
        3032,  # MySQL: offline mode
        3169,  # MySQL: the session was killed
        4031,  # MySQL: the server ended an idle session
        9001,  # ProxySQL: no server answers
    }
)
BUSY_NUMBERS: Final = frozenset(
    {
        1020,  # the record has changed since it was read
        1021,  # the disk is full
        1028,  # the sort was aborted
        1037,  # out of memory
        1038,
        1040,  # too many connections
        1041,
        1114,  # the table is full, also for lack of disk
        1203,  # too many connections of the user
        1205,  # lock wait timeout
        1206,  # no room for more locks
        1213,  # deadlock
        1226,  # a limit of the user, such as MAX_QUERIES_PER_HOUR
        1317,  # KILL QUERY
        1412,  # the table was changed during the transaction
        1613,  # rolled back after a timeout or a deadlock
        1614,
        1615,  # the statement must be prepared again
        1637,  # too many transactions
        1689,  # the wait for a lock was aborted
        1969,  # MariaDB: max_statement_time
        3024,  # MySQL: max_execution_time
        3101,  # MySQL: rolled back by group replication
        3572,  # MySQL: the lock is not free
    }
)
MISSING_NUMBERS: Final = frozenset({1146})
NO_COLUMN_NUMBERS: Final = frozenset({1054})
DENIED_NUMBERS: Final = frozenset({1142, 1143})
# 1290 also reports other options, none of which concerns freshq's statements.
READ_ONLY_NUMBERS: Final = frozenset({1290, 1792, 1836})

# SQLITE_BUSY and SQLITE_LOCKED, SQLITE_PROTOCOL, SQLITE_FULL, SQLITE_INTERRUPT.
BUSY_MESSAGES: Final = ("locked", "busy", "locking protocol", "is full", "interrupted")

# By code: the setting by which the server ended a session or a statement.
ENDED_BY: Final[Mapping[object, str]] = {
    "25P03": "idle_in_transaction_session_timeout",
    "25P04": "transaction_timeout",
    "57P05": "idle_session_timeout",
    4031: "wait_timeout",
    1969: "max_statement_time",
    3024: "max_execution_time",
}
_UTF8: Final = "the database cannot store this character; create the database with ENCODING 'UTF8'"
# By code: what a setting refused, and the remedy.
REFUSED_BY: Final[Mapping[object, str]] = {
    "3F000": (
        "no schema in search_path exists, or the role may not use it; create the schema, or set search_path "
        "for the role (ALTER ROLE name SET search_path = ...)"
    ),
    "22021": _UTF8,
    "22P05": _UTF8,
    1665: "set binlog_format to ROW or MIXED on the server; freshq's transactions are READ COMMITTED",
}
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


def state_of(cause: BaseException | None) -> str | None:
    """Return the SQLSTATE of an error of PostgreSQL; None if its driver gives none.

    psycopg and asyncpg call it sqlstate, psycopg2 pgcode; pg8000 passes the fields of the server's message.
    """
    arguments = getattr(cause, "args", ())
    fields = arguments[0] if arguments and isinstance(arguments[0], dict) else {}
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or fields.get("C")
    return state if isinstance(state, str) else None


def number_of(cause: BaseException | None) -> int | None:
    """Return the number of an error of MariaDB or MySQL; None if its driver gives none.

    Most drivers pass it first; MariaDB's connector calls it errno.
    """
    arguments = getattr(cause, "args", ())
    number = arguments[0] if arguments and isinstance(arguments[0], int) else getattr(cause, "errno", None)
    return number if isinstance(number, int) else None


def code_of(cause: BaseException | None, dialect: str) -> object:
    """Return the code of an error in a dialect; None for SQLite."""
    if dialect == "sqlite":
        return None
    return state_of(cause) if dialect == "postgresql" else number_of(cause)


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
    return state_of(cause) in READ_ONLY_STATES or number_of(cause) in READ_ONLY_NUMBERS


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
        return state_of(cause) in NO_COLUMN_STATES
    return number_of(cause) in NO_COLUMN_NUMBERS


def _sqlite_error_class(reason: str) -> type[StoreError]:
    if "no such table" in reason:
        return TableMissing
    if any(said in reason for said in BUSY_MESSAGES):
        return Throttled
    return Unreachable if "unable to open" in reason else StoreError


def _postgresql_error_class(error: BaseException | None) -> type[StoreError]:
    state = state_of(error)
    if state is None:  # of the driver: the server was not reached, or the connection broke
        # A connect timeout is a subclass.
        names = {base.__name__ for base in type(error).__mro__}
        return Unreachable if "OperationalError" in names else StoreError
    if state.startswith(GONE_STATES):
        return Unreachable
    if state.startswith(BUSY_STATES):
        return Throttled
    if state in DENIED_STATES:
        return RightsMissing
    return TableMissing if state in MISSING_STATES else StoreError


def _mysql_error_class(error: BaseException | None) -> type[StoreError]:
    number = number_of(error)
    if number in GONE_NUMBERS:
        return Unreachable
    if number in BUSY_NUMBERS:
        return Throttled
    if number in DENIED_NUMBERS:
        return RightsMissing
    return TableMissing if number in MISSING_NUMBERS else StoreError
