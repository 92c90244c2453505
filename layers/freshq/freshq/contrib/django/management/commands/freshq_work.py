"""`manage.py freshq_work`: run the tasks of the project's queues."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections, connections
from django.utils.module_loading import import_string
from typing_extensions import override

from freshq.contrib.django import Project, forget_queue, queue, task_backends
from freshq.errors import quoted
from freshq.worker.handlers import Handlers
from freshq.worker.options import WorkerConfig
from freshq.worker.runner import CoroutineRunner, DelegatingRunner, checked_runner

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from freshq.model.answers import Busy
    from freshq.model.task import Task
    from freshq.queue.queue import Queue

# The options of a worker that `freshq work` takes.
OF_WORKER: Final = (
    *("max_run_seconds", "kill_grace_seconds", "recycle_runs", "recycle_mb", "rate_per_second"),
    *("poll_seconds", "idle_exit_seconds", "give_up_seconds", "drain_seconds"),
)
# Options of `freshq work`, which checks them; and their help.
OPTIONS: Final = {
    "concurrency": "Tasks to run at a time, of each queue; or by queue, such as default=2,mail=10.",
    "limit_lowest": "Lower bound of the tasks that all workers of a queue run at a time.",
    "limit_highest": "Upper bound. Between the bounds the limit adapts to push-back from the downstream.",
    "processes": "Number of processes. A process that dies is replaced.",
    **{name: str(WorkerConfig.model_fields[name].description) for name in OF_WORKER},
    "health_port": "Port of /live, /ready and /metrics; 0 for a free one.",
    "health_host": "Address of that port.",
    "status_seconds": "Time between two status lines of JSON.",
}
FLAGS: Final = {
    "isolate": "Run each task in a process that can be killed.",
    "verbose": "Also print a line for each run.",
    "text": "Print lines for people, not JSON, into a file or pipe.",
    "dry-run": "Show the tasks that would be claimed, and claim none.",
}


# Tells the processes of a command the queues that its --queue names, by spaces.
QUEUES: Final = "FRESHQ_DJANGO_QUEUES"


class Command(BaseCommand):
    """Run the handlers that the setting FRESHQ names, and Django's tasks, by `freshq work`."""

    help = "Run Django's tasks, and the tasks of the project's queue with the handlers of FRESHQ['HANDLERS']."
    requires_migrations_checks = True

    @override
    def add_arguments(self, parser: Any) -> None:
        """Take the options of `freshq work`."""
        text = "Name of a queue to work; may be repeated. By default all of them."
        parser.add_argument("--queue", action="append", default=[], help=text)
        for option, text in OPTIONS.items():
            parser.add_argument(f"--{option.replace('_', '-')}", help=text)
        for flag, text in FLAGS.items():
            parser.add_argument(f"--{flag}", action="store_true", help=text)

    @override
    def handle(self, *_: Any, **given: Any) -> None:
        """Run, and exit with the status of `freshq work`."""
        if not Project.of_settings().handlers and not task_backends():
            raise CommandError(
                "FRESHQ: name the handlers, such as 'HANDLERS': 'shop.tasks.handlers'; or let Django's tasks "
                "use freshq, by TASKS = {'default': {'BACKEND': 'freshq.contrib.django.tasks.FreshqBackend'}}"
            )
        os.environ[QUEUES] = " ".join(given["queue"])
        try:
            _queues()
        except (ValueError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        try:
            _runner()
        except (ImportError, ValueError) as error:
            msg = f"FRESHQ: HANDLERS: {error}"
            raise CommandError(msg) from error
        words = ["work", f"{__name__}:runner", "--queue", f"{__name__}:queues"]
        for option in OPTIONS:
            if given[option] is not None:
                words += [f"--{option.replace('_', '-')}", str(given[option])]
        words += [f"--{flag}" for flag in FLAGS if given[flag.replace("-", "_")]]
        run_freshq(words)


def run_freshq(words: list[str]) -> None:
    """Run a command of `freshq` that imports modules of the project, and exit with its status."""
    own = sys.argv
    # Child processes get these arguments, so that they import the project from the same folder.
    sys.argv = ["freshq", *words]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    from freshq.cli.__main__ import main  # noqa: PLC0415 - only these commands need the extra

    try:
        main()
    finally:  # a test may go on after `call_command`
        sys.argv = own
        forget_queue()  # as it was closed


def after_setup(module: str, **made: Callable[[], object]) -> Callable[[str], object]:
    """Return a module's `__getattr__` for objects that `freshq` names: a new process sets Django up first."""

    def attribute(name: str) -> object:
        if name not in made:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        str(queue.name)  # sets Django up
        return made[name]()

    return attribute


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Close Django's broken and expired connections before and after the block, as a request does."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


class DjangoRunner(DelegatingRunner):
    """Runs Django's tasks, and other tasks by the project's handlers, with fresh connections for each run.

    Coroutines of handlers have none.
    """

    def __init__(self, named: Callable[[Task], Any]) -> None:
        """Use the handlers, or the function of a task, that the project names."""
        super().__init__(named)
        self._has_tasks = bool(task_backends())

    @override
    def __reduce__(self) -> tuple[Callable[[], DjangoRunner], tuple[()]]:
        """Return how the processes of runs get it: they load the applications first."""
        return _runner_elsewhere, ()

    def _is_of_django(self, task: Task) -> bool:
        if not self._has_tasks or task.kind in (self._runner.kinds or ()):
            return False
        from freshq.contrib.django.tasks import is_of_django  # noqa: PLC0415 - Django may have no tasks

        return is_of_django(task)

    @property
    @override
    def kinds(self) -> list[str] | None:
        return None if self._has_tasks else self._runner.kinds

    @override
    def __call__(self, task: Task) -> Any:
        with fresh_connections():
            if not self._is_of_django(task):
                return self._runner(task)
            from freshq.contrib.django.tasks import run  # noqa: PLC0415 - as above

            return run(task)

    @override
    def unknown_kind(self, task: Task) -> Busy | None:
        return None if self._is_of_django(task) else self._runner.unknown_kind(task)

    @override
    def note_rules(self, task: Task) -> None:
        if not self._is_of_django(task):
            self._runner.note_rules(task)

    @override
    def has_coroutine(self, task: Task) -> bool:
        return self._runner.has_coroutine(task)

    @override
    def start(self, task: Task, loop: asyncio.AbstractEventLoop | None = None) -> Future[Any] | None:
        return self._runner.start(task, loop)

    @override
    def run_batch(self, tasks: Sequence[Task]) -> Sequence[Any]:
        with fresh_connections():
            return self._runner.run_batch(tasks)

    @override
    def start_batch(
        self, tasks: Sequence[Task], loop: asyncio.AbstractEventLoop | None = None
    ) -> Future[Any] | None:
        return self._runner.start_batch(tasks, loop)


def _runner() -> DjangoRunner:
    """Return what runs tasks: Django's tasks, and the object that the setting names.

    Raises:
        ImportError: If that does not exist.
        ValueError: If it is no function of a task.
    """
    name = Project.of_settings().handlers.replace(":", ".")
    named = import_string(name) if name else Handlers()
    return DjangoRunner(named if isinstance(named, CoroutineRunner) else checked_runner(named))


def _runner_elsewhere() -> DjangoRunner:
    """Return the runner in another process, whose forks share no connection with it."""
    str(queue.name)  # sets Django up
    runner = _runner()
    connections.close_all()
    return runner


def _queues() -> list[Queue]:
    """Return the queues to work.

    Raises:
        ValueError: If there is no queue with a name that was given.
    """
    project = Project.of_settings()
    names = project.queue_names(own=bool(project.handlers))
    chosen = os.environ.get(QUEUES, "").split()
    takes_any = any(each.get("QUEUES") == [] for each in task_backends())
    for name in chosen:
        if name not in names and not takes_any:
            msg = f"queue: there is no queue {quoted(name)}; use {', '.join(names)}"
            raise ValueError(msg)
    return [queue.named(name) for name in dict.fromkeys(chosen or names)]


__getattr__ = after_setup(__name__, runner=_runner, queues=_queues)
