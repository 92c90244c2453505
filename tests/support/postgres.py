"""PostgreSQL servers that are killed, and standbys that take their place."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from local.servers import HOST, Postgres, Server, Unavailable, databases_are_required, postgres_programs
from typing_extensions import override

from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import within_seconds

STREAMS: Final = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"


def need_postgres() -> None:
    """Skip visibly if PostgreSQL is not installed."""
    try:
        postgres_programs()
    except Unavailable as missing:
        if databases_are_required():
            raise
        pytest.skip(str(missing))


def kill_all(server: Server) -> None:
    """Kill all processes of a server."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    processes = [server.pid, *map(int, children)]
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert within_seconds(PATIENCE_SECONDS, lambda: not any(map(_is_alive, processes[1:])))
    server.stop()


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def answer(server: Server, statement: str) -> Any:
    """Run a statement outside of any transaction; return the first value of its rows, or None."""
    engine = sa.create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        result = connection.execute(sa.text(statement))
        return result.scalar() if result.returns_rows else None


class Standby(Postgres):
    """A copy of a PostgreSQL that follows it until promoted."""

    def __init__(self, primary: Postgres, port: int | None = None) -> None:
        """Follow a server, through another port if one is given."""
        super().__init__(durable=True)
        self._primary = primary
        self._primary_port = port or primary.port

    @override
    def prepare(self, folder: Path) -> None:
        self._data = folder / "data"
        address = f"host={HOST} port={self._primary_port} user=freshq"
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        self.run(
            [
                str(self.programs() / "pg_basebackup"),
                f"--dbname={address}",
                f"--pgdata={self._data}",
                *options,
            ],
            folder,
        )

    def promote(self) -> None:
        """Make it the primary."""
        command = [str(self.programs() / "pg_ctl"), "promote", "--wait", f"--pgdata={self._data}"]
        self.run(command, self._data)


def confirm_by_standby(primary: Postgres) -> None:
    """Let each commit wait until the standby has it on its disk."""
    assert within_seconds(PATIENCE_SECONDS, lambda: answer(primary, STREAMS) == 1)
    answer(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    answer(primary, "SELECT pg_reload_conf()")
    state = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
    assert within_seconds(PATIENCE_SECONDS, lambda: answer(primary, state) == 1)
