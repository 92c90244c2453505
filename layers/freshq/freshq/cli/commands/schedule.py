"""`freshq schedule`: put a task for each tick of schedules."""

from __future__ import annotations

import os
import tomllib
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn
from zoneinfo import ZoneInfo

import typer

from freshq.cli.command import QueueContext, application_imports
from freshq.cli.errors import ExitStatus
from freshq.cli.output import span
from freshq.cli.process import ControlChannel, end_process, reporter_of, reporting, run_until_told
from freshq.cli.session import refuse_memory
from freshq.errors import FreshqError, RefusedError, StoreError, TableMissing, plain, quoted
from freshq.feeds.schedules import ARGUMENTS, DEFAULT_CATCH_UP, Cron, Every, Schedule, Scheduler
from freshq.queue.attached import AttachedQueue
from freshq.queue.core import core_of
from freshq.worker.runner import load_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from freshq.cli.process import Reporter
    from freshq.cli.session import Session
    from freshq.model.answers import Receipt

SUFFIX: Final = ".toml"
# The heading of a schedule in a file.
TABLE: Final = "schedule"
REQUIRED: Final = ("name", "payload")
TIMES: Final = ("cron", "zone", "every_seconds")
FIELDS: Final = (*REQUIRED, *TIMES, "catch_up", *ARGUMENTS)
# Arguments that have another name in a file.
FIELD_OF: Final = {"seconds": "every_seconds", "expression": "cron"}
Source = Annotated[
    str,
    typer.Argument(
        metavar="SCHEDULES",
        help="A file such as schedules.toml, or a list in a module of the current folder, such as "
        "app:schedules.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Fire the due ticks, then exit.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the next ticks, and put no tasks.")]
Limit = Annotated[
    int,
    typer.Option(
        "--limit", "-n", min=1, help="Number of ticks that --dry-run shows, and the next of each schedule."
    ),
]


def load_schedules(source: str) -> list[Schedule]:
    """Return the schedules of a file whose name ends with .toml, or of a list in a module.

    Args:
        source: Such as schedules.toml or app:schedules.

    Raises:
        ValueError: One line that names the schedule, the field and what is wrong.
        MissingExtra: If there is a cron expression, and the extra `cron` is not installed.
    """
    found = _of_file(Path(source)) if source.endswith(SUFFIX) else _of_module(source)
    if not found:
        msg = f"schedules: {quoted(source)} has none; add one"
        raise ValueError(msg)
    return found


def _of_module(source: str) -> list[Schedule]:
    with application_imports() as advice:
        found = load_object("schedules", source, advice, what="list", example="app:schedules")
    if not isinstance(found, list | tuple):
        msg = f"schedules: {quoted(source)} is a {type(found).__name__}; make it a list of Schedule"
        raise ValueError(msg)
    for number, each in enumerate(found, 1):
        if not isinstance(each, Schedule):
            type_name = type(each).__name__
            msg = f"schedules: number {number} of {quoted(source)} is a {type_name}; use Schedule.of(...)"
            raise ValueError(msg)
    return list(found)


def _of_file(path: Path) -> list[Schedule]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        msg = f"schedules: {quoted(str(path))} cannot be read ({reason})"
        raise ValueError(msg) from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"{path}: not TOML ({error})"
        raise ValueError(msg) from error
    tables = document.pop(TABLE, [])
    if document or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        wrong = plain(next(iter(document), TABLE))
        msg = f"{path}: {wrong}: unknown; a file has only tables named [[{TABLE}]]"
        raise ValueError(msg)
    return [_schedule(table, path, number) for number, table in enumerate(tables, 1)]


def _schedule(table: Mapping[str, Any], path: Path, number: int) -> Schedule:
    name = table.get("name")
    which = quoted(name) if isinstance(name, str) and name else f"number {number}"
    try:
        return _checked(table)
    except ValueError as error:
        argument, colon, why = str(error).partition(":")
        msg = f"{path}: schedule {which}: {FIELD_OF.get(argument, argument)}{colon}{why}"
        raise ValueError(msg) from error


def _checked(table: Mapping[str, Any]) -> Schedule:
    for field in table:
        if field not in FIELDS:
            msg = f"{plain(field)}: unknown field; use one of {', '.join(FIELDS)}"
            raise ValueError(msg)
    for field in REQUIRED:
        if field not in table:
            msg = f"{field}: missing"
            raise ValueError(msg)
    others = {field: value for field, value in table.items() if field in ARGUMENTS}
    catch_up = table.get("catch_up", DEFAULT_CATCH_UP)
    return Schedule.of(table["name"], _when(table), table["payload"], catch_up=catch_up, **others)


def _when(table: Mapping[str, Any]) -> Cron | Every:
    if ("cron" in table) == ("every_seconds" in table):
        raise ValueError("cron, every_seconds: give one of them")
    if "every_seconds" in table:
        if "zone" in table:
            raise ValueError("zone: only for cron; leave it out")
        return Every(table["every_seconds"])
    return Cron(table["cron"], table.get("zone", "UTC"))


def show_next(session: Session, schedules: Sequence[Schedule], limit: int) -> None:
    """Print the next `limit` ticks of all schedules, and the next of each, in order. Put nothing.

    Raises:
        ValueError: If two schedules have the same name.
        StoreError: If the store, whose clock decides, did not answer.
    """
    Scheduler(session.queue, schedules)
    now = session.queue.admin.now()
    coming = [
        [(tick, number) for tick in islice(each.when.ticks(now), limit)]
        for number, each in enumerate(schedules)
    ]
    next_of_each = {tick for ticks in coming for tick in ticks[:1]}
    shown = sorted(next_of_each.union(sorted(chain(*coming))[:limit]))
    ticks = [_tick(schedules[number], tick) for tick, number in shown]
    lines = (f"{tick['at']}  in {span(tick['tick'] - now)}  {tick['task_id']}" for tick in ticks)
    session.output.answer(ticks, *(lines if ticks else ["no tick to come"]))


def _tick(schedule: Schedule, tick: float) -> dict[str, Any]:
    """Return a tick as values for JSON, with the local time of its zone."""
    zone = ZoneInfo(schedule.when.zone) if isinstance(schedule.when, Cron) else UTC
    return {
        "schedule": schedule.name,
        "tick": tick,
        "at": datetime.fromtimestamp(tick, zone).isoformat(),
        "task_id": schedule.task_id(tick),
    }


def fire_once(session: Session, schedules: Sequence[Schedule]) -> None:
    """Put and report the tasks of all ticks since the last call on any node.

    Raises:
        ValueError: If the queue cannot have schedules, or two have the same name.
        FreshqError: The first error, after every tick was tried.
    """
    reporter = reporter_of(session.output)
    scheduler = _scheduler(session, schedules, reporter)
    with reporting(reporter):
        try:
            fired = scheduler.fire()
        except (FreshqError, ValueError):
            raise
        except Exception as error:
            msg = f"a payload function failed, its tick is tried again: {type(error).__name__}: {error}"
            raise RefusedError(msg) from error
        reporter.event("ended", fired=fired)


def run(session: Session, schedules: Sequence[Schedule]) -> NoReturn:
    """Fire ticks until SIGTERM or Ctrl-C. The first lets a put finish, the second exits immediately.

    Raises:
        Exit: At the end.
        ValueError: If the queue cannot have schedules, or two have the same name.
        TableMissing: If the queue has no table.
    """
    control, reporter = ControlChannel(), reporter_of(session.output)
    scheduler = _scheduler(session, schedules, reporter)
    with reporting(reporter):
        _check_table(session)
        control.follow_signals()
        names = [schedule.name for schedule in schedules]
        reporter.event("started", queue=session.queue.name, schedules=names, pid=os.getpid())
        status = _fire_until_told(scheduler, control, reporter)
    end_process(status, control)


def _fire_until_told(scheduler: Scheduler, control: ControlChannel, reporter: Reporter) -> ExitStatus:
    def drain() -> None:
        scheduler.stop()
        reporter.event("draining")

    ended = run_until_told("freshq-schedule", scheduler.run, control, drain)
    if ended.done():
        ended.result()
    status = ExitStatus.DONE if ended.done() else ExitStatus.UNFINISHED
    reporter.event("ended", exit_status=int(status))
    return status


def _scheduler(session: Session, schedules: Sequence[Schedule], reporter: Reporter) -> Scheduler:
    refuse_memory(session.address)
    if isinstance(session.queue, AttachedQueue):
        msg = "queue: an attached table takes its own records only; use a queue on a table of freshq's"
        raise ValueError(msg)

    def on_put(schedule: Schedule, receipt: Receipt) -> None:
        reporter.event(
            "fired", schedule=schedule.name, task_id=receipt.task_id, outcome=receipt.outcome.value
        )

    return Scheduler(session.queue, schedules, on_put)


def _check_table(session: Session) -> None:
    """Raise if the table is missing; wait out a store outage."""
    try:
        core_of(session.queue).store.paused(session.queue.name)
    except TableMissing:
        raise
    except StoreError:
        return


def schedule(
    context: QueueContext,
    schedules: Source,
    once: Once = False,
    dry_run: DryRun = False,
    limit: Limit = 10,
) -> None:
    """Put tasks at set times.

    Puts a task for each tick of the schedules until SIGTERM or Ctrl-C. Several nodes may run it.
    """
    if once and dry_run:
        raise ValueError("once, dry_run: give one of them")
    found = load_schedules(schedules)
    if dry_run:
        show_next(context.session, found, limit)
    elif once:
        fire_once(context.session, found)
    else:
        run(context.session, found)
