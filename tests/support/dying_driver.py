"""A driver whose connection is lost at one of its calls."""

from typing import Any, Final

import pytest
import sqlalchemy as sa

from tests.support.lost_replies import ERRORS

CALLS: Final = ("do_execute", "do_executemany", "do_execute_no_params", "do_commit", "do_rollback")


class DyingDriver:
    """Counts the calls of an engine's driver; from one call on, each raises as if the connection were lost.

    Attributes:
        calls: How many there were.
        dies_at: The number of the first call that fails; None: no call fails.
    """

    def __init__(self, engine: sa.Engine, patch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.dies_at: int | None = None
        self._error = ERRORS[engine.dialect.name]
        for name in CALLS:
            patch.setattr(engine.dialect, name, self._dying(name, getattr(engine.dialect, name)))
        pool: Any = type(engine.pool)
        borrow = pool.borrow

        def lend(pool: Any) -> tuple[Any, Any]:
            entry, cursor = borrow(pool)
            return entry, (_Cursor(cursor, self) if pool is engine.pool else cursor)

        patch.setattr(pool, "borrow", lend)

    def called(self) -> None:
        """Count a call.

        Raises:
            Exception: The driver's, if the connection is lost.
        """
        self.calls += 1
        if self.dies_at is not None and self.calls >= self.dies_at:
            raise self._error()

    def _dying(self, name: str, call: Any) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            if name == "do_rollback":  # a server rolls back the transaction of a lost connection
                call(*arguments, **options)
            self.called()
            return None if name == "do_rollback" else call(*arguments, **options)

        return called


class _Cursor:
    """A cursor of the driver that `StatementPool` lent."""

    def __init__(self, cursor: Any, driver: DyingDriver) -> None:
        self._cursor = cursor
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, *arguments: Any) -> None:
        self._driver.called()
        self._cursor.execute(*arguments)

    def executemany(self, *arguments: Any) -> None:
        self._driver.called()
        self._cursor.executemany(*arguments)
