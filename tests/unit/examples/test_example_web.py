"""The example of a worker inside a web application: it answers, and SIGTERM loses nothing."""

import http.client
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from local.servers import HOST, free_port

from freshq import Queue, TaskStatus
from tests.support.functions import PROJECT
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, within_seconds

REQUESTS = 20
# After an orderly end, uvicorn raises the signal that it received.
ENDED_BY_SIGTERM = {0, -signal.SIGTERM}


class Application:
    """The example, served by uvicorn in a separate process."""

    def __init__(self, folder: Path) -> None:
        shutil.copy(PROJECT / "examples" / "web" / "app.py", folder)
        self.port = free_port()
        self.log = folder / "log.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "app:app", "--host", HOST, "--port", str(self.port)],
                cwd=folder,
                stderr=log,
            )

    def get(self, path: str) -> Any:
        """Return the answer to a request."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def works(self) -> bool:
        """Return whether it answers that its worker works."""
        try:
            return bool(self.get("/health")["state"] == "working")
        except ConnectionError:
            assert self.process.poll() is None, self.log.read_text()
            return False


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Application]:
    with Queue.sql(f"sqlite:///{tmp_path}/tasks.db") as queue:
        queue.create_table()
    application = Application(tmp_path)
    try:
        assert within_seconds(PATIENCE_SECONDS, application.works)
        yield application
    finally:
        application.process.kill()
        application.process.wait(PATIENCE_SECONDS)


def test_it_answers_with_results_and_drains_at_sigterm(application: Application, tmp_path: Path) -> None:
    answers = [application.get("/quotes/ABC")]
    while "status" not in answers[-1]:  # on a busy machine it may not wait for the result
        answers.append(application.get("/quotes/ABC"))
    assert (answers[-1]["status"], answers[-1]["result"]["price"]) == (TaskStatus.SUCCESS, 42)
    asking: list[threading.Thread] = []

    def ask() -> None:
        with suppress(ConnectionRefusedError, ConnectionResetError):  # it came after the signal
            answers.append(application.get("/quotes/DEF"))

    def asked() -> bool:
        """Ask again if all are answered; return whether some tasks run."""
        if not any(thread.is_alive() for thread in asking):
            new = [threading.Thread(target=ask) for _ in range(REQUESTS)]
            for thread in new:
                thread.start()
            asking.extend(new)
        return bool(application.get("/health")["running"] > 0)

    assert within_seconds(PATIENCE_SECONDS, asked)
    application.process.send_signal(signal.SIGTERM)
    assert application.process.wait(PATIENCE_SECONDS) in ENDED_BY_SIGTERM, application.log.read_text()
    for thread in asking:
        thread.join(PATIENCE_SECONDS)

    assert {answer["status"] for answer in answers if "status" in answer} == {TaskStatus.SUCCESS}
    queue = Queue.sql(f"sqlite:///{tmp_path}/tasks.db")
    standing = counts(queue.stats())
    queue.close()
    assert standing == {"success": len(answers)}
