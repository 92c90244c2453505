"""Several queues in one process: each with its own slots, ended together."""

import threading
from contextlib import closing
from pathlib import Path

from freshq import Handlers, Queue, Task, Worker
from freshq.errors import StoreError
from freshq.queue.core import core_of
from freshq.queue.queue import sibling
from freshq.telemetry import Outcome
from freshq.testing import FaultyStore
from freshq.worker import WorkerOptions, Workers, WorkerState
from freshq.worker.worker import kinds_of
from tests.support.patience import PATIENCE_SECONDS
from tests.support.refusals import refused
from tests.support.worker_threads import wait_until

QUICK: WorkerOptions = {"poll_seconds": 0.01, "idle_exit_seconds": 0.05}


def test_each_has_its_own_slots() -> None:
    both = threading.Barrier(3, timeout=PATIENCE_SECONDS)
    mail = Queue.memory(name="mail")
    quotes = sibling(mail, name="quotes")

    def run(_task: Task) -> None:
        both.wait()  # one task of mail and two of quotes run at a time

    mail.put("work")
    quotes.put_many([{"payload": 1}, {"payload": 2}])
    workers = Workers(
        Worker(mail, run, concurrency=1, poll_seconds=0.01, idle_exit_seconds=0.05),
        Worker(quotes, run, concurrency=2, poll_seconds=0.01, idle_exit_seconds=0.05),
    )
    report = workers.run()
    assert (report.claimed, report.outcomes[Outcome.SUCCEEDED], report.idle) == (3, 3, True)
    assert workers.status().state is WorkerState.ENDED
    assert workers.status().outcomes[Outcome.SUCCEEDED] == 3
    assert (mail.stats().success, quotes.stats().success) == (1, 2)


def test_none_ends_as_idle_while_another_may_put_its_tasks() -> None:
    first = Queue.memory(name="first")
    second = sibling(first, name="second")
    waits = Worker(second, lambda _task: None, **QUICK)

    def put(_task: Task) -> None:
        wait_until(lambda: waits._end_request.idle)
        second.put("work")

    first.put("work")
    report = Workers(waits, Worker(first, put, **QUICK)).run()
    assert report.outcomes[Outcome.SUCCEEDED] == 2
    assert second.stats().success == 1


def test_an_error_of_one_ends_all_after_their_tasks() -> None:
    store = FaultyStore()
    broken, whole = store.queue(name="broken"), Queue.memory(name="whole")
    started, done = threading.Event(), threading.Event()

    def run(_task: Task) -> None:
        started.set()
        assert done.wait(PATIENCE_SECONDS)

    whole.put("work")
    workers = Workers(
        Worker(broken, run, poll_seconds=0.01, give_up_seconds=0.05), Worker(whole, run, poll_seconds=0.01)
    )
    with store.down():
        raised: list[BaseException] = []

        def work() -> None:
            try:
                workers.run()
            except StoreError as error:
                raised.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert started.wait(PATIENCE_SECONDS)
        done.set()
        thread.join(PATIENCE_SECONDS)
    assert len(raised) == 1
    assert whole.stats().success == 1


def test_a_stop_ends_all() -> None:
    mail = Queue.memory(name="mail")
    workers = Workers(
        Worker(mail, print, poll_seconds=0.01), Worker(Queue.memory(), print, poll_seconds=0.01)
    )
    thread = threading.Thread(target=workers.run, daemon=True)
    thread.start()
    wait_until(lambda: workers.status().state is WorkerState.WORKING)
    workers.stop_at_once()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_their_kinds_are_those_of_the_runner() -> None:

    def run(task: Task) -> None:
        del task

    handlers = Handlers()
    for kind in ("quote", "mail"):
        handlers.on(kind)(run)
    with Queue.memory() as queue:
        worker = Worker(queue, handlers)
        assert sorted(kinds_of(worker) or []) == ["mail", "quote"]
        assert kinds_of(Workers(worker)) == kinds_of(worker)
        assert kinds_of(Worker(queue, run)) is None


def test_there_must_be_one() -> None:
    with refused("workers"):
        Workers()


def test_queues_of_a_database_share_its_connections(tmp_path: Path) -> None:
    handlers = Handlers()
    handlers.on("mail")(lambda task: task.queue)
    with closing(Queue.sql(f"sqlite:///{tmp_path / 'tasks.db'}", name="mail")) as mail:
        mail.create_table()
        with closing(sibling(mail, name="quotes", max_age_seconds=5)) as quotes:
            assert quotes.admin.config.max_age_seconds == 5
            for queue in (mail, quotes):
                queue.put("work", kind="mail", task_id="a")
            engines = {core_of(queue).store.database.engine for queue in (mail, quotes)}  # type: ignore[attr-defined]
            assert len(engines) == 1
            Workers(Worker(mail, handlers, **QUICK), Worker(quotes, handlers, **QUICK)).run()
            assert [queue.wait("a").result for queue in (mail, quotes)] == ["mail", "quotes"]
        assert mail.stats().success == 1  # the connections are those of the first
