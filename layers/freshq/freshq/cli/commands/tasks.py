"""Commands that show, change and cancel tasks, and that control the queue as a whole."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from freshq.cli.command import Cursor, Limit, QueueContext, TaskId, Yes, complete_task_id, instant
from freshq.cli.errors import raise_last
from freshq.cli.output import chances_by_value, counted, excerpt, fields, percentage, span, value_facts
from freshq.cli.session import confirm
from freshq.errors import RefusedError, StoreError, printable, quoted
from freshq.model.checks import checked_count
from freshq.model.task import Task, TaskStatus
from freshq.policy.value import SMALLEST_VALUE
from freshq.queue.core import core_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

    from freshq.cli.session import Session
    from freshq.queue.base import BaseQueue

# Tasks that are read at a time.
PAGE_TASKS: Final = 100
STALE_HINT: Final = "; expired dead letters stay: freshq redrive --all --as-new returns them as new"
# Parts of an error that differ between tasks with the same cause, and their replacements, in this order.
MASKS: Final = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),  # a UUID
    (re.compile(r"\b(?:0x)?(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", re.IGNORECASE), "<id>"),  # a hash, an address
    (
        re.compile(r"\b(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{12,}\b", re.IGNORECASE),
        "<id>",
    ),  # a key of letters and digits
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
)
NO_ERROR: Final = "no error"
# Characters of an error in a table for people.
ERROR_CHARS: Final = 80
AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
SECONDS_OF: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}

StatusName = Annotated[
    str | None,
    typer.Option(
        "--status",
        help=f"Only tasks with this status: {', '.join(TaskStatus)}. "
        "The last two are states of records of an attached table.",
    ),
]
Approximate = Annotated[
    bool, typer.Option("--approximate", help="Read one page per shard; DynamoDB's default.")
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Count every task. On DynamoDB it says first how much that reads.")
]
Ids = Annotated[int | None, typer.Option(metavar="N", help="Also show the first N ids of each state.")]
Priority = Annotated[int, typer.Option(help="The new priority: 0 to 9, higher first.")]
SomeTasks = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TASK_ID",
        help="The tasks. In the shell, the current task by default.",
        autocompletion=complete_task_id,
    ),
]
OnlyTasks = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TASK_ID", help="Only these tasks. By default, all.", autocompletion=complete_task_id
    ),
]
TheseTasks = Annotated[
    list[str] | None,
    typer.Argument(metavar="TASK_ID", help="The tasks.", autocompletion=complete_task_id),
]
AllDead = Annotated[bool, typer.Option("--all", help="Instead of ids: all dead letters.")]
MaxTasks = Annotated[int | None, typer.Option("--limit", "-n", help="Maximum number of tasks.")]
TimeoutSeconds = Annotated[float | None, typer.Option(help="Stop waiting after this time.")]
PollSeconds = Annotated[float, typer.Option(help="Longest time between two reads of a task.")]
Top = Annotated[bool, typer.Option("--top", help="Group dead letters by error and kind, and count them.")]
ErrorOrPart = Annotated[
    str | None,
    typer.Option(
        "--error", metavar="TEXT", help="With --dead or ids: the reason to store. Else: only tasks with it."
    ),
]
Dead = Annotated[bool, typer.Option("--dead", help="Make the tasks dead letters, with status FAILURE.")]
Force = Annotated[
    bool, typer.Option("--force", help="Also change a task that a worker holds. The worker loses its lease.")
]
AsNew = Annotated[
    bool,
    typer.Option(
        "--as-new",
        help="Return the tasks as if they were put now, even expired ones. "
        "With ids, this includes waiting tasks.",
    ),
]
Current = Annotated[bool, typer.Option("--current", hidden=True)]


OfKind = Annotated[str | None, typer.Option("--kind", help="Only tasks of this kind.")]
OfValue = Annotated[
    float | None,
    typer.Option("--value", min=SMALLEST_VALUE, help="Also show the chance of a task of this value."),
]
OfGroup = Annotated[str | None, typer.Option("--group", help="Only tasks of this group.")]
WithError = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="Only tasks whose error has this text, as it is or masked."),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only tasks that died or, if they are no dead letters, were created since: 15m, 2h, 1d, "
        "or a time such as 2026-12-01T08:00Z.",
    ),
]


def get(context: QueueContext, task_id: TaskId = None) -> None:
    """Show everything about a task."""
    session = context.session
    wanted = session.task_id(task_id)
    task = core_of(session.queue).found(wanted)
    session.see(wanted)
    session.output.task(task, session.queue.admin.now())


def list_(
    context: QueueContext,
    status: StatusName = None,
    kind: OfKind = None,
    group: OfGroup = None,
    error: WithError = None,
    since: Since = None,
    top: Top = False,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> None:
    """List tasks, all or by status.

    Dead letters (FAILURE) are listed with their errors, the latest first.
    """
    session, queue = context.session, context.session.queue
    wanted = None if status is None else status.upper()
    if wanted == TaskStatus.READY:
        session.attached("list --status READY")
    selection = Selection.of(queue, kind, group, error, since)
    if top:
        if wanted != TaskStatus.FAILURE:
            raise ValueError("--top: only for dead letters, with --status FAILURE")
        dead = filter(selection.selects, core_of(queue).store.dead(queue.name))
        found = causes(dead)[:limit]
        table = partial(causes_table, found, queue.admin.now())
        answer = {"groups": [asdict(cause) for cause in found]}
        session.output.answer(answer, table if found else "no dead letters")
        return
    tasks, following = selected_page(queue, wanted, selection.predicate, limit, cursor)
    session.see(*(task.task_id for task in tasks))
    errors = wanted == TaskStatus.FAILURE
    session.output.tasks(tasks, following, queue.admin.now(), errors=errors)


def peek(context: QueueContext, limit: Limit = 10) -> None:
    """Show the next tasks without claiming them.

    They are listed in the order of claims, with the reason why a task has to wait.
    """
    session = context.session
    waiting = session.queue.peek(limit)
    session.see(*(each.task.task_id for each in waiting))
    session.output.waiting(waiting, session.queue.admin.now())


def wait(
    context: QueueContext,
    task_ids: SomeTasks = None,
    timeout_seconds: TimeoutSeconds = None,
    poll_seconds: PollSeconds = 1.0,
) -> None:
    """Wait until tasks have ended, and print each.

    Exits with status 0 if all ended as SUCCESS, 1 if a task ended otherwise or does not exist, and 4 after a
    timeout. With --json, prints a line for each task.
    """
    session = context.session
    wanted = task_ids or [session.task_id(None)]
    failed = 0
    ended = session.queue.wait_many(wanted, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds)
    for task in ended:
        session.print_changed(task)
        failed += task.status is not TaskStatus.SUCCESS
    if failed:
        msg = f"{failed} of {counted(len(wanted), 'task')} did not end as SUCCESS"
        raise RefusedError(msg)


def stats(
    context: QueueContext, exact: Exact = False, approximate: Approximate = False, ids: Ids = None
) -> None:
    """Count tasks by state, and show their ages."""
    session, queue = context.session, context.session.queue
    if exact and approximate:
        raise ValueError("--exact: not with --approximate")
    if ids is not None:
        checked_count("ids", ids)
    if core_of(queue).store.bills_reads and not approximate:
        approximate = not exact and ids is None
        if not approximate:
            print(_price(queue), file=sys.stderr, flush=True)
    counts = queue.stats(approximate=approximate, ids=ids)
    session.see(*chain.from_iterable(counts.ids.values()))
    session.output.stats(counts, queue.name, paused=queue.paused())


def _price(queue: BaseQueue) -> str:
    """Return how much an exact count reads."""
    try:
        units = queue.admin.exact_count_units()
    except StoreError as error:  # DescribeTable may be forbidden
        return f"freshq: counting reads the whole table, whose size is not known: {error}"
    return f"freshq: counting reads the whole table, about {units:,} read units"


def pressure(context: QueueContext, value: OfValue = None) -> None:
    """Show the load, and a new task's chance to be in time."""
    found = context.session.queue.pressure()
    facts = {
        "offered": f"{found.offered_per_second:,.2f}/s",
        "served": f"{found.served_per_second:,.2f}/s",
        "in time": f"{found.probability_in_time:.0%}",
        **({"by value": chances_by_value(found.by_value)} if found.by_value else {}),
        **({} if value is None else {f"value {value:g}": f"{percentage(found.chance(value))} in time"}),
        "overloaded": "yes" if found.overloaded else "no",
        "retry after": span(found.retry_after_seconds),
        **({"least value": f"{found.least_value:.3g} per second of work"} if found.least_value else {}),
        **value_facts(found),
    }
    chance = {} if value is None else {"value": value, "probability_of_value": found.chance(value)}
    context.session.output.answer(asdict(found) | chance, facts)


def reprioritize(context: QueueContext, priority: Priority, task_id: TaskId = None) -> None:
    """Move a waiting task to another priority level.

    Its creation time stays.
    """
    session = context.session
    session.print_changed(session.queue.reprioritize(session.task_id(task_id), priority=priority))


def cancel(
    context: QueueContext,
    task_ids: SomeTasks = None,
    kind: OfKind = None,
    group: OfGroup = None,
    since: Since = None,
    dead: Dead = False,
    error: ErrorOrPart = None,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Cancel tasks, or make them dead letters.

    Name the tasks, or select waiting ones by kind, group, error or time. Several need confirmation.
    """
    session, queue = context.session, context.session.queue
    part, reason = (None, error) if dead or task_ids else (error, None)
    selection = Selection.of(queue, kind, group, part, since, task_ids)
    wanted = task_ids or _waiting_ids(session, selection)
    is_one = len(wanted) == 1 and selection.predicate is None
    if wanted and not is_one:
        question = "Make {} dead letters?" if dead else "Cancel {}?"
        confirm(question.format(counted(len(wanted), "task")), yes=yes)
    changed, refused = _each(session, wanted, partial(queue.cancel, force=force, dead=dead, error=reason))
    now = queue.admin.now()
    _print_each(session, [fields(task, now) for task in changed], is_one=is_one)
    raise_last(refused)


def _print_each(session: Session, changed: list[dict[str, Any]], *, is_one: bool) -> None:
    lines = (f"task {printable(task['task_id'])}: {task['status']}" for task in changed)
    session.output.answer(next(iter(changed), None) if is_one else changed, *lines)


def _each(
    session: Session, task_ids: list[str], verb: Callable[[str], Task]
) -> tuple[list[Task], list[RefusedError]]:
    """Apply a verb to tasks; return the changed tasks and the refusals."""
    changed: list[Task] = []
    refused: list[RefusedError] = []
    for task_id in task_ids:
        try:
            changed.append(verb(task_id))
        except RefusedError as refusal:
            refused.append(refusal)
        else:
            session.claims.pop(task_id, None)
    return changed, refused


def _waiting_ids(session: Session, selection: Selection) -> list[str]:
    """Return the ids of the selected waiting tasks; the current task if nothing is selected."""
    if selection.predicate is None:
        return [session.task_id(None)]
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = session.queue.list(TaskStatus.PENDING, limit=PAGE_TASKS, cursor=cursor)
        found += [task.task_id for task in page if selection.selects(task)]
        if page.cursor is None:
            return found
        cursor = page.cursor


def redrive(
    context: QueueContext,
    task_ids: TheseTasks = None,
    all_dead: AllDead = False,
    kind: OfKind = None,
    group: OfGroup = None,
    error: WithError = None,
    since: Since = None,
    limit: MaxTasks = None,
    as_new: AsNew = False,
    force: Force = False,
    yes: Yes = False,
    current: Current = False,
) -> None:
    """Return dead letters to their lines.

    Name the tasks, or pass --all, --limit or a filter. More than one task needs confirmation. Attempts start
    again, and dead letters keep their places unless they return as new. Without ids, expired ones stay unless
    they return as new. If several ids are given, all return or none does.
    """
    session, queue = context.session, context.session.queue
    selection = Selection.of(queue, kind, group, error, since, task_ids)
    where = selection.predicate
    if not task_ids:
        task_ids = [session.task_id(None)] if current and where is None else []
    several = _several(task_ids, limit, all_dead=all_dead, is_filtered=where is not None)
    if several is not None:
        confirm(f"Return {several}{selection} of queue {queue.name!r} to their lines?", yes=yes)
    redriven = queue.redrive(task_ids or None, limit=limit, where=where, as_new=as_new, force=force)
    for task_id in task_ids:
        session.claims.pop(task_id, None)
    lines = [f"task {printable(task_id)}: {TaskStatus.PENDING}" for task_id in task_ids]
    lines = lines or [f"{redriven:,} redriven{_stale_hint(queue, limit, as_new=as_new)}"]
    session.output.answer({"redriven": redriven}, *lines)


def _several(task_ids: list[str], limit: int | None, *, all_dead: bool, is_filtered: bool) -> str | None:
    """Return which tasks the arguments select; None if it is a single id.

    Raises:
        ValueError: If they select none, or contradict each other.
    """
    if task_ids:
        if all_dead:
            raise ValueError("--all: not with task_ids")
        return f"{len(task_ids)} tasks" if len(task_ids) > 1 else None
    if limit is not None:
        return f"up to {counted(checked_count('limit', limit), 'dead letter')}"
    if all_dead or is_filtered:
        return "all dead letters"
    raise ValueError("task_ids: name the tasks, or pass --all for all dead letters. Nothing was done")


def _stale_hint(queue: BaseQueue, limit: int | None, *, as_new: bool) -> str:
    """Return a hint if any of the latest dead letters is stale, and so was not redriven."""
    if limit is not None or as_new:
        return ""
    now, live_until = queue.admin.now(), core_of(queue).lifecycle.live_until
    latest = queue.list(TaskStatus.FAILURE, limit=PAGE_TASKS)
    return STALE_HINT if any(live_until(task) <= now for task in latest) else ""


def pause(context: QueueContext) -> None:
    """Suspend claims on every worker.

    It takes a few seconds. Tasks can still be put and settled.
    """
    session = context.session
    session.queue.pause()
    session.output.answer({"paused": True}, f"queue {session.queue.name}: paused")


def resume(context: QueueContext) -> None:
    """Allow claims again."""
    session = context.session
    session.queue.resume()
    session.output.answer({"paused": False}, f"queue {session.queue.name}: resumed")


def purge(
    context: QueueContext,
    task_ids: OnlyTasks = None,
    status: StatusName = None,
    kind: OfKind = None,
    group: OfGroup = None,
    error: WithError = None,
    since: Since = None,
    limit: MaxTasks = None,
    yes: Yes = False,
) -> None:
    """Delete tasks of the queue.

    Asks for confirmation. By default, every task is deleted, including claimed ones.
    """
    session, queue = context.session, context.session.queue
    which = f"{len(task_ids)} tasks" if task_ids else "every task" if limit is None else f"{limit} tasks"
    which += ", including claimed ones," if status is None else f" with status {status.upper()}"
    selection = Selection.of(queue, kind, group, error, since, task_ids)
    confirm(f"Delete {which}{selection} of queue {queue.name!r}?", yes=yes)
    deleted = queue.purge(
        status=status and status.upper(),
        task_ids=task_ids or None,
        limit=limit,
        where=selection.predicate,
        confirm=queue.name,
    )
    session.output.answer({"deleted": deleted}, f"queue {queue.name}: {counted(deleted, 'task')} deleted")


def recover(context: QueueContext) -> None:
    """Return tasks with expired leases to their lines.

    Delayed tasks that are due join their lines, and tasks past their retention are deleted. Workers do
    all of this too.
    """
    session = context.session
    recovered = session.queue.admin.recover()
    session.output.answer({"recovered": recovered}, f"{recovered:,} recovered")


def masked(error: str | None) -> str:
    """Return an error with its numbers and ids masked, equal for tasks with the same cause."""
    text = error or NO_ERROR
    for pattern, mask in MASKS:
        text = pattern.sub(mask, text)
    return text


@dataclass(frozen=True, slots=True)
class Selection:
    """Which tasks a command is about. A field that is None selects all.

    Attributes:
        kind: Their kind.
        group: Their group.
        error: A part of their errors; numbers and ids may be masked.
        since: When they died at the earliest, or for other tasks were created, in seconds since the epoch.
    """

    kind: str | None = None
    group: str | None = None
    error: str | None = None
    since: float | None = None

    @classmethod
    def of(
        cls,
        queue: BaseQueue,
        kind: str | None,
        group: str | None,
        error: str | None,
        since: str | None,
        task_ids: Sequence[str] | None = None,
    ) -> Selection:
        """Return the selection of the flags; ids select by themselves.

        Raises:
            ValueError: If `since` is neither a time nor a time span, or there are ids besides flags.
        """
        selection = cls(kind, group, error, None if since is None else _moment(queue, since))
        if task_ids and selection.predicate is not None:
            raise ValueError("--kind, --group, --error, --since: not with task_ids, which say which tasks")
        return selection

    @property
    def predicate(self) -> Callable[[Task], bool] | None:
        """Whether a task is selected; None if all are."""
        return None if self == Selection() else self.selects

    def selects(self, task: Task) -> bool:
        """Return whether a task is selected."""
        at = task.created if task.dead_at is None else task.dead_at
        return (
            self.kind in (None, task.kind)
            and self.group in (None, task.group)
            and (self.since is None or at >= self.since)
            and any((self.error or "") in text for text in (task.error or NO_ERROR, masked(task.error)))
        )

    def __str__(self) -> str:
        """Return the selection as words behind a noun; empty if all are selected."""
        named = {"kind": self.kind, "group": self.group, "error": self.error}
        words = [f"{name} {quoted(value)}" for name, value in named.items() if value is not None]
        return f" with {' and '.join(words)}" if words else ""


def _moment(queue: BaseQueue, text: str) -> float:
    found = AGO.fullmatch(text)
    if found is None:
        return instant("since", text).timestamp()
    return queue.admin.now() - float(found[1]) * SECONDS_OF[found[2]]


def selected_page(
    queue: BaseQueue,
    status: str | None,
    where: Callable[[Task], bool] | None,
    limit: int,
    cursor: str | None,
) -> tuple[list[Task], str | None]:
    """Return up to `limit` selected tasks, and where the next page starts; None on the last page.

    Args:
        queue: The queue.
        status: Their status; None for any.
        where: Whether a task is selected; None if all are.
        limit: Most tasks.
        cursor: Where the page starts; None for the first page.
    """
    if where is None:
        page = queue.list(status, limit=limit, cursor=cursor)
        return list(page), page.cursor
    found: list[Task] = []
    while True:
        page = queue.list(status, limit=max(PAGE_TASKS, limit), cursor=cursor)
        places = [place for place, task in enumerate(page) if where(task)]
        if len(found) + len(places) > limit:
            # Read it again, shorter: a cursor starts only behind the last task of a page.
            page = queue.list(status, limit=places[limit - len(found) - 1] + 1, cursor=cursor)
        found += filter(where, page)
        if page.cursor is None or len(found) >= limit:
            return found[:limit], page.cursor
        cursor = page.cursor


@dataclass(slots=True)
class Cause:
    """Dead letters of one kind with the same error.

    Attributes:
        error: The error, its numbers and ids masked.
        kind: The kind; None for tasks without one.
        count: Number of these dead letters.
        first_at: When the first of them died, in seconds since the epoch.
        last_at: When the last of them died.
    """

    error: str
    kind: str | None
    count: int
    first_at: float
    last_at: float


def cause_of(task: Task) -> tuple[str, str | None]:
    """Return the cause of a dead letter: its error, numbers and ids masked, and its kind."""
    return masked(task.error), task.kind


def add_cause(found: dict[tuple[str, str | None], Cause], task: Task) -> None:
    """Count a dead letter to its cause."""
    at = task.updated if task.dead_at is None else task.dead_at
    key = cause_of(task)
    cause = found.setdefault(key, Cause(*key, 0, at, at))
    cause.count += 1
    cause.first_at, cause.last_at = min(cause.first_at, at), max(cause.last_at, at)


def by_frequency(found: Iterable[Cause]) -> list[Cause]:
    """Return causes, the most frequent first."""
    return sorted(found, key=lambda cause: (-cause.count, -cause.last_at, cause.error))


def causes(tasks: Iterable[Task]) -> list[Cause]:
    """Return the causes of dead letters, the most frequent first."""
    found: dict[tuple[str, str | None], Cause] = {}
    for task in tasks:
        add_cause(found, task)
    return by_frequency(found.values())


def causes_table(found: list[Cause], now: float) -> Table:
    """Return causes as a table for people."""
    from rich.table import Table

    table = Table("count", "kind", "error", "first", "last", title=f"dead letters ({TaskStatus.FAILURE})")
    table.columns[0].justify = "right"
    for cause in found:
        ages = (f"{span(max(0.0, now - at))} ago" for at in (cause.first_at, cause.last_at))
        kind = "-" if cause.kind is None else printable(cause.kind)
        table.add_row(f"{cause.count:,}", kind, excerpt(cause.error, ERROR_CHARS), *ages)
    return table
