"""A built function in Lambda's own runtime: the interface client, under the emulator that SAM CLI carries."""

import http.client
import json
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from samtranslator.yaml_helper import yaml_parse

START_SECONDS: Final = 60.0
INVOKE_SECONDS: Final = 100.0
# Each runtime has an address of its own. A free port of an address that is shared may be taken before the
# emulator opens it, also by a connection to a server.
_FIRST_ADDRESS: Final = int(IPv4Address("127.1.0.0"))
_ADDRESSES: Final = int(IPv4Address("127.255.0.0")) - _FIRST_ADDRESS


def emulator() -> Path | None:
    """Return the runtime interface emulator; None on a platform for which there is none."""
    if sys.platform != "linux" or find_spec("awslambdaric") is None:
        return None
    samcli = find_spec("samcli")
    if samcli is None or samcli.origin is None:
        return None
    kind = "arm64" if platform.machine() in {"aarch64", "arm64"} else "x86_64"
    return Path(samcli.origin).parent / "local" / "rapid" / f"aws-lambda-rie-{kind}"


@dataclass(frozen=True)
class Invocation:
    """The result of an invocation: its answer, or the error that Lambda would return."""

    answer: Any

    @property
    def error(self) -> str | None:
        """The message of the error, if there is one."""
        return self.answer.get("errorMessage") if isinstance(self.answer, dict) else None


def declared_variables(template: Path, function: str) -> dict[str, Any]:
    """Return the environment that a built template declares for a function, references unresolved."""
    document = yaml_parse(template.read_text("utf-8"))
    of_all = document["Globals"]["Function"]["Environment"]["Variables"]
    own = document["Resources"][function]["Properties"].get("Environment", {}).get("Variables", {})
    values = {**of_all, **own}
    defaults = {name: each.get("Default") for name, each in document["Parameters"].items()}
    return {
        name: str(defaults[value["Ref"]])
        if isinstance(value, dict) and value.get("Ref") in defaults
        else value
        for name, value in values.items()
    }


class LambdaRuntime:
    """A function's process, for a `with` block. It sees only the artefact and the runtime's packages."""

    def __init__(
        self, application: Path, function: str, packages: Path, environment: Mapping[str, str]
    ) -> None:
        """Run a function.

        Args:
            application: Folder of the built application.
            function: Logical id.
            packages: See `runtime_folder`.
            environment: Its variables.
        """
        task_root = application / function
        layer = application / "FreshqLayer" / "python"
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{layer}:{packages}",
            "PYTHONDONTWRITEBYTECODE": "1",  # /opt and /var/task are read-only
            "LAMBDA_TASK_ROOT": str(task_root),
            "AWS_LAMBDA_FUNCTION_NAME": function,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_LAMBDA_FUNCTION_VERSION": "1",
            "AWS_LAMBDA_FUNCTION_TIMEOUT": "120",
            "AWS_EXECUTION_ENV": f"AWS_Lambda_python{sys.version_info.major}.{sys.version_info.minor}",
            "AWS_LAMBDA_LOG_FORMAT": "JSON",
            **environment,
        }
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process: subprocess.Popen[bytes] | None = None
        self._host = str(IPv4Address(_FIRST_ADDRESS + secrets.randbelow(_ADDRESSES)))
        self._port = 0

    def invoke(self, event: Any) -> Invocation:
        """Invoke the function."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=INVOKE_SECONDS)
        connection.request("POST", "/2015-03-31/functions/function/invocations", json.dumps(event))
        body = connection.getresponse().read()
        connection.close()
        return Invocation(json.loads(body))

    def output(self) -> str:
        """Return its output without the emulator's own lines."""
        written = os.pread(self._output.fileno(), 50_000_000, 0).decode()
        own = ("START RequestId", "END RequestId", "REPORT RequestId")
        return "".join(
            line
            for line in written.splitlines(keepends=True)
            if not line.startswith(own) and "(rapid)" not in line and line.strip()
        )

    def __enter__(self) -> Self:
        program = emulator()
        assert program is not None
        self._port, api_port = self._free_ports()
        self._process = subprocess.Popen(
            [
                *(str(program), "--runtime-interface-emulator-address", f"{self._host}:{self._port}"),
                *("--runtime-api-address", f"{self._host}:{api_port}", "--log-level", "error"),
                *(sys.executable, "-S", "-s", "-m", "awslambdaric", "app.handler"),
            ],
            env=self._environment,
            cwd=self._environment["LAMBDA_TASK_ROOT"],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not (self._listens(self._port) and self._listens(api_port)):
            assert self._process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()

    def _free_ports(self) -> tuple[int, int]:
        with socket.create_server((self._host, 0)) as one, socket.create_server((self._host, 0)) as other:
            return int(one.getsockname()[1]), int(other.getsockname()[1])

    def _listens(self, port: int) -> bool:
        with suppress(OSError), socket.create_connection((self._host, port), timeout=1):
            return True
        return False
