"""`manage.py freshq_work`: run the tasks of the project's queue."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from django.utils.module_loading import import_string
from typing_extensions import override

from freshq.contrib.django import Project, queue
from freshq.worker.runner import CoroutineRunner

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from freshq.model.answers import Busy
    from freshq.model.task import Task

# Options of `freshq work`, which checks them; and their help.
OPTIONS: Final = {
    "concurrency": "Tasks to run at a time.",
    "processes": "Number of processes. A process that dies is replaced.",
    "max-run-seconds": "Time limit of a run.",
    "rate-per-second": "Maximum number of tasks to start per second.",
    "idle-exit-seconds": "End after this time without a task.",
    "drain-seconds": "How long to wait for running tasks at the end.",
    "health-port": "Port of /live and /ready; 0 for a free one.",
    "health-host": "Address of the health checks.",
}
FLAGS: Final = {
    "verbose": "Also print a line for each run.",
    "text": "Print lines for people, not JSON, into a file or pipe.",
    "dry-run": "Show the tasks that would be claimed, and claim none.",
}


class Command(BaseCommand):
    """Run the handlers that the setting FRESHQ names, by `freshq work`."""

    help = "Run the tasks of the project's queue with the handlers of FRESHQ['HANDLERS']."
    requires_migrations_checks = True

    @override
    def add_arguments(self, parser: Any) -> None:
        """Take the options of `freshq work`."""
        for option, text in OPTIONS.items():
            parser.add_argument(f"--{option}", help=text)
        for flag, text in FLAGS.items():
            parser.add_argument(f"--{flag}", action="store_true", help=text)

    @override
    def handle(self, *_: Any, **given: Any) -> None:
        """Run, and exit with the status of `freshq work`."""
        if not Project.of_settings().handlers:
            raise CommandError("FRESHQ: name the handlers, such as 'HANDLERS': 'shop.tasks.handlers'")
        try:
            _runner()
        except ImportError as error:
            msg = f"FRESHQ: HANDLERS: {error}"
            raise CommandError(msg) from error
        words = [f"{__name__}:runner", "--queue", f"{__name__}:queue"]
        for option in OPTIONS:
            if (value := given[option.replace("-", "_")]) is not None:
                words += [f"--{option}", str(value)]
        words += [f"--{flag}" for flag in FLAGS if given[flag.replace("-", "_")]]
        # Child processes get these arguments, so that they import the project from the same folder.
        sys.argv = ["freshq", "work", *words]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        from freshq.cli.__main__ import main  # noqa: PLC0415 - only this command needs the extra

        main()


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Close Django's broken and expired connections before and after the block, as a request does."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


class DjangoRunner(CoroutineRunner):
    """The project's handlers, with fresh connections for each run in a thread."""

    def __init__(self, handlers: CoroutineRunner) -> None:
        self.codec = handlers.codec
        self._handlers = handlers

    @property
    @override
    def kinds(self) -> list[str] | None:
        return self._handlers.kinds

    @override
    def __call__(self, task: Task) -> Any:
        with fresh_connections():
            return self._handlers(task)

    @override
    def unknown_kind(self, task: Task) -> Busy | None:
        return self._handlers.unknown_kind(task)

    @override
    def has_coroutine(self, task: Task) -> bool:
        return self._handlers.has_coroutine(task)

    @override
    def start(self, task: Task, loop: asyncio.AbstractEventLoop | None = None) -> Future[Any] | None:
        return self._handlers.start(task, loop)


def _runner() -> Callable[[Task], Any]:
    """Return the object that the setting names: handlers, or a function of a task."""
    name = Project.of_settings().handlers.replace(":", ".")
    named = import_string(name)
    if isinstance(named, CoroutineRunner):
        return DjangoRunner(named)

    @wraps(named)
    def run(task: Task) -> Any:
        with fresh_connections():
            return named(task)

    return run


def __getattr__(name: str) -> object:
    """Return the runner; in a new process of `freshq work`, load the project's applications first."""
    if name != "runner":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    str(queue.name)  # sets Django up
    return _runner()
