"""Run Amazon's DynamoDB Local for tests: no account, no container, nothing left behind.

DynamoDB Local is Amazon's own emulator, so the tests trust it on expressions and
capacity units. Its jar is in the npm package `amplify-dynamodb-simulator`. It
needs npm once and Java every time. Both may be missing on a laptop, but not in CI:

    try:
        with DynamoDBLocal() as server:
            client = server.client()
            ...
    except Unavailable as missing:
        if is_required():
            raise
        pytest.skip(str(missing))

The server is started by Jetty's XML launcher, which the package includes, not by
the jar's `main`, for three reasons:

* `main` listens on every network interface; this server only on 127.0.0.1.
* `main` needs a port, which another process may take in the meantime; here the
  kernel chooses the port and the server prints it.
* `main` outlives a killed parent; this JVM exits when its standard input ends,
  which happens however this process dies.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import boto3
from botocore.config import Config

from freshq.stores.dynamodb.keyspace import table_definition
from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from types import TracebackType

    from types_boto3_dynamodb import DynamoDBClient

PACKAGE: Final = "amplify-dynamodb-simulator"
VERSION: Final = "2.9.30"  # carries DynamoDB Local 1.25.1
INTEGRITY: Final = (  # of the package's archive, as npm writes such values
    "sha512-xTeeRLvzEfqyd5lh3bH4c0kHvSHHmmhD5ZDsHFKAQ5g2Zl6JqlFdutaQhCLHzxEp6Ry1o7TB6niIoXuQAnSewQ=="
)
CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "dynamodb-local"

HOST: Final = "127.0.0.1"
REGION: Final = "us-east-1"

_DOWNLOAD_SECONDS: Final = 300.0
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.02
_LOG_BYTES: Final = 65536
_NO_NPM: Final = "DynamoDB Local is not installed, and `npm`, which fetches it, is not on PATH"

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


class Unavailable(Exception):
    """DynamoDB Local cannot run here; the message names what is missing."""


def is_required() -> bool:
    """Return whether a missing DynamoDB Local is an error (CI), not a skip (a laptop)."""
    return (
        os.environ.get("CI", "").lower() in {"1", "true"}
        or os.environ.get("FRESHQ_REQUIRE_DYNAMODB_LOCAL") == "1"
    )


def what_is_missing(cache: Path = CACHE) -> str | None:
    """Return what keeps DynamoDB Local from running here; None if everything it needs is here."""
    try:
        find_java()
    except Unavailable as missing:
        return str(missing)
    if not (cache / VERSION).is_dir() and shutil.which("npm") is None:
        return _NO_NPM
    return None


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
    target = cache / VERSION
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
    """Fetch the package's archive with npm, running none of its scripts."""
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable(_NO_NPM)
    command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--ignore-scripts", "--no-audit", "--no-fund"]
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
        message = f"npm did not fetch {PACKAGE}@{VERSION} within {_DOWNLOAD_SECONDS:.0f} s"
        raise Unavailable(message) from slow
    except (OSError, subprocess.CalledProcessError) as failed:
        reason = getattr(failed, "stderr", None) or str(failed)
        message = f"npm could not fetch {PACKAGE}@{VERSION}: {_excerpt(reason)}"
        raise Unavailable(message) from failed
    archive = folder / f"{PACKAGE}-{VERSION}.tgz"
    if not archive.is_file():
        message = f"npm fetched {PACKAGE}@{VERSION} but left no {archive.name}"
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
    """Return a program's output, or its two ends if it is long."""
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
        client: DynamoDBClient = boto3.client(
            "dynamodb",
            endpoint_url=self.endpoint_url,
            region_name=region,
            aws_access_key_id=access_key,
            aws_secret_access_key="local",
            config=Config(
                proxies={},
                connect_timeout=PATIENCE_SECONDS,
                read_timeout=PATIENCE_SECONDS,
                max_pool_connections=32,
                retries={"total_max_attempts": 1, "mode": "standard"},
            ),
        )
        return client

    def __enter__(self) -> Self:
        """Fetch the package if need be, start the server, and wait for its first answer.

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
        """Poll until the server answers, has ended, or the time is up."""
        deadline = time.monotonic() + self._start_seconds
        while True:
            output = os.pread(log, _LOG_BYTES, 0)  # does not move the server's position
            announced = re.search(rb"^(\d+)\n", output, re.MULTILINE)
            if announced and _answers(int(announced[1])):
                return int(announced[1])
            code = self._process.poll() if self._process else None
            if code is not None:
                problem = f"ended with code {code} before it answered"
                break
            if time.monotonic() > deadline:
                problem = f"did not answer within {self._start_seconds:g} s"
                break
            time.sleep(_POLL_SECONDS)
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
                process.wait(_STOP_SECONDS)
                return


def create_without_stream(client: DynamoDBClient, table: str) -> None:
    """Create a queue's table for a test that does not read its stream, in one call.

    DynamoDB Local keeps the stream records of all tables, deleted ones too, and each makes every call
    slower: by a factor of 3 after 6,000 writes. A table of an emulator is ready at once, and needs no expiry
    of items.
    """
    definition = table_definition(table)
    definition["StreamSpecification"] = {"StreamEnabled": False}
    client.create_table(**definition)


def _answers(port: int) -> bool:
    """List the tables. The first such request also loads the native database library."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_STOP_SECONDS)
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
