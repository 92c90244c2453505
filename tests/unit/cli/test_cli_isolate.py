"""`freshq work --isolate`: signals, the death of the worker, and its output."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # its stubs are no package of ours
import pytest
from typer.testing import CliRunner

from freshq import Queue, TaskStatus
from freshq.cli.main import app
from tests.support.readings import known
from tests.support.work_process import Work, until

APP = """
import collections, itertools, os, pathlib, signal, subprocess, time
from freshq import Handlers

handlers = Handlers()

def run(task):
    name, *arguments = task.payload
    return globals()[name](task, *arguments)

def waits(task):
    pathlib.Path(f"{task.task_id}.new").write_text(str(os.getpid()))
    pathlib.Path(f"{task.task_id}.new").rename(f"started-{task.task_id}")
    while not pathlib.Path("release").exists():
        time.sleep(0.01)
    return "done"

def hangs(task):
    subprocess.Popen(["sleep", "600"])
    pathlib.Path(f"{task.task_id}.new").write_text(str(os.getpid()))
    pathlib.Path(f"{task.task_id}.new").rename(f"started-{task.task_id}")
    collections.deque(itertools.repeat(None), maxlen=0)

def noisy(task):
    print("printed by the runner")
    os.write(1, b'{"time": 1, "event": "status"}')
    return os.getpid()

def dies(task):
    if task.attempts == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return task.attempts

@handlers.on("kind")
async def kind(task, payload: int) -> int:
    return payload + 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP, "utf-8")
    return tmp_path


@pytest.fixture
def queue(sqlite_url: str) -> Queue:
    return Queue.sql(sqlite_url)


def started(folder: Path, task_id: str) -> psutil.Process:
    """Return the process that runs a task."""
    file = folder / f"started-{task_id}"
    until(file.exists)
    return psutil.Process(int(file.read_text("utf-8")))


def is_gone(process: Any) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.matrix("processes")
@pytest.mark.parametrize("processes", ["2", "1"])
def test_tasks_run_and_only_events_are_printed(
    folder: Path, queue: Queue, sqlite_url: str, processes: str
) -> None:
    for task_id in ("noisy", "dies"):
        queue.put([task_id], task_id=task_id)
    options = ("--isolate", "--processes", processes, "--max-run-seconds", "60", "--recycle-runs", "5")
    with Work(folder, sqlite_url, *options) as work:
        until(lambda: all(known(queue, each).status is TaskStatus.SUCCESS for each in ("noisy", "dies")))
        assert work.end() == 0
    assert "printed by the runner" in work.errors
    assert known(queue, "dies").result == 2
    (log,) = [each for each in work.all("log") if "SIGSEGV" in each["message"]]
    assert log["task_id"] == "dies"


def test_handlers_are_found_by_their_name(folder: Path, queue: Queue, sqlite_url: str) -> None:
    queue.put(1, kind="kind", task_id="a")
    options = ("--isolate", "--idle-exit-seconds", "0.3")
    with Work(folder, sqlite_url, *options, runner="app:handlers") as work:
        assert work.wait() == 0
    assert known(queue, "a").result == 2


@pytest.mark.matrix("number")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_every_process_lets_runs_end(
    folder: Path, queue: Queue, sqlite_url: str, number: signal.Signals
) -> None:
    queue.put(["waits"], task_id="a")
    with Work(folder, sqlite_url, "--isolate") as work:
        slot = started(folder, "a")
        template = slot.parent()
        for each in (slot, template):
            each.send_signal(number)
        work.tell(number)
        work.first("draining")
        (folder / "release").touch()
        assert work.wait() == 0
    assert known(queue, "a").result == "done"
    assert all(map(is_gone, (slot, template)))


def test_a_second_signal_gives_the_task_back_and_kills_its_run(
    folder: Path, queue: Queue, sqlite_url: str
) -> None:
    queue.put(["hangs"], task_id="a")
    with Work(folder, sqlite_url, "--isolate") as work:
        slot = started(folder, "a")
        work.tell()
        work.first("draining")
        assert work.end() == 4
    assert (known(queue, "a").status, known(queue, "a").attempts) == (TaskStatus.PENDING, 0)
    until(lambda: is_gone(slot))


def test_nothing_outlives_a_worker_that_is_killed(folder: Path, queue: Queue, sqlite_url: str) -> None:
    queue.put(["hangs"], task_id="a")
    queue.put(["waits"], task_id="b")
    with Work(folder, sqlite_url, "--isolate") as work:
        slots = [started(folder, each) for each in ("a", "b")]
        template, programs = slots[0].parent(), slots[0].children()
        assert len(programs) == 1
        os.kill(work.process.pid, signal.SIGKILL)
        work.wait()
    until(lambda: all(map(is_gone, (*slots, *programs, template))))


def test_a_template_that_still_imports_ends_with_the_worker(folder: Path, sqlite_url: str) -> None:
    (folder / "slow.py").write_text(
        "import os, pathlib, time\n"
        "if pathlib.Path('imported').exists():\n"
        "    pathlib.Path('new').write_text(str(os.getpid()))\n"
        "    pathlib.Path('new').rename('started-slow')\n"
        "    time.sleep(600)\n"
        "pathlib.Path('imported').touch()\n"
        "def run(task): pass\n",
        "utf-8",
    )
    with Work(folder, sqlite_url, "--isolate", runner="slow:run") as work:
        template = started(folder, "slow")
        os.kill(work.process.pid, signal.SIGKILL)
        work.wait()
    until(lambda: is_gone(template))


def test_a_worker_of_the_application(folder: Path, queue: Queue, sqlite_url: str) -> None:
    with (folder / "app.py").open("a", encoding="utf-8") as file:
        file.write("from freshq import Queue, Worker\n")
        file.write(
            f"worker = Worker(Queue.sql({sqlite_url!r}), handlers, isolate=True, idle_exit_seconds=0.3)\n"
        )
    queue.put(1, kind="kind", task_id="a")
    command = [sys.executable, "-P", "-m", "freshq.cli", "work", "app:worker"]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    assert known(queue, "a").result == 2


@pytest.mark.parametrize(
    ("guard", "runner"),
    [("if __name__ == '__main__': ", "run"), ("if __name__ == '__main__': ", "handlers"), ("", "run")],
)
def test_a_runner_in_the_main_module(folder: Path, guard: str, runner: str) -> None:
    program = (
        "from freshq import Handlers, Queue, Worker\n"
        "def run(task): return 1\n"
        "handlers = Handlers()\n"
        "handlers.on('kind')(run)\n"
        f"{guard}print(Worker(Queue.memory(), {runner}, isolate=True, idle_exit_seconds=0).run().claimed)\n"
    )
    (folder / "script.py").write_text(program, "utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stdout == ("0\n" if guard else "")
    assert ("do so in if __name__ == '__main__'" in done.stderr) is not bool(guard)


def test_a_runner_that_no_module_has_is_refused(folder: Path, sqlite_url: str) -> None:
    (folder / "wrong.py").write_text("run = lambda task: None\n", "utf-8")
    with Work(folder, sqlite_url, "--isolate", runner="wrong:run") as work:
        assert work.wait() == 2
    assert "runner: cannot be used by another process" in work.errors
    assert "with isolate it must be a function of a module" in work.errors


def test_options_that_contradict_each_other(
    sqlite_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for options, message in (
        (["--isolate", "--transaction"], "isolate: not with transaction"),
        (["--recycle-mb", "100"], "recycle_runs, recycle_mb: only with isolate"),
    ):
        answer = CliRunner().invoke(app, ["work", "app:run", "--queue", sqlite_url, *options])
        assert answer.exit_code == 2
        assert message in answer.stderr
