"""The error codes of databases: which say that the session is gone, and which say "not now".

PostgreSQL's are from its documentation, appendix A, "PostgreSQL Error Codes"; MariaDB's and MySQL's from
"MariaDB Error Code Reference" and "MySQL Error Message Reference", server and client errors. SQLite's are
the messages of its "Result and Error Codes".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
