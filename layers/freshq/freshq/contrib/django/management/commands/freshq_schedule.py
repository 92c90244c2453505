"""`manage.py freshq_schedule`: put the project's tasks that recur."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.utils.module_loading import import_string
from typing_extensions import override

from freshq.contrib.django import Project, queue
from freshq.contrib.django.management.commands.freshq_work import after_setup, fresh_connections, run_freshq
from freshq.errors import quoted
from freshq.feeds.schedules import Schedule

if TYPE_CHECKING:
    from freshq.contrib.django import DjangoQueue

FLAGS: Final = {
    "once": "Fire the due ticks, then exit.",
    "dry-run": "Show the next ticks, and put no tasks.",
}
# Tells the modules of `freshq schedule` which queue --queue names.
QUEUE: Final = "FRESHQ_DJANGO_QUEUE"


class Command(BaseCommand):
    """Put the tasks of the schedules that the setting FRESHQ names, by `freshq schedule`."""

    help = "Put a task for each tick of the schedules of FRESHQ['SCHEDULES']. Several nodes may run it."
    requires_migrations_checks = True

    @override
    def add_arguments(self, parser: Any) -> None:
        """Take the options of `freshq schedule`."""
        text = "Name of the queue; by default the project's. Schedules of Django's tasks belong to their own."
        parser.add_argument("--queue", help=text)
        parser.add_argument("--limit", help="Number of ticks that --dry-run shows.")
        for flag, text in FLAGS.items():
            parser.add_argument(f"--{flag}", action="store_true", help=text)

    @override
    def handle(self, *_: Any, **given: Any) -> None:
        """Fire ticks, and exit with the status of `freshq schedule`."""
        if not Project.of_settings().schedules:
            raise CommandError("FRESHQ: name the schedules, such as 'SCHEDULES': 'shop.tasks.schedules'")
        os.environ[QUEUE] = given["queue"] or ""
        try:
            others = {_queue_of(each) for each in _all()} - {_queue().name}
            if not _schedules():
                msg = f"queue: no schedule is for {quoted(_queue().name)}; use {', '.join(sorted(others))}"
                raise CommandError(msg)
        except (ImportError, ImproperlyConfigured, ValueError) as error:
            msg = f"FRESHQ: SCHEDULES: {error}"
            raise CommandError(msg) from error
        for name in sorted(others):
            self.stderr.write(f"schedules of queue {quoted(name)} need another process, with --queue {name}")
        words = ["schedule", f"{__name__}:schedules", "--queue", f"{__name__}:scheduled"]
        if given["limit"] is not None:
            words += ["--limit", str(given["limit"])]
        run_freshq([*words, *(f"--{flag}" for flag in FLAGS if given[flag.replace("-", "_")])])


def _queue() -> DjangoQueue:
    """Return the queue that gets the tasks."""
    return queue.named(os.environ.get(QUEUE) or Project.of_settings().name)


def _queue_of(schedule: Schedule) -> str:
    return str(getattr(schedule, "queue_name", Project.of_settings().name))


def _all() -> list[Schedule]:
    """Return the schedules of all queues.

    Raises:
        ImportError: If the object that the setting names does not exist.
        ValueError: If it is no list of schedules.
    """
    name = Project.of_settings().schedules
    found = import_string(name.replace(":", "."))
    if not isinstance(found, list | tuple) or not all(isinstance(each, Schedule) for each in found):
        msg = f"{quoted(name)} must be a list of Schedule"
        raise ValueError(msg)
    if not found:
        msg = f"{quoted(name)} is empty; add a schedule"
        raise ValueError(msg)
    return [*found]


def _schedules() -> list[Schedule]:
    """Return the schedules of the queue, whose payloads may query the database for years."""
    return [
        replace(each, payload=fresh_connections()(each.payload))
        for each in _all()
        if _queue_of(each) == _queue().name
    ]


__getattr__ = after_setup(__name__, schedules=_schedules, scheduled=_queue)
