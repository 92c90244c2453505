"""A connection to PostgreSQL that does not wait indefinitely for an answer.

The server's own timeout does not help if the network loses the answer, and TCP's does not if a middlebox
acknowledges packets that it drops.
"""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

T = TypeVar("T")

# The server's timeout is shorter: its error says why, and keeps the connection usable.
GRACE_SECONDS: Final = 1.0


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that limits the wait for each answer.

    Attributes:
        answer_timeout_seconds: How long to wait for an answer; None to wait indefinitely.
        settings: The settings of the session, by name.
    """

    answer_timeout_seconds: float | None = None
    settings: Mapping[str, str] = MappingProxyType({})

    def is_pooled(self) -> bool:
        """Return whether a pooler is between this connection and the server.

        Then a session of the server serves several clients in turns: it keeps neither prepared statements nor
        locks nor LISTEN for one of them.
        """
        cursor = self.execute("SELECT pg_backend_pid()")
        return cursor.fetchone() != (self.info.backend_pid,)

    @override
    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        if self.answer_timeout_seconds is None:
            return super().wait(gen, *arguments, **options)
        return super().wait(self._bounded(gen, self.answer_timeout_seconds), *arguments, **options)

    def _bounded(self, gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
        """Drive a generator of the driver until it ends or the timeout passes."""
        deadline = time.monotonic() + seconds + GRACE_SECONDS
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    msg = f"no answer within {seconds:g} s"
                    raise psycopg.OperationalError(msg)
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result
