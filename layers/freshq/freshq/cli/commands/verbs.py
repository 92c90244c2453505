"""Commands that put, claim and settle tasks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast

import typer

from freshq.cli.command import Error, LeaseSeconds, Limit, QueueContext, TaskId, Token, instant, parsed
from freshq.cli.errors import print_error
from freshq.cli.output import counted
from freshq.cli.session import Session, refuse_memory
from freshq.errors import LeaseLost, RefusedError, StoreError, printable
from freshq.model.answers import PutOutcome
from freshq.model.validation import parsed_json
from freshq.policy.value import Decay
from freshq.queue.attached import AttachedQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from freshq.model.answers import Claim, Receipt
    from freshq.model.task import Task
    from freshq.stores.base import OnConflict

T = TypeVar("T")
# Large enough to keep the store busy, small enough to keep the progress bar moving.
BATCH_TASKS: Final = 200

Payload = Annotated[
    str | None, typer.Argument(metavar="JSON", help="The payload, any JSON value; - reads standard input.")
]
NewId = Annotated[str | None, typer.Option("--task-id", help="Id of the task. By default, a new id.")]
Priority = Annotated[int, typer.Option(help="0 to 9, higher first.")]
DelaySeconds = Annotated[float, typer.Option(help="Seconds until the task can be claimed.")]
At = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Time from which the task can be claimed, with a time zone: 2026-12-01T08:00Z."
    ),
]
MaxAgeSeconds = Annotated[
    float | None,
    typer.Option(help="Age in seconds at which the task is stale; at most the queue's max age."),
]
Group = Annotated[str | None, typer.Option(help="Tenant or key; groups take turns.")]
Kind = Annotated[str | None, typer.Option(help="Type of the task; handlers are chosen by it.")]
Conflict = Annotated[
    str | None,
    typer.Option(
        metavar="ignore|update|after",
        help="If a task with this id is live, keep it, replace it, or let it run and wait behind it.",
    ),
]
DebounceMaxSeconds = Annotated[
    float | None,
    typer.Option(help="With a delay and update: seconds from the first put after which no put delays it."),
]
AsText = Annotated[bool, typer.Option("--text", help="The payload is a string, not JSON.")]
Lines = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Put one task for each line of a file; - reads standard input."),
]
AsTasks = Annotated[
    bool,
    typer.Option(
        "--as-tasks",
        help="With --lines: a line is an object of arguments of a put, such as payload, task_id and at.",
    ),
]
Value = Annotated[
    float | None,
    typer.Option(help="The value of the task if it is done in time, 1 by default; order=value serves by it."),
]
DecayOption = Annotated[
    Decay | None,
    typer.Option("--decay", help="How its value falls until its deadline: not at all, or linearly to 0."),
]
Cost = Annotated[
    float | None, typer.Option(help="The units that its run takes of limits in units, 1 by default.")
]
Dead = Annotated[
    bool, typer.Option("--dead", help="Claim dead letters instead, for inspection. On attached tables only.")
]
Complete = Annotated[bool, typer.Option("--complete", hidden=True)]
Result = Annotated[str | None, typer.Option(metavar="JSON", help="The result, stored with the task.")]
RetryDelaySeconds = Annotated[
    float | None,
    typer.Option(help="Seconds until the task can be claimed. By default, exponential backoff with jitter."),
]
Progress = Annotated[
    float | None,
    typer.Option(metavar="0..1", help="Fraction of the work that is done, stored with the task."),
]
WaitSeconds = Annotated[
    float, typer.Option(min=0, help="How long to wait for the first task while there is none.")
]
Step = Annotated[str | None, typer.Option(help="With --progress: the current step.")]


def put(
    context: QueueContext,
    payload: Payload = None,
    task_id: NewId = None,
    priority: Priority = 0,
    delay_seconds: DelaySeconds = 0.0,
    at: At = None,
    max_age_seconds: MaxAgeSeconds = None,
    group: Group = None,
    kind: Kind = None,
    value: Value = None,
    decay: DecayOption = None,
    cost: Cost = None,
    on_conflict: Conflict = None,
    debounce_max_seconds: DebounceMaxSeconds = None,
    text: AsText = False,
    lines: Lines = None,
    as_tasks: AsTasks = False,
) -> None:
    """Put a task, or one for each line of a file.

    A duplicate changes nothing and exits with status 1.
    """
    session = context.session
    if not isinstance(context.obj, Session):  # a shell continues
        refuse_memory(session.address)
    options: dict[str, Any] = {"priority": priority, "delay_seconds": delay_seconds, "group": group}
    options |= {"at": None if at is None else instant("at", at), "max_age_seconds": max_age_seconds}
    options |= {"kind": kind, "value": value, "decay": decay, "cost": cost}
    options |= {"debounce_max_seconds": debounce_max_seconds}
    _check_lines(lines, payload, task_id, on_conflict, text=text, as_tasks=as_tasks)
    if lines is not None:
        put_lines(session, lines, options, as_text=text, as_tasks=as_tasks)
        return
    content = _payload(session, payload, as_text=text)
    conflict = cast("OnConflict | None", on_conflict)  # the queue validates it
    print_receipt(session, session.queue.put(content, task_id=task_id, on_conflict=conflict, **options))


def _check_lines(
    lines: str | None,
    payload: str | None,
    task_id: str | None,
    on_conflict: str | None,
    *,
    text: bool,
    as_tasks: bool,
) -> None:
    """Raise ValueError if an option of a put does not go with lines, or needs them."""
    if lines is None:
        if as_tasks:
            raise ValueError("as_tasks: needs --lines")
        return
    if payload is not None or task_id is not None:
        raise ValueError("lines: give either JSON or --lines; lines have no --task-id")
    if on_conflict is not None:
        raise ValueError("on_conflict: lines have no --task-id that could conflict")
    if as_tasks and text:
        raise ValueError("text: not with --as-tasks, whose lines are objects")


def _payload(session: Session, payload: str | None, *, as_text: bool) -> Any:
    """Return the payload of a put; None on an attached table, where the record itself is the payload."""
    if payload is None:
        if isinstance(session.queue, AttachedQueue):
            return None
        raise ValueError("payload: missing; give it as JSON, or use --lines FILE")
    text = sys.stdin.read() if payload == "-" else payload
    return text if as_text else parsed("payload", text)


def print_receipt(session: Session, receipt: Receipt) -> None:
    """Print the outcome of a put.

    Raises:
        RefusedError: If the id was taken.
    """
    session.see(receipt.task_id)
    answer = {"task_id": receipt.task_id, "outcome": receipt.outcome.value}
    if receipt.outcome is PutOutcome.DUPLICATE:
        session.output.answer(answer)
        msg = f"task {receipt.task_id!r}: already queued, or its id is taken; nothing was changed"
        raise RefusedError(msg)
    session.output.answer(answer, f"task {printable(receipt.task_id)}: {receipt.outcome}")


def put_lines(
    session: Session, source: str, options: Mapping[str, Any], *, as_text: bool, as_tasks: bool = False
) -> None:
    """Put one task for each line of a file. Nothing is put unless every line is valid.

    Args:
        session: The queue.
        source: The file; - for standard input.
        options: Further arguments of every put.
        as_text: Whether a line is a string rather than JSON.
        as_tasks: Whether a line has the arguments of a put, rather than a payload.

    Raises:
        ValueError: If a line is invalid, or the file cannot be read.
        RefusedError: If any task was a duplicate.
        StoreError: If the store did not write all of them.
    """
    tasks = _checked_tasks(session, source, options, as_text=as_text, as_tasks=as_tasks)
    duplicates = 0
    for batch in _with_progress([tasks[at : at + BATCH_TASKS] for at in range(0, len(tasks), BATCH_TASKS)]):
        receipts = session.queue.put_many(batch)
        duplicates += sum(receipt.outcome is PutOutcome.DUPLICATE for receipt in receipts)
        session.see(*(receipt.task_id for receipt in receipts))
    created = len(tasks) - duplicates
    session.output.answer({"created": created, "duplicates": duplicates}, f"{counted(created, 'task')} put")
    if duplicates:
        msg = f"{duplicates:,} of {len(tasks):,} were duplicates, and changed nothing"
        raise RefusedError(msg)


def _checked_tasks(
    session: Session, source: str, options: Mapping[str, Any], *, as_text: bool, as_tasks: bool
) -> list[dict[str, Any]]:
    """Return the arguments of the puts of a file, checked; warn if its payloads look like tasks."""
    values = list(_values(source, as_text=as_text))
    if as_tasks:
        tasks = [_task(number, value, options) for number, value in values]
    else:
        tasks = [{"payload": payload, **options} for _, payload in values]
        if values and all(_looks_like_task(value, options) for _, value in values):
            print_error("every line looks like a whole task, and is put as a payload; --as-tasks puts tasks")
    for (number, _), task in zip(values, tasks, strict=True):
        try:
            session.queue.admin.check(task)
        except ValueError as error:
            msg = f"lines: line {number}: {error}; nothing was put"
            raise ValueError(msg) from error
    return tasks


def _task(number: int, value: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a put from a line.

    Raises:
        ValueError: If the line has no payload, or a time is wrong.
    """
    if not isinstance(value, dict) or "payload" not in value:
        msg = f"lines: line {number} must be an object with a payload and other arguments of a put, such as "
        msg += '{"payload": .., "task_id": ".."}; nothing was put'
        raise ValueError(msg)
    at = value.get("at")
    return {**options, **value, **({"at": instant("at", at)} if isinstance(at, str) else {})}


def _looks_like_task(value: Any, options: Mapping[str, Any]) -> bool:
    """Return whether a payload has the arguments of a put, and nothing else."""
    telling = {"payload", "task_id", "at"}
    return (
        isinstance(value, dict) and bool(value.keys() & telling) and value.keys() <= telling | options.keys()
    )


def _values(source: str, *, as_text: bool) -> Iterator[tuple[int, Any]]:
    """Yield the lines that are not blank, parsed unless `as_text`, with their numbers."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"lines: cannot read {source!r} ({error})"
        raise ValueError(msg) from error
    # Programs on Windows write a byte order mark. `splitlines` would split at what JSON allows in strings.
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, line if as_text else parsed_json(line)
        except ValueError as error:
            msg = f"lines: line {number} is not JSON ({error}); nothing was put"
            raise ValueError(msg) from error


def _with_progress(batches: list[T]) -> Iterable[T]:
    """Return the batches; while they are put, a terminal on standard error shows a progress bar."""
    if not sys.stderr.isatty():
        return batches
    from rich.console import Console
    from rich.progress import track

    return track(batches, "put", console=Console(stderr=True), transient=True)


def claim(
    context: QueueContext,
    limit: Limit = 1,
    lease_seconds: LeaseSeconds = None,
    wait_seconds: WaitSeconds = 0,
    dead: Dead = False,
    complete: Complete = False,
) -> None:
    """Take the next tasks, each under a lease.

    Prints a token for each task, which settles it. Exits with status 1 if there is nothing to claim.
    """
    session = context.session
    if dead:
        if wait_seconds:
            raise ValueError("wait_seconds: not with dead: dead letters are there, or not")
        claims = session.attached("claim --dead").records.claim_dead(limit, lease_seconds=lease_seconds)
    else:
        claims = session.queue.claim(limit, lease_seconds=lease_seconds, wait_seconds=wait_seconds)
    if complete:
        _print_completed(session, claims)
    else:
        session.remember_claims(*claims)
        session.output.claims(claims)
    if not claims:
        why = "has no dead letter" if dead else "is paused" if session.queue.paused() else "has nothing"
        msg = f"queue {session.queue.name!r} {why}" + ("" if why == "is paused" else " to claim")
        raise RefusedError(msg)


def _print_completed(session: Session, claims: Sequence[Claim]) -> None:
    """Complete claims before the work, and print the completed tasks: each is delivered at most once."""
    tasks: list[Task] = []
    for claim in claims:
        try:
            tasks.append(session.queue.complete(claim))
        except LeaseLost:
            continue  # another caller has it
        except StoreError as error:
            if not tasks:
                raise
            # A completed task must be printed: no later claim returns it.
            print_error(f"only {len(tasks)} of {len(claims)} tasks: {error}")
            break
    session.see(*(task.task_id for task in tasks))
    if tasks:
        session.current = tasks[-1].task_id
    session.output.dequeued(tasks, session.queue.admin.now())


def complete(
    context: QueueContext, task_id: TaskId = None, token: Token = None, result: Result = None
) -> None:
    """Settle a claimed task as SUCCESS."""
    session = context.session
    value = None if result is None else parsed("result", result)
    _settled(session, session.queue.complete(session.claim(task_id, token), result=value))


def fail(context: QueueContext, task_id: TaskId = None, token: Token = None, error: Error = None) -> None:
    """Settle a claimed task as FAILURE, a dead letter.

    Attempts that remain are not used; `freshq redrive` brings the task back.
    """
    session = context.session
    _settled(session, session.queue.fail(session.claim(task_id, token), error=error))


def retry(
    context: QueueContext,
    task_id: TaskId = None,
    token: Token = None,
    error: Error = None,
    delay_seconds: RetryDelaySeconds = None,
) -> None:
    """Return a claimed task for a later attempt.

    After its last attempt it becomes a dead letter.
    """
    session = context.session
    _settled(
        session, session.queue.retry(session.claim(task_id, token), error=error, delay_seconds=delay_seconds)
    )


def release(
    context: QueueContext,
    task_id: TaskId = None,
    token: Token = None,
    delay_seconds: DelaySeconds = 0,
) -> None:
    """Return a claimed task without counting the attempt."""
    session = context.session
    _settled(session, session.queue.release(session.claim(task_id, token), delay_seconds=delay_seconds))


def _settled(session: Session, task: Task) -> None:
    session.claims.pop(task.task_id, None)
    session.print_changed(task)


def extend(
    context: QueueContext,
    task_id: TaskId = None,
    token: Token = None,
    lease_seconds: LeaseSeconds = None,
    progress: Progress = None,
    step: Step = None,
) -> None:
    """Extend the lease of a claimed task.

    The new lease counts from now.
    """
    session = context.session
    claim = session.claim(task_id, token)
    held = session.queue.extend(claim, lease_seconds=lease_seconds, progress=progress, step=step)
    session.remember_claims(held)
    session.output.claims([held])
