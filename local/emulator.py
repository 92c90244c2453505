"""Run a private AWS emulator on a free port, and deploy the application, as SAM builds it, to it.

`Emulator` leaves nothing behind. It starts this file in its own process: `python emulator.py SOCKET`. That
process differs from ministack's own command in eight ways. It serves a socket bound by its parent, so that no
other process can take the port. It kills itself and every function process when its standard input closes, so
that nothing outlives the parent. It waits for the batching windows of streams, as Lambda does, so that
functions are invoked as often as in an account. In a stream's filter, a field is missing even if levels above
it are missing too, which ministack rejects. It unpacks a layer once rather than once for each process of
a function, which would double the work of a start. A function's reserved concurrency limits all of its
versions, where ministack limits only invocations without a version. A topic's message waits while its
function is throttled, and is repeated if its invocation fails; ministack would drop it. And an invocation
belongs to the trace of the request that caused it, as on Lambda; `Emulator` is the functions' X-Ray daemon.
`deploy` leaves template.yaml unchanged.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import platform
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.request
import zipfile
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypedDict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from types import FrameType

REGION: Final = "us-east-1"
_HOST: Final = "127.0.0.1"
_BACKLOG: Final = 1024
_STOP_SECONDS: Final = 1
_HTTP_OK: Final = 200
# Variables of the caller that must not reach the emulator, its functions or its clients.
_FOREIGN: Final = ("AWS_", "FRESHQ_", "LAMBDA_", "MINISTACK_", "POWERTOOLS_", "PYTHON", "SAM_CLI_")
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy")
# How long a message of a topic waits before it is tried again. Lambda waits a minute or more after a failure.
_THROTTLED_SECONDS: Final = 0.2
_FAILED_SECONDS: Final = 1.0
# Lambda's defaults.
_MAX_RETRIES: Final = 2
_MAX_EVENT_AGE_SECONDS: Final = 21600
logger = logging.getLogger(__name__)


class EmulatorFailed(RuntimeError):
    """The emulator did not start."""


class Connection(TypedDict):
    """Arguments that point a boto3 client to the emulator."""

    endpoint_url: str
    region_name: str
    aws_access_key_id: str
    aws_secret_access_key: str


class Emulator:
    """A running emulator, from the start to the end of a `with` block.

    The functions have only the permissions of their roles. At the end of the block, or on Ctrl-C, the
    emulator's process group is killed, including every function process, and its files are deleted. If this
    process is killed, the group exits too and only the files remain.

    Attributes:
        log: The emulator's log file.
        endpoint_url: The address of the emulator.
        segments: The traces' segments that functions have sent, oldest first.
    """

    def __init__(self, log: Path, *, start_seconds: float = 60) -> None:
        """Prepare an emulator.

        Args:
            log: File for its log; overwritten.
            start_seconds: Time limit of the start.
        """
        self.log = log
        self.segments: list[dict[str, Any]] = []
        self._daemon: TraceDaemon | None = None
        self.endpoint_url = ""
        self._start_seconds = start_seconds
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Id of its process, and of the group of its function processes."""
        if self._process is None:
            raise EmulatorFailed("the emulator is not running")
        return self._process.pid

    @property
    def connection(self) -> Connection:
        """Arguments for `boto3.client`, besides the name of a service."""
        return {
            "endpoint_url": self.endpoint_url,
            "region_name": REGION,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
        }

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process whose AWS calls must all go to the emulator."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and name.lower() not in _PROXIES
        }
        return inherited | {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.connection["aws_access_key_id"],
            "AWS_SECRET_ACCESS_KEY": self.connection["aws_secret_access_key"],
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def __enter__(self) -> Self:
        """Start the emulator and wait until it answers.

        Raises:
            EmulatorFailed: It exited, or did not answer in time.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="freshq-emulator-"))
        try:
            self._start()
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the emulator and delete its files."""
        self._stop()

    def _start(self) -> None:
        self._daemon = TraceDaemon(self.segments)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with socket.create_server((_HOST, 0), backlog=_BACKLOG) as server, self.log.open("wb") as log:
            port = int(server.getsockname()[1])
            self.endpoint_url = f"http://{_HOST}:{port}"
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(server.fileno())],
                env=self.environment | self._settings(port, self._daemon.address),
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[server.fileno()],
                start_new_session=True,
            )

    def _settings(self, port: int, daemon: str) -> dict[str, str]:
        temporary = self._folder / "tmp"
        temporary.mkdir()
        return {
            "GATEWAY_PORT": str(port),
            "MINISTACK_HOST": _HOST,
            "MINISTACK_REGION": REGION,
            "AUTH": "true",
            "LAMBDA_EXECUTOR": "local",
            "AWS_XRAY_DAEMON_ADDRESS": daemon,
            "IOT_MTLS_ENABLED": "0",
            "SFTP_ENABLED": "0",
            "TMPDIR": str(temporary),
            "STATE_DIR": str(self._folder / "state"),
            "S3_DATA_DIR": str(self._folder / "s3"),
            # Keep the emulator away from a Docker daemon, if there is one.
            "DOCKER_HOST": f"unix://{self._folder / 'no-docker'}",
        }

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._start_seconds
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                msg = f"the emulator exited while starting; end of {self.log}:\n{tail(self.log)}"
                raise EmulatorFailed(msg)
            if _answers(f"{self.endpoint_url}/_ministack/ready"):
                return
            time.sleep(0.05)
        msg = f"the emulator did not answer within {self._start_seconds} s; see {self.log}"
        raise EmulatorFailed(msg)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_group(process)
        if self._daemon is not None:
            self._daemon.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class TraceDaemon(socketserver.UDPServer):
    """An X-Ray daemon, which keeps the segments of traces instead of sending them to AWS."""

    max_packet_size = 65_535

    def __init__(self, segments: list[dict[str, Any]]) -> None:
        """Listen on a free port.

        Args:
            segments: Grows with each segment that arrives.
        """
        super().__init__((_HOST, 0), socketserver.BaseRequestHandler)
        self.address = f"{_HOST}:{self.server_address[1]}"
        self._segments = segments
        self._thread = threading.Thread(target=self.serve_forever, args=[0.05], name="xray", daemon=True)
        self._thread.start()

    def finish_request(self, request: Any, _sender: Any) -> None:
        """Keep a segment, which follows a line that names the format."""
        packet, _ = request
        self._segments.append(json.loads(packet.split(b"\n", maxsplit=1)[1]))

    def stop(self) -> None:
        """Stop listening."""
        self.shutdown()
        self._thread.join()
        self.server_close()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group that a process leads, and wait until all of its processes are gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + _STOP_SECONDS
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.01)


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as response:
            return bool(response.status == _HTTP_OK)
    except OSError:
        return False


def tail(file: Path) -> str:
    """Return the last lines of a text file."""
    return "\n".join(file.read_text("utf-8", errors="replace").splitlines()[-20:])


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP leave a `with` block like Ctrl-C, so that it cleans up."""
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


class BatchingWindows:
    """Delays a stream's records until a batch is full or its first record has waited for the window.

    The emulator's thread reads the stream of each mapping in turn. Other reads, such as by clients, are not
    delayed.
    """

    def __init__(self, mappings: Any, streams: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """Replace two functions of the emulator.

        Args:
            mappings: The emulator's module of event source mappings.
            streams: Its module of streams.
            clock: Returns the time in seconds.
        """
        self._wake: threading.Event = mappings._esm_wake
        self._each_mapping = mappings._iter_all_esms
        self._records_since = streams.stream_records_since
        self._clock = clock
        # `mapping` is the mapping whose stream the thread reads.
        self._reading = threading.local()
        # Start of the next batch, and the time at which its first record was seen, by mapping.
        self._first_seen: dict[str, tuple[int, float]] = {}
        mappings._iter_all_esms = self._iterate
        streams.stream_records_since = self._full_or_due

    def _iterate(self) -> Iterator[tuple[Any, ...]]:
        for found in self._each_mapping():
            self._reading.mapping = found[-1]
            yield found
        self._reading.mapping = {}

    def _full_or_due(self, table: str, position: int, limit: int, **place: Any) -> list[Any]:
        records: list[Any] = self._records_since(table, position, limit, **place)
        reader: dict[str, Any] = getattr(self._reading, "mapping", {})
        window_seconds = float(reader.get("MaximumBatchingWindowInSeconds") or 0)
        if not records or len(records) >= limit or not window_seconds:
            return records
        mapping, now = str(reader["UUID"]), self._clock()
        begins, seen = self._first_seen.get(mapping, (-1, now))
        if begins != position:
            self._first_seen[mapping], seen = (position, now), now
            timer = threading.Timer(window_seconds, self._wake.set)
            timer.daemon = True
            timer.start()
        return records if now - seen >= window_seconds else []


def with_parents(record: Mapping[str, Any], pattern: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of a stream with an empty level wherever a level of the filter is missing.

    Lambda compares paths to values, so `{"exists": false}` also holds if a part of the path is missing.
    """
    levels = {name: inner for name, inner in pattern.items() if isinstance(inner, dict)}
    parents = {name: with_parents(record.get(name) or {}, inner) for name, inner in levels.items()}
    return {**record, **parents}


def mend_filters(mappings: Any) -> None:
    """Make the emulator's filters match records in which levels are missing.

    Args:
        mappings: The emulator's module of event source mappings.
    """
    matches = mappings._match_esm_filter

    def matches_with_parents(record: Mapping[str, Any], pattern: Mapping[str, Any]) -> bool:
        return bool(matches(with_parents(record, pattern), pattern))

    mappings._match_esm_filter = matches_with_parents


def unpack_once(runtime: Any, folder: Path) -> None:
    """Make the emulator unpack a package once for all processes of functions, which only read it.

    Args:
        runtime: The emulator's module that starts the processes.
        folder: Folder of the unpacked packages, to which processes have links.
    """
    one_at_a_time = threading.Lock()

    class Package(zipfile.ZipFile):
        def extractall(self, path: Any = None, *_options: Any) -> None:
            content = sorted((part.filename, part.CRC) for part in self.infolist())
            kept = folder / sha256(repr(content).encode()).hexdigest()
            with one_at_a_time:
                if not kept.exists():
                    super().extractall(kept.with_suffix(".part"))
                    kept.with_suffix(".part").rename(kept)
            for part in kept.iterdir():
                (Path(path) / part.name).symlink_to(part)

    runtime.zipfile = SimpleNamespace(**{**vars(zipfile), "ZipFile": Package})


def limit_all_versions(lambdas: Any) -> None:
    """Make the emulator apply the reserved concurrency of a function to invocations of its versions.

    Args:
        lambdas: The emulator's module of functions.
    """
    reserved = lambdas._reserved_concurrency

    def of_function(version: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
        function = lambdas._functions.get(config.get("FunctionName")) or version
        found: int | None = reserved(function, config)
        return found

    lambdas._reserved_concurrency = of_function


class TraceHeaders:
    """Gives invocations of traced functions the trace of their callers, also through topics.

    As on Lambda, records of a stream begin a trace: only requests have the header of a trace.
    """

    def __init__(self, lambdas: Any) -> None:
        """Replace the function of the emulator that returns the trace of an invocation.

        Args:
            lambdas: The emulator's module of functions.
        """
        self._new_header = lambdas._xray_trace_id_for_invocation
        self._callers: ContextVar[dict[str, str]] = ContextVar("callers", default={})  # noqa: B039 - read only
        lambdas._xray_trace_id_for_invocation = self._header

    def around(self, app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Return the emulator's application, which then knows the trace of each request."""

        async def traced(scope: Any, receive: Any, send: Any) -> None:
            given = dict(scope.get("headers", ())).get(b"x-amzn-trace-id", b"")
            self._callers.set(_parts(given.decode("latin-1")))
            await app(scope, receive, send)

        return traced

    def _header(self, config: Mapping[str, Any], *_: Any) -> str | None:
        header: str | None = self._new_header(config)
        if header is None:
            return None
        callers = {name: part for name, part in self._callers.get().items() if name in ("Root", "Sampled")}
        return ";".join(f"{name}={part}" for name, part in (_parts(header) | callers).items())


def _parts(header: str) -> dict[str, str]:
    """Return the parts of a trace's header by name."""
    return dict(part.strip().split("=", maxsplit=1) for part in header.split(";") if "=" in part)


class Deliveries:
    """Delivers messages of topics to functions as Lambda does, until an invocation succeeds.

    A throttled message waits until it is too old. A failed invocation is tried again under its request id, as
    often as the function allows. Events that never succeed go to the function's failed-event queue.
    """

    def __init__(
        self,
        topics: Any,
        lambdas: Any,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Replace the function of the emulator that delivers a message in a thread of its own.

        Args:
            topics: The emulator's module of topics.
            lambdas: Its module of functions.
            clock: Returns the time in seconds.
            sleep: Waits for some seconds.
        """
        self._lambdas = lambdas
        self._clock = clock
        self._sleep = sleep
        topics._deliver_to_lambda = self._deliver

    def _deliver(self, arn: str, envelope: str, _topic: str, subscription: str, *_message: Any) -> None:
        function, _, name = self._lambdas._get_base_func_record_for_ref(arn)
        version, config, _ = self._lambdas._get_func_record_for_ref(arn)
        if not version:
            logger.warning("message for %s: there is no such function", arn)
            return
        _, qualifier = self._lambdas._lambda_function_name_and_qualifier_from_arn(arn)
        options = self._lambdas._event_invoke_config(function, qualifier) or {}
        source = {"EventVersion": "1.0", "EventSubscriptionArn": subscription, "EventSource": "aws:sns"}
        event = {"Records": [{**source, "Sns": json.loads(envelope)}]}
        logger.info("message for %s", name)
        failure = self._failure({**version, "config": config}, event, options)
        target = options.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination")
        if failure is not None and target:
            self._lambdas._route_async_failure(target, name, event, failure)

    def _failure(
        self, record: dict[str, Any], event: dict[str, Any], options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Invoke a function until it succeeds; return its last result if it never did."""
        request_id, name = self._lambdas.new_uuid(), record["config"]["FunctionName"]
        retries = options.get("MaximumRetryAttempts", _MAX_RETRIES)
        ends = self._clock() + options.get("MaximumEventAgeInSeconds", _MAX_EVENT_AGE_SECONDS)
        while True:
            result = self._invoke(record, event, request_id)
            if not result.get("error"):
                logger.info("%s answered a message", name)
                return None
            throttled = bool(result.get("throttle"))
            if not throttled:
                logger.warning("%s failed, %d retries left: %s", name, retries, result.get("body"))
                retries -= 1
            if retries < 0 or self._clock() >= ends:
                return result
            self._sleep(_THROTTLED_SECONDS if throttled else _FAILED_SECONDS)

    def _invoke(self, record: dict[str, Any], event: dict[str, Any], request_id: str) -> dict[str, Any]:
        slot, _ = self._lambdas._acquire_execution_slot(record, record["config"])
        if slot is None:
            return {"throttle": True, "error": True, "body": {"errorMessage": "throttled"}}
        try:
            result: dict[str, Any] = self._lambdas._execute_function_dispatch(
                record, record["config"], event, request_id, time.time()
            )
        finally:
            self._lambdas._release_execution_slot(slot)
        return result


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _main(descriptor: int) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config
    from ministack.app import app  # type: ignore[import-untyped]
    from ministack.core import lambda_runtime  # type: ignore[import-untyped]
    from ministack.services import dynamodb, lambda_svc, sns  # type: ignore[import-untyped]

    threading.Thread(target=_end_with_parent, daemon=True).start()
    BatchingWindows(lambda_svc, dynamodb)
    mend_filters(lambda_svc)
    limit_all_versions(lambda_svc)
    Deliveries(sns, lambda_svc)
    traces = TraceHeaders(lambda_svc)
    unpack_once(lambda_runtime, Path(tempfile.mkdtemp()))
    config = Config()
    config.bind = [f"fd://{descriptor}"]
    config.backlog = 1024
    config.keep_alive_timeout = 75
    config.loglevel = "WARNING"
    asyncio.run(serve(traces.around(app), config))


PROJECT: Final = Path(__file__).resolve().parent.parent
STACK: Final = "freshq-local"
# Streams, topics and schedules invoke the version of a function that this alias names (template.yaml).
LIVE_ALIAS: Final = "live"
# Starting a function's process blocks the whole emulator for half a second. Without a limit, a burst of rings
# starts so many processes that no worker runs for half a minute, on a busy machine for longer.
_LOCAL_VALUES: Final[Mapping[str, str | int]] = {"ReservedConcurrency": 3}
_SOURCES: Final = ("template.yaml", "functions", "layers", "events")
_STAMP: Final = "sources.sha256"
_TOOL_SECONDS: Final = 600
_LINES_SHOWN: Final = 30
# Packages of Lambda's Python runtime.
RUNTIME_PACKAGES: Final = (
    *("awslambdaric", "simplejson", "snapshot_restore_py", "snapshot_restore_py.py"),
    *("boto3", "botocore", "s3transfer", "dateutil", "six.py", "urllib3", "jmespath"),
)


class DeployFailed(RuntimeError):
    """A build or a deployment failed; the message ends with the last lines of the tool's output."""


def runtime() -> str:
    """Return Lambda's name for the version of this interpreter."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def architecture() -> str:
    """Return Lambda's name for the processor of this machine."""
    return "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x86_64"


def build(folder: Path, project: Path = PROJECT) -> Path:
    """Build the application for this interpreter and this machine.

    Does nothing if the folder already contains a build of the same sources.

    Args:
        folder: Folder of the build.
        project: Folder of the template.

    Returns:
        The built template.

    Raises:
        DeployFailed: The build failed.
    """
    built, stamp, digest = folder / "application", folder / _STAMP, _digest(project)
    template = built / "template.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # the second of two processes that build the same waits
        fcntl.flock(lock, fcntl.LOCK_EX)
        if template.exists() and stamp.exists() and stamp.read_text("utf-8") == digest:
            return template
        stamp.unlink(missing_ok=True)
        _build(built, project)
        stamp.write_text(digest, "utf-8")
    return template


def _build(built: Path, project: Path) -> None:
    settings = {"LAYER_RUNTIME": "native", "LAYER_PYTHON": sys.executable, "AWS_DEFAULT_REGION": REGION}
    paths = ["--template-file", str(project / "template.yaml"), "--build-dir", str(built)]
    _sam(["build", *_environment(project), *paths, *_overrides({})], os.environ | settings)


def deploy(
    emulator: Emulator,
    template: Path,
    parameters: Mapping[str, str | int] | None = None,
    project: Path = PROJECT,
    stack: str = STACK,
) -> dict[str, str]:
    """Deploy a built application to the emulator, or update it there.

    Args:
        emulator: A running emulator.
        template: The built template.
        parameters: Template parameters that replace the local defaults.
        project: Folder of samconfig.toml.
        stack: Name of the stack.

    Returns:
        The outputs of the stack.

    Raises:
        DeployFailed: The deployment failed.
    """
    arguments = [*_environment(project), "--template-file", str(template), "--stack-name", stack]
    _sam(["deploy", *arguments, *_overrides(parameters or {})], emulator.environment)
    return complete(stack, emulator.connection)


def complete(stack: str, connection: Connection) -> dict[str, str]:
    """Apply settings of a new stack that the emulator's CloudFormation ignores; return its outputs."""
    import boto3  # the emulator's own process does without

    client = boto3.client("cloudformation", **connection)
    (made,) = client.describe_stacks(StackName=stack)["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in made.get("Outputs", [])}
    values = {
        parameter["ParameterKey"]: parameter["ParameterValue"] for parameter in made.get("Parameters", [])
    }
    if not values.get("AttachTable"):  # the application owns an attached table
        boto3.client("dynamodb", **connection).update_time_to_live(
            TableName=outputs["QueueTableName"],
            TimeToLiveSpecification={"Enabled": True, "AttributeName": "ttl"},
        )
    if reserved_concurrency := int(values.get("ReservedConcurrency", 0)):
        boto3.client("lambda", **connection).put_function_concurrency(
            FunctionName=outputs["ProcessTasksFunctionName"],
            ReservedConcurrentExecutions=reserved_concurrency,
        )
    return outputs


def demonstration(capacity: int, task_seconds: float) -> dict[str, str]:
    """Return the template parameter that sets the capacity and the speed of the demonstration downstream."""
    variables = {"FRESHQ_DEMO_CAPACITY": str(capacity), "FRESHQ_DEMO_TASK_SECONDS": str(task_seconds)}
    return {"RunnerEnvironment": json.dumps(variables)}


def template_source(project: Path = PROJECT) -> dict[str, Any]:
    """Return the template with its loops written out, as CloudFormation passes it on to SAM."""
    from samcli.lib.cfn_language_extensions.models import TemplateProcessingContext
    from samcli.lib.cfn_language_extensions.processors import ForEachProcessor
    from samtranslator.yaml_helper import yaml_parse

    context = TemplateProcessingContext(yaml_parse((project / "template.yaml").read_text("utf-8")))
    ForEachProcessor().process_template(context)
    source: dict[str, Any] = _written_out(context.fragment, context.fragment["Mappings"])
    return source


def _written_out(value: Any, mappings: Mapping[str, Any]) -> Any:
    """Return a part of a template with the names and figures that its loops have made constant."""
    match value:
        case {"Fn::Sub": str(text)} if "${" not in text:
            return text
        case {"Fn::FindInMap": [str(mapping), str(first), str(second)]}:
            return mappings[mapping][first][second]
        case dict():
            return {name: _written_out(inner, mappings) for name, inner in value.items()}
        case list():
            return [_written_out(inner, mappings) for inner in value]
    return value


def template_values(parameters: Mapping[str, str | int]) -> dict[str, str]:
    """Return template parameters, completed by the local defaults."""
    here = {"Stage": "local", "Runtime": runtime(), "Architecture": architecture()}
    return {name: str(value) for name, value in {**here, **_LOCAL_VALUES, **parameters}.items()}


def _digest(project: Path) -> str:
    """Return a digest of everything that goes into a build."""
    digest = sha256(f"{sys.version} {architecture()}".encode())
    for source in _SOURCES:
        for file in sorted([project / source, *(project / source).rglob("*")]):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"\0{file.relative_to(project)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _environment(project: Path) -> list[str]:
    return ["--config-file", str(project / "samconfig.toml"), "--config-env", "local"]


def _overrides(parameters: Mapping[str, str | int]) -> list[str]:
    values = template_values(parameters)
    return ["--parameter-overrides", *(f"{name}={json.dumps(value)}" for name, value in values.items())]


def _sam(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the SAM CLI; raise a DeployFailed with its last lines if it fails."""
    with tempfile.TemporaryDirectory(prefix="freshq-sam-") as temporary:
        settings = {"SAM_CLI_TELEMETRY": "0", "SAM_CLI_POLL_DELAY": "0.2", "TMPDIR": temporary}
        process = subprocess.Popen(
            [sys.executable, "-m", "samcli", *arguments],
            env={**environment, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_TOOL_SECONDS)
        except subprocess.TimeoutExpired:
            msg = f"sam {arguments[0]} took more than {_TOOL_SECONDS} s"
            raise DeployFailed(msg) from None
        finally:
            end_group(process)
    if process.returncode != 0:
        lines = output.decode(errors="replace").splitlines()[-_LINES_SHOWN:]
        raise DeployFailed("\n".join([f"sam {arguments[0]} failed:", *lines]))


def runtime_folder(folder: Path) -> Path:
    """Return a folder with only the runtime's packages of this environment."""
    installed = Path(sysconfig.get_paths()["purelib"])
    for pattern in (*RUNTIME_PACKAGES, "runtime_client*.so"):
        for package in installed.glob(pattern):
            (folder / package.name).symlink_to(package)
    return folder


if __name__ == "__main__":
    _main(int(sys.argv[1]))
