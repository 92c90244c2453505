"""`freshq work` as a separate process, and its output."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from tests.support.patience import PATIENCE_SECONDS

QUICK: Final = ("--poll-seconds", "0.02", "--status-seconds", "0")

# The payload decides what the runner of these tests does.
APP: Final = """
import os, pathlib, signal, time

def run(task):
    if task.payload == "waits":
        pathlib.Path(f"started-{task.task_id}").touch()
        while not pathlib.Path("release").exists():
            time.sleep(0.01)
    elif task.payload == "dies" and task.attempts == 1:
        os.write(1, b'{"time": 1, "event": "status"}\\n')  # as another program, such as one that it starts
        os.kill(os.getpid(), signal.SIGKILL)
    elif task.payload == "fails":
        raise ValueError("no good")
    print("printed by the runner")
    return task.attempts
"""


def until(condition: Callable[[], Any]) -> Any:
    """Return the value of a condition once it is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)
    return value


class Work:
    """A `freshq work` in a folder, in a `with` block. Every line that it prints must be JSON."""

    def __init__(
        self, folder: Path, address: str, *options: str, runner: str = "app:run", **environment: str
    ) -> None:
        self._folder = folder
        self._command = [
            *(sys.executable, "-P", "-m", "freshq.cli", "work", runner),
            *(("--queue", address) if address else ()),
            *(*QUICK, *options),
        ]
        self._environment: Mapping[str, str] | None = environment or None
        self.events: list[dict[str, Any]] = []
        self.errors = ""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        self._readers = [threading.Thread(target=each) for each in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.wait()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.events.append(json.loads(line))

    def _read_errors(self) -> None:
        self.errors = self.process.stderr.read() if self.process.stderr else ""

    def wait(self) -> int:
        """Wait for the end; return the exit status."""
        status = self.process.wait(PATIENCE_SECONDS)
        for reader in self._readers:
            reader.join(PATIENCE_SECONDS)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return status

    def all(self, event: str) -> list[dict[str, Any]]:
        """Return the events of a kind so far."""
        return [each for each in self.events if each["event"] == event]

    def first(self, event: str, **values: Any) -> dict[str, Any]:
        """Wait for an event with these values, and return it."""

        def found() -> list[dict[str, Any]]:
            if self.process.poll() is not None:
                for reader in self._readers:
                    reader.join(PATIENCE_SECONDS)  # the last lines may not have been read
                assert self.all(event), self.errors
            return [each for each in self.all(event) if values.items() <= each.items()]

        first: dict[str, Any] = until(found)[0]
        return first

    def tell(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Ask for the end; return the exit status."""
        self.tell()
        return self.wait()

    def check(self, path: str) -> int:
        """Return the status of a health check."""
        return self.page(path)[0]

    def page(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a page beside the health checks."""
        port = self.first("started")["health_port"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
