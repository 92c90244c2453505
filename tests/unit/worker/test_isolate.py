"""Tasks run in processes of their own: what a task may do there, how its process ends, and what is left."""

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Self
from unittest.mock import Mock

import psutil  # type: ignore[import-untyped]  # its stubs are no package of ours
import pytest

from freshq import Claim, GroupRule, GroupRules, Handlers, Queue, Task, TaskStatus, Worker
from freshq.errors import LeaseLost
from freshq.model.task import Progress, RunHandle, handle_of
from freshq.telemetry import Outcome, RunReport
from freshq.worker import isolate
from freshq.worker.options import parse_worker_options
from freshq.worker.slot_process import End, Report
from tests.conftest import Clock
from tests.support import isolated
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known
from tests.support.worker_threads import Quiet, wait_until, work_off

OPTIONS: dict[str, Any] = {"isolate": True, "concurrency": 2, "poll_seconds": 0.02, "idle_exit_seconds": 0.1}
# Longer than any run takes to begin; `Limit` lets it pass.
LIMIT_SECONDS = 600
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE)


def processes() -> list[psutil.Process]:
    """Return the processes below this one, except programs that other tests share."""
    return [each for each in psutil.Process().children(recursive=True) if is_ours(each)]


def is_ours(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE) or "slot_process" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    files = psutil.Process().num_fds()
    before = {each.pid for each in processes()}
    yield
    wait_until(lambda: {each.pid for each in processes()} <= before)
    wait_until(lambda: psutil.Process().num_fds() <= files)


@pytest.fixture
def queue() -> Queue:
    return Queue.memory(max_attempts=1)


def done(queue: Queue, *payload: Any, runner: Any = isolated.run, **options: Any) -> Task:
    """Run one task in a process; return it."""
    queue.put([*payload], task_id="a", max_age_seconds=3600)
    Worker(queue, runner, **{**OPTIONS, **options}).run()
    return known(queue, "a")


class Working:
    """A worker in a thread, stopped at the end of the block."""

    def __init__(self, queue: Queue, runner: Any = isolated.run, **options: Any) -> None:
        self.observer = Quiet()
        options = {**OPTIONS, "idle_exit_seconds": None, "observer": self.observer, **options}
        self.worker = Worker(queue, runner, **options)
        self.report: RunReport | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.report = self.worker.run()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.stop_at_once()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def ended(self) -> RunReport:
        """Drain, and return the report."""
        self.worker.stop()
        self._thread.join(PATIENCE_SECONDS)
        assert self.report is not None
        return self.report


def pid_in(file: Path) -> int:
    wait_until(file.exists)
    return int(file.read_text("utf-8"))


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# What many tests look at, run by one worker: payloads by task id.
PAYLOADS: dict[str, list[Any]] = {
    **{f"where {number}": ["where"] for number in range(6)},
    **{f"size {size}": ["echo", "x" * size] for size in (0, 65_536, 200_000)},
    **{f"context {number}": ["context"] for number in range(4)},
    **{f"forks {number}": ["forks"] for number in range(4)},
    **{f"raises {kind}": ["raises", kind] for kind in ("unexpected", "misfit", "retry", "unread", "caused")},
    **{f"dies {number.name}": ["dies", number] for number in SIGNALS},
    "looks": ["looks"],
    "oom": ["oom_score"],
    "copy": ["puts_into_copy"],
    "unpicklable": ["unpicklable"],
    "exits": ["exits"],
    "leaves": ["leaves", 3],
    "closes": ["closes_files"],
    "memory": ["dies", signal.SIGKILL, 150],
    "floods": ["floods", 20_000],
    "alarms": ["alarms", 10],
    "terminates": ["terminates"],
    "logs in forks": ["logs_in_forks"],
}


@pytest.fixture(scope="module")
def work() -> Queue:
    """Return a queue whose tasks have run once, two at a time."""
    queue = Queue.memory(max_attempts=1)
    for task_id, payload in PAYLOADS.items():
        queue.put(payload, task_id=task_id, max_age_seconds=3600)
    report = Worker(queue, isolated.run, **OPTIONS).run()
    assert report.claimed == len(PAYLOADS)
    return queue


def test_processes_are_used_again(work: Queue) -> None:
    pids = {known(work, f"where {number}").result for number in range(6)}
    assert os.getpid() not in pids
    assert len(pids) <= OPTIONS["concurrency"]


def test_a_task_knows_what_it_knows_in_a_thread(work: Queue) -> None:
    result = known(work, "looks").result
    assert 3600 - PATIENCE_SECONDS < result["seconds_left"] <= 3600
    assert {**result, "seconds_left": 0} == {
        "id": "looks",
        "attempts": 1,
        "seconds_left": 0,
        "cancelled": False,
        "parent": "looks",
    }


@pytest.mark.parametrize("size", [0, 65_536, 200_000])
def test_payloads_and_results_of_any_size(work: Queue, size: int) -> None:
    assert known(work, f"size {size}").result == "x" * size


def test_the_kernel_prefers_it_to_the_worker_when_memory_runs_out(work: Queue) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text("ascii"))
    assert known(work, "oom").result == max(own, 100)


def test_each_run_has_a_context_of_its_own(work: Queue) -> None:
    assert {known(work, f"context {number}").result[0] for number in range(4)} == {"unset"}


def test_a_fork_that_returns_answers_nothing(work: Queue) -> None:
    assert all(known(work, f"forks {number}").result > 0 for number in range(4))


def test_a_put_into_a_copy_of_a_queue_in_memory_is_refused(work: Queue) -> None:
    assert "a queue in memory is in the process of its worker" in (known(work, "copy").error or "")


def test_many_reports_end_with_the_last(work: Queue) -> None:
    task = known(work, "floods")
    assert (task.progress_fraction, task.progress_step) == (0.99995, "turn 19999")


def test_signals_of_the_application_interrupt_no_message(work: Queue) -> None:
    assert known(work, "alarms").result == 10


def test_forks_of_a_run_log_too(work: Queue) -> None:
    assert known(work, "logs in forks").result == [300_000] * 12


def test_a_signal_ends_a_fork_of_a_run(work: Queue) -> None:
    assert known(work, "terminates").result == -signal.SIGTERM


def test_what_a_run_takes_and_its_push_back_reach_the_worker() -> None:
    rules = GroupRules(of={"a": GroupRule(units_per_second=1e-3, burst_units=100)})
    queue = Queue.memory(groups=rules)
    queue.put(["takes", 0], group="a", cost=100, max_age_seconds=3600)
    queue.put(["refused_by_provider", "60"], task_id="refused", max_age_seconds=3600)
    report = Worker(queue, isolated.run, **OPTIONS).run()
    assert (report.outcomes[Outcome.SUCCEEDED], report.outcomes[Outcome.RELEASED]) == (1, 1)
    refused = known(queue, "refused")
    assert refused.not_before is not None
    assert refused.not_before - refused.updated == pytest.approx(60)
    queue.put("x", group="a")
    assert len(queue.claim()) == 1  # what the first one did not take came back


def test_at_most_once(queue: Queue) -> None:
    queue.put(["dies", signal.SIGKILL], task_id="a")
    report = Worker(queue, isolated.run, **OPTIONS, at_most_once=True).run()
    assert report.outcomes[Outcome.FAILED] == 1
    assert known(queue, "a").status is TaskStatus.SUCCESS


def test_it_puts_by_a_connection_of_its_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    with Queue.sql(url) as queue:
        queue.create_table()
        assert done(queue, "puts", url).result == "child"
        assert known(queue, "child").parent_id == "a"


def test_its_output_goes_where_the_output_of_the_worker_goes(
    queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    done(queue, "prints")
    out, _err = capfd.readouterr()
    assert sorted(out.split("\n")) == ["", "printed in Python", "written past Python"]


class TestExceptions:
    def test_unexpected_with_its_traceback(self, work: Queue) -> None:
        task = known(work, "raises unexpected")
        assert task.error == "KeyError: 'lost'"
        kept = task.attempt_log[-1].traceback or ""
        assert "isolated.py" in kept
        assert kept.rstrip().endswith("KeyError: 'lost'")

    def test_one_that_cannot_be_pickled(self, work: Queue) -> None:
        assert known(work, "raises misfit").error == "Misfit: one and two"

    @pytest.mark.parametrize(("kind", "error"), [("retry", "later"), ("unread", "one and two")])
    def test_retry(self, work: Queue, kind: str, error: str) -> None:
        assert (known(work, f"raises {kind}").error or "").startswith(error)

    def test_reject_keeps_the_traceback_of_its_cause(self, work: Queue) -> None:
        task = known(work, "raises caused")
        assert (task.status, task.error) == (TaskStatus.FAILURE, "rejected")
        assert "ValueError: the cause" in (task.attempt_log[-1].traceback or "")

    def test_busy_and_the_delay_of_a_retry(self) -> None:
        queue = Queue.memory()
        began = queue.admin.now()
        for kind in ("busy", "retry", "unread"):
            queue.put(["raises", kind], task_id=kind)
        with Working(queue) as working:
            wait_until(lambda: len(working.observer.settlements) >= 3)
        assert ("busy", Outcome.RELEASED, "not now") in working.observer.settlements
        assert known(queue, "busy").attempts == 0
        for kind in ("retry", "unread"):
            assert (known(queue, kind).not_before or 0) >= began + 60

    def test_a_result_that_cannot_be_sent_is_a_dead_letter(self, work: Queue) -> None:
        task = known(work, "unpicklable")
        assert task.status is TaskStatus.FAILURE
        assert (task.error or "").startswith("result: cannot be sent to the worker: ")

    def test_sys_exit_ends_only_the_attempt(self, work: Queue) -> None:
        assert known(work, "exits").error == "SystemExit: 7"

    def test_the_log_has_the_traceback_of_the_other_process(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        done(queue, "raises", "misfit")
        assert "isolated.py" in caplog.text


class TestDeath:
    @pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
    def test_a_signal_is_named_and_costs_one_attempt(self, work: Queue, number: signal.Signals) -> None:
        task = known(work, f"dies {number.name}")
        assert f"its process was killed by {number.name}; peak memory " in (task.error or "")
        assert task.attempts == 1

    def test_peak_memory_is_told(self, work: Queue) -> None:
        error = known(work, "memory").error or ""
        assert 150 <= int(error.partition("peak memory ")[2].split()[0]) < 400
        assert "memory runs out" in error

    def test_an_exit_is_told(self, work: Queue) -> None:
        assert "its process exited with status 3; " in (known(work, "leaves").error or "")

    def test_files_that_a_run_closes_end_its_process(self, work: Queue) -> None:
        assert "its process was killed by SIGKILL" in (known(work, "closes").error or "")

    def test_a_fork_that_is_left_behind_ends_with_a_process_that_dies(
        self, queue: Queue, tmp_path: Path
    ) -> None:
        began = time.monotonic()
        assert "SIGKILL" in (done(queue, "forks_and_dies", str(tmp_path / "pid")).error or "")
        assert time.monotonic() - began < isolated.FOREVER_SECONDS
        group = pid_in(tmp_path / "pid")
        wait_until(lambda: not [each for each in psutil.pids() if _group_of(each) == group])

    def test_idle_processes_that_die_are_replaced(self, queue: Queue) -> None:
        queue.put(["where"], task_id="first")
        with Working(queue, concurrency=1) as working:
            wait_until(lambda: known(queue, "first").status is TaskStatus.SUCCESS)
            os.kill(known(queue, "first").result, signal.SIGKILL)
            queue.put(["where"], task_id="second")
            wait_until(lambda: known(queue, "second").status is TaskStatus.SUCCESS)
            assert working.ended().outcomes[Outcome.SUCCEEDED] == 2
        assert known(queue, "second").result != known(queue, "first").result

    def test_a_template_that_dies_is_replaced(self, queue: Queue, tmp_path: Path) -> None:
        queue.put(["waits", str(tmp_path / "started"), str(tmp_path / "never")], task_id="first")
        with Working(queue, concurrency=1):
            pid = pid_in(tmp_path / "started")
            template = psutil.Process(pid).parent()
            assert template is not None
            template.kill()
            wait_until(lambda: known(queue, "first").status is TaskStatus.FAILURE)
            assert "ended together with" in (known(queue, "first").error or "")
            queue.put(["where"], task_id="second")
            wait_until(lambda: known(queue, "second").status is TaskStatus.SUCCESS)
            assert not is_alive(pid)

    def test_no_process_is_left_by_many_deaths(self, queue: Queue) -> None:
        queue.put_many([{"payload": ["dies", signal.SIGKILL]} for _ in range(30)])
        report = work_off(queue, isolated.run, isolate=True, concurrency=4)
        assert report.outcomes[Outcome.FAILED] == 30

    def test_a_fork_of_the_worker_keeps_none_of_its_files(self, queue: Queue, tmp_path: Path) -> None:
        queue.put(["waits", str(tmp_path / "started"), str(tmp_path / "release")], task_id="a")
        with Working(queue):
            pid_in(tmp_path / "started")
            files = len(list(Path("/proc/self/fd").iterdir()))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the threads of this process
                fork = os.fork()
            if fork == 0:
                os._exit(min(255, files - len(list(Path("/proc/self/fd").iterdir()))))
            closed = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
            (tmp_path / "release").touch()
            wait_until(lambda: known(queue, "a").status is TaskStatus.SUCCESS)
        assert closed >= 4  # the socket of the template, and three of the process

    def test_a_program_that_a_run_leaves_behind_is_no_zombie_at_its_end(self, queue: Queue) -> None:
        queue.put(["leaves_program"], task_id="a")
        with Working(queue, recycle_runs=1):
            wait_until(lambda: known(queue, "a").status is TaskStatus.SUCCESS)
            pid, template = known(queue, "a").result
            program = psutil.Process(pid)
            wait_until(lambda: program.ppid() == template)
            program.kill()
            wait_until(lambda: not program.is_running())
            assert is_alive(template)

    def test_what_is_left_to_the_exit_is_cleaned_up(self, queue: Queue, tmp_path: Path) -> None:
        done(queue, "leaves_to_exit", str(tmp_path / "pid"), str(tmp_path / "cleaned"))
        assert (tmp_path / "cleaned").exists()
        assert not is_alive(pid_in(tmp_path / "pid"))
        done(Queue.memory(), runner=isolated.Registering(str(tmp_path / "template cleaned")))
        assert (tmp_path / "template cleaned").exists()


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


class Limit(Quiet):
    """The clock of time limits, which passes `LIMIT_SECONDS` once a run says that it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.runs, self.passed = list[Task](), False
        self.has_begun: Callable[[], bool] = lambda: False

    def claimed(self, claim: Claim, age_seconds: float) -> None:
        super().claimed(claim, age_seconds)
        self.runs.append(claim.task)

    def reported(self, step: str) -> bool:
        handles = [handle_of(task) for task in [*self.runs]]
        return any(each and each.reported and each.reported.step == step for each in handles)

    def monotonic(self) -> float:
        self.passed = self.passed or self.has_begun()
        return time.monotonic() + LIMIT_SECONDS * self.passed


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    limit = Limit()
    monkeypatch.setattr(isolate, "time", limit)
    return limit


class TestTimeLimit:
    def test_a_run_that_hangs_in_c_is_a_time_out_with_its_last_report(
        self, queue: Queue, limit: Limit
    ) -> None:
        limit.has_begun = lambda: limit.reported("second")
        task = done(queue, "hangs_in_c", max_run_seconds=LIMIT_SECONDS, observer=limit)
        assert task.status is TaskStatus.FAILURE
        assert (task.error or "").startswith("it took longer than 600 s; ")
        assert (task.error or "").endswith("; its last report was 50%, second")
        assert (task.progress_fraction, task.progress_step) == (0.5, "second")

    def test_a_run_that_no_signal_reaches_is_killed(self, queue: Queue, limit: Limit) -> None:
        limit.has_begun = lambda: limit.reported("consuming")
        task = done(queue, "hangs_for_ever", max_run_seconds=LIMIT_SECONDS, observer=limit)
        assert "it took longer than 600 s; its process was killed by SIGKILL" in (task.error or "")
        assert (task.error or "").endswith("; its last report was 25%, consuming")
        assert [task_id for task_id, _seconds in limit.overruns] == ["a"]

    def test_a_regular_expression_without_end(self, queue: Queue, limit: Limit) -> None:
        limit.has_begun = lambda: limit.reported("matching")
        task = done(queue, "hangs_in_regex", max_run_seconds=LIMIT_SECONDS, observer=limit)
        assert (task.error or "").startswith("it took longer than 600 s; ")

    def test_a_run_that_heeds_nothing_is_killed_and_its_slot_goes_on(
        self, queue: Queue, limit: Limit
    ) -> None:
        limit.has_begun = lambda: limit.reported("heedless")
        queue.put(["heeds_nothing"], task_id="b")
        task = done(queue, "where", max_run_seconds=LIMIT_SECONDS, concurrency=1, observer=limit)
        assert task.status is TaskStatus.SUCCESS
        assert "SIGKILL" in (known(queue, "b").error or "")

    def test_a_run_cleans_up_first(self, queue: Queue, tmp_path: Path, limit: Limit) -> None:
        limit.has_begun = (tmp_path / "started").exists
        files = [str(tmp_path / name) for name in ("started", "cleaned")]
        options = {"max_run_seconds": LIMIT_SECONDS, "kill_grace_seconds": PATIENCE_SECONDS}
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
        try:  # the processes do not inherit that
            task = done(queue, "cleans_up", *files, **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        assert task.error == "it took longer than 600 s; it was stopped"
        assert (tmp_path / "cleaned").exists()
        assert "cleans_up" in (task.attempt_log[-1].traceback or "")  # where it was

    def test_a_coroutine_is_cancelled_and_cleans_up(self, queue: Queue, tmp_path: Path, limit: Limit) -> None:
        limit.has_begun = (tmp_path / "started").exists
        files = [str(tmp_path / name) for name in ("started", "cleaned")]
        queue.put(files, task_id="a", kind="waits")
        options = {**OPTIONS, "max_run_seconds": LIMIT_SECONDS, "kill_grace_seconds": PATIENCE_SECONDS}
        Worker(queue, isolated.handlers, **options).run()
        assert known(queue, "a").error == "it took longer than 600 s; it was stopped"
        assert (tmp_path / "cleaned").exists()

    def test_programs_of_the_run_are_killed(self, queue: Queue, tmp_path: Path, limit: Limit) -> None:
        limit.has_begun = (tmp_path / "pid").exists
        done(queue, "starts_program", str(tmp_path / "pid"), max_run_seconds=LIMIT_SECONDS)
        pid = pid_in(tmp_path / "pid")
        wait_until(lambda: not is_alive(pid))
        assert "it took longer than" in str(known(queue, "a").error)


class TestCancelling:
    def test_a_run_that_heeds_it_returns(self, tmp_path: Path, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20)
        queue.put(["heeds_cancel", *(str(tmp_path / name) for name in ("started", "heeded"))], task_id="a")
        with Working(queue, kill_grace_seconds=PATIENCE_SECONDS) as working:
            pid = pid_in(tmp_path / "started")
            queue.cancel("a", force=True)
            clock.advance(15)  # the renewal of its lease finds out
            assert pid_in(tmp_path / "heeded") == pid
            wait_until(lambda: working.worker.status().outcomes[Outcome.CANCELLED] == 1)
            assert is_alive(pid)

    def test_a_run_that_does_not_heed_it_is_killed(self, tmp_path: Path, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20)
        queue.put(["waits", str(tmp_path / "started"), str(tmp_path / "never")], task_id="a")
        with Working(queue) as working:
            pid = pid_in(tmp_path / "started")
            queue.cancel("a", force=True)
            clock.advance(15)
            wait_until(lambda: working.worker.status().outcomes[Outcome.CANCELLED] == 1)
            wait_until(lambda: not is_alive(pid))
        assert known(queue, "a").status is TaskStatus.CANCELLED

    def test_a_worker_that_stops_immediately_gives_the_task_back_and_kills(
        self, queue: Queue, tmp_path: Path
    ) -> None:
        queue.put(["waits", str(tmp_path / "started"), str(tmp_path / "never")], task_id="a")
        with Working(queue) as working:
            pid = pid_in(tmp_path / "started")
            working.worker.stop_at_once()
        assert working.report is not None
        assert working.report.given_back == ["a"]
        assert (known(queue, "a").status, known(queue, "a").attempts) == (TaskStatus.PENDING, 0)
        assert not is_alive(pid)

    def test_a_drain_waits_for_the_run(self, queue: Queue, tmp_path: Path) -> None:
        queue.put(["waits", str(tmp_path / "started"), str(tmp_path / "release")], task_id="a")
        with Working(queue) as working:
            pid = pid_in(tmp_path / "started")
            working.worker.stop()
            os.kill(pid, signal.SIGTERM)  # as a service manager signals every process of a service
            os.kill(pid, signal.SIGINT)
            template = psutil.Process(pid).parent()
            assert template is not None
            template.send_signal(signal.SIGTERM)
            (tmp_path / "release").touch()
            assert working.ended().outcomes[Outcome.SUCCEEDED] == 1
        assert known(queue, "a").result == pid


class TestMessages:
    def test_orders_that_nobody_reads_do_not_keep_the_worker_from_looking_on(self) -> None:
        class Template:
            files: list[int]

            def fork(self, _number: int, files: list[int]) -> None:
                self.files = [os.dup(each) for each in files]

        template: Any = Template()
        slot = isolate._Slot(template, 1)
        run = isolate._Run(1, [RunHandle() for _ in range(1000)], None)
        slot.run = run
        for handle in run.handles:
            handle.lost = LeaseLost("cancelled", task_id="a" * 200)
            handle.why_cancelled = "its task is CANCELLED now"
            slot.look(0.0, None, kill_grace_seconds=5)
        assert run.stops_at == 5
        with Connection(template.files[1]) as orders:
            assert len(orders.recv().states) == 1000
            slot.look(1.0, None, kill_grace_seconds=5)
        for each in (template.files[0], template.files[2]):
            os.close(each)
        slot.forget()

    def test_a_late_report_of_an_earlier_run_is_not_the_next_ones(self) -> None:
        progress = Progress(0.5, "late")
        ended = End([], None, False, [], [], 0)  # noqa: FBT003 - of a tuple
        slot: Any = Mock(receive=Mock(side_effect=[Report(1, 7, progress), Report(2, 0, progress), ended]))
        run = isolate._Run(2, [RunHandle()], None)
        assert isolate._end_of(slot, run) is ended
        assert run.handles[0].reported is progress


class TestRecycling:
    def test_after_a_number_of_runs(self, queue: Queue) -> None:
        queue.put_many([{"payload": ["where"], "task_id": str(number)} for number in range(6)])
        Worker(queue, isolated.run, **{**OPTIONS, "concurrency": 1}, recycle_runs=2).run()
        pids = [known(queue, str(number)).result for number in range(6)]
        assert sorted(pids.count(pid) for pid in set(pids)) == [2, 2, 2]

    def test_after_much_memory(self, queue: Queue) -> None:
        queue.put_many([{"payload": ["where"], "task_id": str(number)} for number in range(2)])
        Worker(queue, isolated.run, **{**OPTIONS, "concurrency": 1}, recycle_mb=1).run()
        assert known(queue, "0").result != known(queue, "1").result

    def test_only_with_isolate(self, queue: Queue) -> None:
        with pytest.raises(ValueError, match="recycle_runs, recycle_mb: only with isolate"):
            Worker(queue, isolated.run, recycle_runs=2)


class TestLogs:
    def test_logs_go_through_the_loggers_of_the_worker(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "isolated.application"):
            done(queue, "logs")
        records = [each for each in caplog.records if each.name == "isolated.application"]
        assert [each.getMessage() for each in records] == ["log of a", "failed"]
        assert vars(records[0])["place"] == "here"
        assert {vars(each)["filtered"] for each in records} == {1}
        assert "ValueError: invalid literal" in (records[1].exc_text or "")

    def test_a_filter_of_the_worker_alone_applies(
        self, queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        logger = logging.getLogger("isolated.application")
        monkeypatch.setattr(logger, "filters", [lambda record: record.msg != "failed", *logger.filters])
        with caplog.at_level(logging.INFO, logger.name):
            done(queue, "logs")
        assert "log of a" in caplog.messages
        assert "failed" not in caplog.messages


class TestHandlers:
    def test_functions_and_coroutines(self, queue: Queue) -> None:
        isolated.plain.put(queue, 2, task_id="a")
        isolated.coroutine.put(queue, 3, task_id="b")
        queue.put(1, kind="other", task_id="c")
        report = Worker(queue, isolated.handlers, **OPTIONS).run()
        assert known(queue, "a").result == 4
        assert known(queue, "b").result[0] == 6
        assert known(queue, "b").result[1] != os.getpid()
        assert report.unknown_kinds["other"] > 0

    def test_the_rules_of_a_kind_hold_when_its_process_dies(self) -> None:
        queue = Queue.memory(max_attempts=1)
        queue.put(-1, kind="plain", task_id="a")
        Worker(queue, isolated.handlers, **OPTIONS).run()
        assert known(queue, "a").status is TaskStatus.PENDING


class TestBatches:
    @pytest.fixture
    def put(self, queue: Queue, limit: Limit) -> Any:
        limit.has_begun = lambda: limit.reported("hangs")

        def put(kind: str, *payloads: Any) -> RunReport:
            for payload in payloads:
                queue.put(payload, kind=kind, task_id=str(payload))
            limit_seconds = LIMIT_SECONDS if "hangs" in payloads else None
            options = {**OPTIONS, "max_run_seconds": limit_seconds, "concurrency": 1, "observer": limit}
            return Worker(queue, isolated.handlers, **options).run()

        return put

    def test_each_task_has_its_answer(self, queue: Queue, put: Any) -> None:
        put("batch", "works", "rejects", "misfit", "well")
        works, well = known(queue, "works").result, known(queue, "well").result
        assert works == ["works", 4, works[2]]
        assert well == ["well", 4, works[2]]
        assert works[2] != os.getpid()
        assert known(queue, "rejects").error == "no"
        assert known(queue, "misfit").error == "Misfit: one and two"
        assert known(queue, "rejects").progress_step == "rejects"

    def test_a_result_that_cannot_be_sent_fails_its_task_only(self, queue: Queue, put: Any) -> None:
        put("batch", "works", "well", "rejects", "unpicklable")
        assert known(queue, "works").status is TaskStatus.SUCCESS
        assert (known(queue, "unpicklable").error or "").startswith("result: cannot be sent to the worker: ")

    def test_a_coroutine(self, queue: Queue, put: Any) -> None:
        put("async batch", 1, 2)
        assert (known(queue, "1").result, known(queue, "2").result) == (2, 4)

    @pytest.mark.parametrize(
        ("payload", "error"),
        [("dies", "its process was killed by SIGKILL"), ("hangs", "it took longer than 600 s")],
    )
    def test_the_death_of_a_process_costs_each_task_one_attempt(
        self, queue: Queue, put: Any, payload: str, error: str
    ) -> None:
        tasks = ("works", "well", "rejects", payload)
        report = put("batch", *tasks)
        for task_id in tasks:
            task = known(queue, task_id)
            assert (task.status, task.attempts) == (TaskStatus.FAILURE, 1)
            assert (task.error or "").startswith(error)
        assert len(report.overran) == (4 if payload == "hangs" else 0)


class TestWrongRunners:
    @pytest.mark.parametrize(
        "runner",
        [lambda _task: None, Handlers(), isolated.Callable_(threading.Lock()).method],
        ids=["lambda", "handlers", "method"],
    )
    def test_it_must_be_importable(self, queue: Queue, runner: Any) -> None:
        with pytest.raises(ValueError, match=r"^runner: cannot be used by another process \(.*with isolate"):
            Worker(queue, runner, isolate=True)

    def test_an_error_of_its_import_is_told_before_a_claim(
        self, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "only_here.py").write_text(
            "import os\nif os.getpid() != int(os.environ['OWNER']): raise KeyError('not here')\n"
            "def run(task): pass\n",
            "utf-8",
        )
        monkeypatch.setenv("OWNER", str(os.getpid()))
        monkeypatch.syspath_prepend(str(tmp_path))
        import only_here  # type: ignore[import-not-found]  # noqa: PLC0415 - just written

        queue.put(1, task_id="a")
        worker = Worker(queue, only_here.run, **OPTIONS)
        with pytest.raises(ValueError, match="another process cannot import it \\(KeyError: 'not here'\\)"):
            worker.run()
        assert known(queue, "a").attempts == 0

    def test_not_with_transaction(self, queue: Queue) -> None:
        with pytest.raises(ValueError, match="isolate: not with transaction"):
            Worker(queue, isolated.run, isolate=True, transaction=True)

    def test_objects_that_can_be_pickled(self, queue: Queue) -> None:
        assert done(queue, runner=isolated.Callable_([1])).result == "[1]"

    def test_an_interactive_session(self) -> None:
        program = (
            "from freshq import Queue, Worker\n"
            "def run(task): pass\n\n"
            "try: Worker(Queue.memory(), run, isolate=True)\n"
            "except ValueError as error: print(error)\n\n"
        )
        shown = subprocess.run(
            [sys.executable, "-i"], input=program + "\n", capture_output=True, text=True, check=True
        )
        assert "is defined in an interactive session" in shown.stdout + shown.stderr


class TestShortage:
    def test_a_task_waits_for_a_process(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        fails = iter([True])

        def fork(self: Any, number: int, files: list[int]) -> None:
            if next(fails, False):
                raise OSError(24, "Too many open files")
            original(self, number, files)

        original = isolate._Template.fork
        monkeypatch.setattr(isolate._Template, "fork", fork)
        queue.put(["echo", 1], task_id="a")
        with Working(queue) as working:
            wait_until(lambda: known(queue, "a").status is TaskStatus.SUCCESS)
        assert known(queue, "a").attempts == 1
        assert working.observer.settlements[0][1] is Outcome.RELEASED


def test_handlers_are_found_by_their_module_and_name() -> None:
    for each in (isolated.handlers, isolated.plain):
        assert pickle.loads(pickle.dumps(each)) is each  # noqa: S301 - our own
    with pytest.raises(pickle.PicklingError, match="not a global variable of a module"):
        pickle.dumps(Handlers())


def test_the_main_module_is_imported_under_either_name(monkeypatch: pytest.MonkeyPatch) -> None:
    program: Any = ModuleType("__main__")
    program.__file__ = "/shop/work.py"
    monkeypatch.setitem(sys.modules, "__main__", program)
    of_main, of_child, of_module = (
        isolate._setup(name).main for name in (b"__main__", b"__mp_main__", b"app")
    )
    assert of_main == of_child
    assert of_main != of_module


def test_a_forked_child_closes_its_copies_of_the_files(queue: Queue) -> None:
    class Slot:
        is_forgotten = False

        def forget(self) -> None:
            self.is_forgotten = True

    slot: Any = Slot()
    config = parse_worker_options({"isolate": True})
    with isolate.IsolatedRunner(isolated.run, config, queue.admin.now) as runner:
        runner._slots.add(slot)
        runner.forget_parent()
        runner._slots.clear()
        assert slot.is_forgotten
        assert runner._template is not None
        assert runner._template._control.fileno() == -1
