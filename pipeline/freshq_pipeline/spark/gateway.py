"""The process of Java: its start, the connection to it, and its end."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import PipelineError
from freshq_pipeline.spark.interrupts import held_signals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

JAVA_END_SECONDS: Final = 60
_POLL_SECONDS: Final = 0.02
# After a lost connection, Java that runs longer than this counts as alive.
_LOST_SECONDS: Final = 5
# Java and PySpark agree on these names.
_INFO: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_PORT: Final = "PYSPARK_GATEWAY_PORT"
_SECRET: Final = "PYSPARK_GATEWAY_SECRET"  # noqa: S105 - the name of a variable
# The running processes, for the handler of signals.
_RUNNING: Final[list[Java]] = []


class Java:
    """A Java that waits for calls from PySpark, from the start to the end of a `with` block.

    It is in a session of its own, so that the terminal's Ctrl-C does not reach it.

    Attributes:
        log: File with its output.
        ended_well: Whether it exited by itself with status 0.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        """Prepare the start.

        Args:
            command: Program and arguments.
            environment: The whole environment.
            folder: Working folder, for the log and whatever has a relative path.
        """
        self._command, self._folder = list(command), folder
        self._info = folder / "connection"
        self._environment = {**environment, _INFO: str(self._info)}
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "java.log"
        self.ended_well = False

    def __enter__(self) -> Self:
        """Start Java."""
        try:
            with held_signals(), self.log.open("wb") as log:
                self._process = subprocess.Popen(  # noqa: S603 - no shell
                    self._command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self._folder,
                    env=self._environment, start_new_session=True,
                )  # fmt: skip
                _RUNNING.append(self)
        except BaseException:  # a signal, which `held_signals` raised
            self.kill()
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End Java, which exits when its standard input closes, and wait until it has."""
        process = self._process
        if process is None or process.stdin is None:
            return
        with held_signals(self.kill):
            process.stdin.close()
            try:
                self.ended_well = process.wait(timeout=JAVA_END_SECONDS) == 0
            except subprocess.TimeoutExpired:  # everything is written by now
                self.kill()
                process.wait()
            _RUNNING.remove(self)

    def kill(self) -> None:
        """End Java immediately, if it runs; its Python workers end with it."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def connect(self) -> Any:
        """Wait until Java takes calls; return PySpark's gateway to it.

        Raises:
            PipelineError: If Java ended instead.
        """
        from pyspark import java_gateway

        while not self._info.exists():
            if self._process is None or self._process.poll() is not None:
                msg = f"Spark did not start: {self.reason()}"
                raise PipelineError(msg)
            time.sleep(_POLL_SECONDS)
        with self._info.open("rb") as info:
            port, length = struct.unpack("!ii", info.read(8))
            secret = info.read(length).decode()
        os.environ |= {_PORT: str(port), _SECRET: secret}
        try:
            return java_gateway.launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ[_PORT], os.environ[_SECRET]

    def has_ended(self) -> bool:
        """Return whether a lost connection means that Java has ended; its sockets close a moment earlier."""
        try:
            return self._process is None or self._process.wait(timeout=_LOST_SECONDS) is not None
        except subprocess.TimeoutExpired:
            return False

    def reason(self) -> str:
        """Return in one line why Java ended."""
        from freshq_pipeline.spark.failures import start_failure

        status = 0 if self._process is None else self._process.wait()
        if status == -signal.SIGKILL:
            return "Java was killed, probably because memory ran short; give it less by --memory"
        ended = f"Java ended with status {status}"
        return start_failure(self.log.read_text(errors="replace")) or ended


@contextmanager
def lost_connections_unlogged() -> Iterator[None]:
    """Have Py4J log lost connections with its own logger, which is silent unless the program configures it.

    By itself it logs them with the root logger: a stack trace for each connection that the end of Java reset.
    Whoever lost Java says so in one line.
    """
    from py4j import java_gateway

    module: Any = java_gateway
    before, module.logging = module.logging, module.logger
    try:
        yield
    finally:
        module.logging = before


def kill_java() -> None:
    """End every Java immediately: a signal must not wait for calls to it."""
    for java in _RUNNING:
        java.kill()
