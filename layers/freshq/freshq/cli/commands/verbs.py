"""The verbs of a queue as commands."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from freshq.cli.commands.attached_verbs import LeaseSeconds, Limit, dlq_claim, hold, ready
from freshq.cli.commands.put_lines import put_lines
from freshq.cli.output import fields, printable
from freshq.cli.session import Session, print_error, verb
from freshq.errors import RefusedError, TaskNotFound
from freshq.model.answers import PutOutcome
from freshq.model.task import TaskStatus
from freshq.queue.attached import AttachedQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.model.answers import Receipt
    from freshq.stores.conflicts import OnConflict

TaskId = Annotated[
    str | None, typer.Argument(metavar="TASK_ID", help="The task; in the shell the current one if left out.")
]
Token = Annotated[
    str | None, typer.Option(help="What claim printed; in the shell not needed for its own claims.")
]
Why = Annotated[str | None, typer.Option("--error", help="Why it failed; kept with the task.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def parsed(argument: str, text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON value that a text is."""
    try:
        return json.loads(text)
    except ValueError as error:
        msg = f"{argument}: must be JSON ({error}), got {text:.60}; a text needs quotes of its own, or --text"
        raise ValueError(msg) from error


def put(
    session: Session,
    payload: Annotated[
        str | None,
        typer.Argument(metavar="JSON", help="The work: any JSON value; - reads it from the input."),
    ] = None,
    task_id: Annotated[str | None, typer.Option("--id", help="Id of the task; otherwise a new one.")] = None,
    priority: Annotated[int, typer.Option(help="0 to 9, higher first.")] = 0,
    delay_seconds: Annotated[float, typer.Option(help="Not claimable before so long from now.")] = 0.0,
    max_age_seconds: Annotated[
        float | None, typer.Option(help="Stale so long from now; at most the queue's own.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Tenant or key; groups take turns.")] = None,
    on_conflict: Annotated[
        str | None,
        typer.Option(
            metavar="ignore|update", help="If a task of this id waits or is in work: keep it, or replace it."
        ),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Take the work as a text, not as JSON.")] = False,
    lines: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Put each line of a file, or of the input (-), as one task's work."
        ),
    ] = None,
) -> None:
    """Put a task into the queue; a duplicate changes nothing and has status 1."""
    options: dict[str, Any] = {
        "priority": priority,
        "delay_seconds": delay_seconds,
        "max_age_seconds": max_age_seconds,
        "group": group,
    }
    if lines is not None:
        if payload is not None or task_id is not None:
            raise ValueError("lines: give the work either as JSON or by --lines, and lines have no --id")
        if on_conflict is not None:
            raise ValueError("on_conflict: lines have no --id that could be taken")
        put_lines(session, lines, options, as_text=text)
        return
    conflict = cast("OnConflict | None", on_conflict)  # what is neither of them, the queue refuses
    receipt = session.queue.put(
        _work(session, payload, as_text=text), task_id, on_conflict=conflict, **options
    )
    print_receipt(session, receipt)


def _work(session: Session, payload: str | None, *, as_text: bool) -> Any:  # noqa: ANN401 - any JSON value
    """Return the work of a put; of a record in an attached table that is the record itself."""
    if payload is None:
        if isinstance(session.queue, AttachedQueue):
            return None
        raise ValueError("payload: missing; give the work as JSON, or --lines FILE")
    work = sys.stdin.read() if payload == "-" else payload
    return work if as_text else parsed("payload", work)


def print_receipt(session: Session, receipt: Receipt) -> None:
    """Tell what a put did.

    Raises:
        RefusedError: If the id was taken.
    """
    session.see(receipt.task_id)
    told = {"task_id": receipt.task_id, "outcome": receipt.outcome.value}
    if receipt.outcome is PutOutcome.DUPLICATE:
        session.output.answer(told)
        msg = f"task {receipt.task_id!r}: already queued, or its id is taken; nothing was changed"
        raise RefusedError(msg)
    session.output.answer(told, f"task {printable(receipt.task_id)}: {receipt.outcome}")


def claim(
    session: Session,
    limit: Limit = 1,
    lease_seconds: LeaseSeconds = None,
) -> None:
    """Take tasks to work on, in the queue's order; status 1 if there is none to take."""
    claims = session.queue.claim(limit, lease_seconds)
    session.hold(*claims)
    session.output.claims(claims)
    if not claims:
        why = "is paused" if session.queue.paused else "has nothing to claim"
        msg = f"queue {session.queue.name!r} {why}"
        raise RefusedError(msg)


def done(
    session: Session,
    task_id: TaskId = None,
    token: Token = None,
    result: Annotated[str | None, typer.Option(metavar="JSON", help="Kept with the task.")] = None,
) -> None:
    """Settle a claim as SUCCESS."""
    value = None if result is None else parsed("result", result)
    held = session.claim(task_id, token)
    changed = session.queue.complete(held, value)
    session.claims.pop(changed.task_id, None)
    session.output.changed(changed, session.queue.now())


def fail(session: Session, task_id: TaskId = None, token: Token = None, error: Why = None) -> None:
    """Settle a claim as FAILURE: a dead letter, whatever attempts are left."""
    changed = session.queue.fail(session.claim(task_id, token), error)
    session.claims.pop(changed.task_id, None)
    session.output.changed(changed, session.queue.now())


def retry(
    session: Session,
    task_id: TaskId = None,
    token: Token = None,
    error: Why = None,
    delay_seconds: Annotated[
        float | None, typer.Option(help="Not claimable before so long; otherwise a growing, random time.")
    ] = None,
) -> None:
    """Give a task back to be tried again later; a dead letter after its last attempt."""
    changed = session.queue.retry(session.claim(task_id, token), error, delay_seconds)
    session.claims.pop(changed.task_id, None)
    session.output.changed(changed, session.queue.now())


def release(session: Session, task_id: TaskId = None, token: Token = None) -> None:
    """Give a task back untried, claimable at once, the attempt not counted."""
    changed = session.queue.release(session.claim(task_id, token))
    session.claims.pop(changed.task_id, None)
    session.output.changed(changed, session.queue.now())


def extend(
    session: Session,
    task_id: TaskId = None,
    token: Token = None,
    lease_seconds: Annotated[
        float | None, typer.Option(help="From now on; otherwise as long as the queue says.")
    ] = None,
) -> None:
    """Hold a task for longer."""
    seconds = session.queue.lease_seconds if lease_seconds is None else lease_seconds
    held = session.queue.extend(session.claim(task_id, token), seconds)
    session.hold(held)
    session.output.claims([held])


def get(session: Session, task_id: TaskId = None) -> None:
    """Show all about a task."""
    wanted = session.task_id(task_id)
    task = session.queue.get(wanted)
    if task is None:
        raise TaskNotFound(wanted, session.queue.name)
    session.see(wanted)
    session.output.task(task, session.queue.now())


def ls(
    session: Session,
    status: Annotated[
        str | None, typer.Option(help=f"Only tasks in this state: {', '.join(TaskStatus)}.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many at the most.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on where the list before ended.")] = None,
) -> None:
    """List tasks."""
    state = None if status is None else status.upper()
    page = session.queue.list(state, limit, cursor)
    session.see(*(task.task_id for task in page))
    session.output.tasks(page.tasks, page.cursor, session.queue.now())


def stats(
    session: Session,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Read a page per shard instead of every task.")
    ] = False,
) -> None:
    """Count the tasks by state, and tell how old the waiting ones are."""
    queue = session.queue
    session.output.stats(queue.stats(approximate=approximate), queue.name, paused=queue.paused)


def touch(session: Session, task_id: TaskId = None) -> None:
    """Make a waiting task new: created now, in its place among the others."""
    session.output.changed(session.queue.touch(session.task_id(task_id)), session.queue.now())


def reprioritize(
    session: Session,
    which: Annotated[
        list[str], typer.Argument(metavar="TASK_ID PRIORITY", help="The task, and its new priority: 0 to 9.")
    ],
) -> None:
    """Move a waiting task to another priority level; its place in time stays."""
    *task_ids, priority = which
    if len(task_ids) > 1 or not priority.isdecimal():
        msg = f"priority: must look like TASK_ID PRIORITY, the priority from 0 to 9, got {' '.join(which)}"
        raise ValueError(msg)
    task_id = session.task_id(task_ids[0] if task_ids else None)
    session.output.changed(session.queue.reprioritize(task_id, int(priority)), session.queue.now())


def cancel(
    session: Session,
    task_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK_ID]...", help="The tasks; several are asked about.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Cancel waiting tasks."""
    wanted = task_ids or [session.task_id(None)]
    if len(wanted) > 1:
        session.make_sure(f"Cancel {len(wanted)} tasks?", yes=yes)
    refused: list[RefusedError] = []
    changed = []
    for task_id in wanted:
        try:
            changed.append(session.queue.cancel(task_id))
        except RefusedError as error:
            refused.append(error)
    now = session.queue.now()
    lines = [f"task {printable(task.task_id)}: {task.status}" for task in changed]
    told = [fields(task, now) for task in changed]
    session.output.answer(told if task_ids and len(task_ids) > 1 else told[0] if told else None, *lines)
    for problem in refused[:-1]:
        print_error(problem)
    if refused:
        raise refused[-1]


def pause(session: Session) -> None:
    """Suspend claims, within seconds everywhere; puts and settling go on."""
    session.queue.pause()
    session.output.answer({"paused": True}, f"queue {session.queue.name}: paused")


def resume(session: Session) -> None:
    """Allow claims again."""
    session.queue.resume()
    session.output.answer({"paused": False}, f"queue {session.queue.name}: claims are allowed")


def purge(session: Session, yes: Yes = False) -> None:
    """Delete every task of the queue, those in work included."""
    name = session.queue.name
    session.make_sure(f"Delete every task of queue {name!r}, those in work included?", yes=yes)
    deleted = session.queue.purge(confirm=name)
    session.claims.clear()
    session.output.answer({"deleted": deleted}, f"queue {name}: {deleted:,} tasks deleted")


def dlq_ls(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many at the most.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on where the list before ended.")] = None,
) -> None:
    """List the dead letters, with why they failed."""
    page = session.queue.list(TaskStatus.FAILURE, limit, cursor)
    session.see(*(task.task_id for task in page))
    session.output.tasks(page.tasks, page.cursor, session.queue.now(), errors=True)


def dlq_redrive(
    session: Session,
    task_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK_ID]...", help="Only these; otherwise all.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="How many at the most.")] = None,
) -> None:
    """Bring dead letters back, no attempt counted, their place in time kept."""
    if task_ids and limit is not None:
        raise ValueError("limit: give either tasks or --limit")
    each = [(None, task_id) for task_id in task_ids] if task_ids else [(limit, None)]
    brought_back = sum(session.queue.redrive(most, task_id) for most, task_id in each)
    session.output.answer({"redriven": brought_back}, f"{brought_back:,} brought back")


def dlq_purge(
    session: Session,
    task_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK_ID]...", help="Only these; otherwise all.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete dead letters, and nothing else."""
    which = f"{len(task_ids)} dead letters" if task_ids else f"every dead letter of {session.queue.name!r}"
    session.make_sure(f"Delete {which}?", yes=yes)
    queue = session.queue
    deleted = sum(queue.discard(task_id=task_id) for task_id in task_ids) if task_ids else queue.discard()
    session.output.answer({"deleted": deleted}, f"{deleted:,} dead letters deleted")


VERBS: Final[tuple[Callable[..., None], ...]] = (
    put, claim, done, fail, retry, release, extend, get, ls, stats,
    touch, reprioritize, cancel, hold, ready, pause, resume, purge,
)  # fmt: skip
DLQ_VERBS: Final[dict[str, Callable[..., None]]] = {
    "ls": dlq_ls, "claim": dlq_claim, "redrive": dlq_redrive, "purge": dlq_purge,
}  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the verbs to a group of commands."""
    for function in VERBS:
        app.command(name=function.__name__)(verb(function))
    dlq = typer.Typer(help="Dead letters: list, claim, bring back, delete.", no_args_is_help=True)
    for name, dead_letter_verb in DLQ_VERBS.items():
        dlq.command(name=name)(verb(dead_letter_verb))
    app.add_typer(dlq, name="dlq")
