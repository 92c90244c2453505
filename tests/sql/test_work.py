"""`freshq work` as a process: its end, its death, a stop longer than its leases, and a database cut off."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from local.faults import Fault, Proxy

from freshq import Queue, TaskStatus
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known
from tests.support.work_process import APP, Work, until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def queue(sqlite_url: str) -> Iterator[Queue]:
    queue = Queue.sql(sqlite_url)
    yield queue
    queue.close()


@pytest.fixture
def short_leases(sqlite_url: str) -> str:
    """Return the address of the queue with leases that expire soon after their worker died."""
    return f"{sqlite_url}?lease_seconds=1&override=on"


def status_of(queue: Queue, task_id: str) -> TaskStatus:
    task = known(queue, task_id)
    return task.status


def test_the_first_signal_drains_and_nothing_is_lost(folder: Path, queue: Queue, sqlite_url: str) -> None:
    queue.put_many([{"payload": "waits", "task_id": name, "priority": 1} for name in "ab"])
    queue.put("fails", task_id="c")
    with Work(folder, sqlite_url, "--concurrency", "2", "--health-port", "0") as work:
        until(lambda: len(list(folder.glob("started-*"))) == 2)
        until(lambda: work.check("/ready") == 200)
        assert (work.check("/live"), work.check("/nothing")) == (200, 404)
        work.tell()
        work.first("draining", running=2)
        until(lambda: work.check("/ready") == 503)
        assert work.check("/live") == 200
        (folder / "release").touch()
        assert work.process.wait(PATIENCE_SECONDS) == 0
    assert (queue.stats().success, queue.stats().pending) == (2, 1)
    (ended,) = work.all("ended")
    assert (ended["exit_status"], ended["outcomes"]["succeeded"], ended["unfinished"]) == (0, 2, [])
    assert "printed by the runner" in work.errors
    assert any(each["running"] == 2 for status in work.all("status") for each in status["processes"])


def test_the_second_signal_gives_the_tasks_back(folder: Path, queue: Queue, sqlite_url: str) -> None:
    queue.put("waits", task_id="a")
    queue.put("fails", task_id="b")
    with Work(folder, sqlite_url) as work:
        until((folder / "started-a").exists)
        log = work.first("log", level="ERROR")
        until(lambda: status_of(queue, "b") is TaskStatus.PENDING)
        work.tell()
        work.first("draining")
        assert work.end() == 4
    assert "ValueError: no good" in log["traceback"]
    assert "waits" not in str(work.events)
    # On a slow machine the other task may have begun its next attempt.
    assert "a" in work.all("ended")[0]["given_back"]
    task = known(queue, "a")
    assert (task.status, task.attempts) == (TaskStatus.PENDING, 0)


def test_a_process_that_dies_is_replaced_and_its_task_is_done(
    folder: Path, queue: Queue, short_leases: str
) -> None:
    queue.put("dies", task_id="a")
    with Work(folder, short_leases, "--processes", "2", "--health-port", "0") as work:
        killed = work.first("process_ended", exit_status=-signal.SIGKILL)
        assert killed["restart_in_seconds"] > 0
        until(lambda: status_of(queue, "a") is TaskStatus.SUCCESS)
        until(lambda: len(work.all("process_started")) == 3)
        until(lambda: work.check("/ready") == 200)
        assert work.end() == 0
    pids = {each["pid"] for each in work.all("process_started")}
    assert len(pids) == 3
    assert work.process.pid not in pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    task = known(queue, "a")
    assert task.result >= 2


def test_processes_that_all_miss_the_table_end_with_one_error(folder: Path) -> None:
    (folder / "empty.db").touch()
    with Work(folder, f"sqlite:///{folder}/empty.db", "--processes", "2") as work:
        work.first("all_ended")
        assert work.wait() == 3
    died = {each["process"] for each in work.all("process_ended") if each["exit_status"] == 3}
    assert died == {1, 2}
    missing = "freshq: table 'tasks': its table 'tasks_records' does not exist; run `freshq table create`"
    assert work.errors.startswith(missing)
    assert work.errors.count("\n") == 1
    assert work.all("ended")[-1]["error"] in work.errors


def test_a_worker_stopped_for_longer_than_its_lease_leaves_the_task_to_others(
    folder: Path, postgres_engine: sa.Engine
) -> None:
    # Not on SQLite, whose only lock a process may hold when it is stopped.
    url = postgres_engine.url.render_as_string(hide_password=False)
    queue = Queue.sql(url)
    queue.put("waits", task_id="a")
    with Work(folder, f"{url}?lease_seconds=1&override=on") as work:
        until((folder / "started-a").exists)
        work.tell(signal.SIGSTOP)
        (claim,) = until(queue.claim)
        queue.complete(claim, result="by another worker")
        (folder / "release").touch()
        work.tell(signal.SIGCONT)
        queue.put("more", task_id="b")
        until(lambda: status_of(queue, "b") is TaskStatus.SUCCESS)
        assert work.end() == 0
    assert work.all("ended")[0]["outcomes"]["lease_lost"] >= 1
    task = known(queue, "a")
    assert task.result == "by another worker"
    queue.close()


def test_an_outage_of_the_database_is_waited_through(folder: Path, postgres_engine: sa.Engine) -> None:
    url = postgres_engine.url
    assert url.port is not None
    queue = Queue.sql(url.render_as_string(hide_password=False))
    with Proxy(url.port) as proxy:
        through = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        with Work(folder, through, "--health-port", "0") as work:
            until(lambda: work.check("/ready") == 200)
            proxy.fault = Fault.RESET
            until(lambda: work.check("/ready") == 503)
            assert work.check("/live") == 200
            queue.put("more", task_id="a")
            proxy.fault = Fault.NONE
            until(lambda: status_of(queue, "a") is TaskStatus.SUCCESS)
            until(lambda: work.check("/ready") == 200)
            assert work.end() == 0
    assert any("trying again" in each["message"] or "waits" in each["message"] for each in work.all("log"))
    queue.close()
