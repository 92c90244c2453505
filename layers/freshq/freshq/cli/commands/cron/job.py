"""Runs `freshq cron`: fires until a signal, fires once, or only shows the next ticks."""

from __future__ import annotations

import heapq
import os
import sys
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn
from zoneinfo import ZoneInfo

from freshq.cli.errors import exit_status
from freshq.cli.process.ending import ControlChannel, WorkStatus, end_process, run_until_told
from freshq.cli.process.report import JsonLines, report_log
from freshq.cli.texts import span
from freshq.errors import FreshqError, RefusedError, StoreError, TableMissing
from freshq.feeds.schedules import Cron, Schedule, Scheduler
from freshq.queue.attached import AttachedQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from freshq.cli.process.report import Reporter
    from freshq.cli.session import Session
    from freshq.model.answers import Receipt


def show_next(session: Session, schedules: Sequence[Schedule], limit: int) -> None:
    """Print the next ticks of all schedules, in order, and put nothing.

    Raises:
        ValueError: If two schedules have the same name.
        StoreError: If the store, whose clock decides, did not answer.
    """
    Scheduler(session.queue, schedules)
    now = session.queue.now()
    coming = heapq.merge(
        *([(tick, n) for tick in islice(each.when.ticks(now), limit)] for n, each in enumerate(schedules))
    )
    ticks = [_tick(schedules[number], tick) for tick, number in islice(coming, limit)]
    lines = (f"{tick['at']}  in {span(tick['tick'] - now)}  {tick['task_id']}" for tick in ticks)
    session.output.answer(ticks, *(lines if ticks else ["no tick to come"]))


def _tick(schedule: Schedule, tick: float) -> dict[str, Any]:
    """Return a tick as JSON has it, the time as the clocks of its zone show it."""
    zone = ZoneInfo(schedule.when.zone) if isinstance(schedule.when, Cron) else UTC
    return {
        "schedule": schedule.name,
        "tick": tick,
        "at": datetime.fromtimestamp(tick, zone).isoformat(),
        "task_id": schedule.task_id(tick),
    }


def fire_once(session: Session, schedules: Sequence[Schedule]) -> None:
    """Put the tasks of the ticks since the last call on any node, and report them.

    Raises:
        ValueError: If the queue cannot have schedules, or two have the same name.
        FreshqError: The first error, after each tick had its turn.
    """
    reporter = _reporter(session)
    scheduler = _scheduler(session, schedules, reporter)
    with _reporting(reporter):
        try:
            fired = scheduler.fire()
        except (FreshqError, ValueError):
            raise
        except Exception as error:
            msg = f"a payload function failed, its tick is tried again: {type(error).__name__}: {error}"
            raise RefusedError(msg) from error
        reporter.event("ended", fired=fired)


def run(session: Session, schedules: Sequence[Schedule]) -> NoReturn:
    """Fire ticks until SIGTERM or Ctrl-C. One lets a put end; a second ends the process at once.

    Raises:
        Exit: At the end.
        ValueError: If the queue cannot have schedules, or two have the same name.
        TableMissing: If the queue has no table.
    """
    control, reporter = ControlChannel(), _reporter(session)
    scheduler = _scheduler(session, schedules, reporter)
    with _reporting(reporter):
        _check_table(session)
        control.follow_signals()
        names = [schedule.name for schedule in schedules]
        reporter.event("started", queue=session.queue.name, schedules=names, pid=os.getpid())
        status = _fire_until_told(scheduler, control, reporter)
    end_process(status, control)


def _fire_until_told(scheduler: Scheduler, control: ControlChannel, reporter: Reporter) -> WorkStatus:
    ended = run_until_told("freshq-cron", scheduler.run, control, lambda: reporter.event("draining"))
    if ended.done():
        ended.result()
    status = WorkStatus.DRAINED if ended.done() else WorkStatus.UNFINISHED
    reporter.event("ended", exit_status=int(status))
    return status


def _scheduler(session: Session, schedules: Sequence[Schedule], reporter: Reporter) -> Scheduler:
    if session.address is not None and session.address.startswith("memory:"):
        raise ValueError(
            "queue: memory:// is in one process, so no other process can claim; use sqlite:///FILE"
        )
    if isinstance(session.queue, AttachedQueue):
        msg = "queue: an attached table takes its own records only; use a queue on a table of freshq's"
        raise ValueError(msg)  # noqa: TRY004 - bad input is a ValueError throughout

    def on_put(schedule: Schedule, receipt: Receipt) -> None:
        reporter.event(
            "fired", schedule=schedule.name, task_id=receipt.task_id, outcome=receipt.outcome.value
        )

    return Scheduler(session.queue, schedules, on_put)


def _check_table(session: Session) -> None:
    """Raise if there is no table; an outage of the store is waited for."""
    try:
        session.queue.store.paused(session.queue.name)
    except TableMissing:
        raise
    except StoreError:
        return


def _reporter(session: Session) -> Reporter:
    console = session.output.console
    if session.output.as_json or not console.is_terminal:
        return JsonLines(sys.stdout, 0)
    from freshq.cli.process.display import Lines  # noqa: PLC0415 - only for a terminal

    return Lines(console)


@contextmanager
def _reporting(reporter: Reporter) -> Iterator[None]:
    """Report the log and an error that ends the command; what payload functions print goes to stderr."""
    report_log(reporter)
    with redirect_stdout(sys.stderr):
        try:
            yield
        except (FreshqError, ValueError) as error:
            reporter.event("ended", error=str(error), exit_status=int(exit_status(error)))
            raise
