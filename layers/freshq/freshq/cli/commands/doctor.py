"""Commands for operators: check a queue and its stack, erase data, show who did what, explain errors."""

from __future__ import annotations

import gzip
import inspect
import json
import re
import time
import zlib
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from freshq import errors
from freshq.cli.command import QueueContext, Yes
from freshq.cli.errors import ExitStatus
from freshq.cli.output import counted, span
from freshq.cli.session import AUDIT, AUDIT_ENTRIES, FORGOTTEN, confirm, shortened
from freshq.cli.stacks import BUCKET, EVENTS, Stack, archived, client_of, contradictions, failures
from freshq.errors import FreshqError, IllegalTransition, NotFound, needs, printable, quoted
from freshq.policy.shedding import ShedReason
from freshq.queue.core import core_of
from freshq.queue.shared.measures import change_record
from freshq.stores.base import Finding, Health

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from freshq.cli.session import Session
    from freshq.queue.base import BaseQueue

# A machine whose clock differs by more sheds and recovers at the wrong time.
CLOCK_SECONDS: Final = 1.0
# States of a stack that matches its template.
SETTLED: Final = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE")
# A larger share of new tasks that will not be served in time is an overload.
OVERLOAD_RATIO: Final = 0.05
# PostgreSQL removes no dead rows while a transaction is open; claims then read more of them.
OLD_SNAPSHOT_SECONDS: Final = 300
SHEDDING: Final = (
    "What to do: nothing in a burst, since shedding keeps the rest fresh. If it lasts, add workers; `freshq "
    "pressure` shows the load, and `freshq advise` which settings serve it best."
)


def doctor(context: QueueContext) -> None:
    """Look for what is wrong with a queue, and say what to do.

    Changes nothing. Exits with status 1 if something is wrong. `freshq audit` shows what operators did, and
    `freshq explain CODE` what an error means.
    """
    session = context.session
    found = list(_of_stack(session.stack, session.queue)) if session.stack is not None else []
    found += _of_queue(session.queue)
    _tell(session, found, {health: health.value for health in Health})


def _tell(session: Session, found: Sequence[Finding], words: Mapping[Health, str]) -> None:
    """Print a line for each finding, under a word for its health; fail if one is wrong."""
    health_chars, chars = max(map(len, words.values())), max(len(each.subject) for each in found)
    lines = []
    for each in found:
        advice = f"; {each.action}" if each.action else ""
        word = f"{words[each.health]:<{health_chars}}"
        lines.append(printable(f"{word}  {each.subject:<{chars}}  {each.text}{advice}"))
    session.output.answer([asdict(each) for each in found], *lines)
    if any(each.health is Health.WRONG for each in found):
        raise typer.Exit(ExitStatus.REFUSED)


def _of_queue(queue: BaseQueue) -> Iterator[Finding]:
    try:
        yield from core_of(queue).store.examine()
        options = _of_options(queue)
        yield options
        if options.health is Health.OK:  # otherwise every verb refuses them
            yield from _of_dissents(queue)
            yield _of_clock(queue)
            yield from _of_tasks(queue)
    except FreshqError as error:
        yield Finding(Health.WRONG, "store", str(error))


def _of_clock(queue: BaseQueue) -> Finding:
    ahead_seconds = time.time() - queue.admin.now()
    if abs(ahead_seconds) < CLOCK_SECONDS:
        return Finding(Health.OK, "clock", "the machine and the store agree")
    direction = "ahead of" if ahead_seconds > 0 else "behind"
    text = f"this machine is {span(abs(ahead_seconds))} {direction} the store"
    return Finding(Health.WARNING, "clock", text, "set it by NTP")


def _of_options(queue: BaseQueue) -> Finding:
    options = core_of(queue).options
    try:
        options.follow()
    except ValueError as error:
        return Finding(Health.WRONG, "options", str(error))
    stored = [name for name in options.storable if options.source(name) == "stored"]
    return Finding(Health.OK, "options", f"{counted(len(stored), 'option')} stored with the queue")


def _of_dissents(queue: BaseQueue) -> Iterator[Finding]:
    """List processes that named other options than the queue's."""
    for each in core_of(queue).options.dissents():
        ago = f"{span(max(0.0, queue.admin.now() - each.at))} ago"
        flag = f"--{each.name.replace('_', '-')} {each.theirs}"
        if each.is_used:
            text = f"{each.process} uses {each.name}={each.theirs}, the queue has {each.ours}; seen {ago}"
            action = f"open it there without override, or freshq configure {flag}"
        else:
            text = f"{each.process} named {each.name}={each.theirs}, the queue has {each.ours}; seen {ago}"
            action = f"its next start will be refused: take it out there, or freshq configure {flag}"
        yield Finding(Health.WARNING, "options", text, action)


def _of_tasks(queue: BaseQueue) -> Iterator[Finding]:
    stats, pressure = queue.stats(approximate=True), queue.pressure()
    if queue.paused():
        yield Finding(Health.WARNING, "claims", "suspended", "freshq resume, once the reason is gone")
    late = 1 - pressure.probability_in_time
    if late > OVERLOAD_RATIO:
        text = f"{late:.0%} of new tasks will not be served in time"
        yield Finding(Health.WARNING, "load", text, "more slots if the downstream can take them")
    else:
        yield Finding(Health.OK, "load", f"{counted(stats.pending, 'task')} waiting, served in time")
    if (stats.oldest_snapshot_seconds or 0) > OLD_SNAPSHOT_SECONDS:
        text = (
            f"a transaction of {span(stats.oldest_snapshot_seconds)} keeps {stats.dead_rows or 0:,} dead rows"
        )
        yield Finding(Health.WARNING, "snapshot", text, "end it; see docs/sql.md, Old snapshots")
    if stats.failure:
        text = f"{counted(stats.failure, 'dead letter')}, the oldest {span(stats.oldest_dead_seconds)} old"
        yield Finding(Health.WARNING, "dead", text, "freshq list --status FAILURE, then redrive or purge")
    else:
        yield Finding(Health.OK, "dead", "no dead letters")


def _of_stack(name: str, queue: BaseQueue) -> Iterator[Finding]:
    stack = Stack.describe(name)
    settled = stack.status in SETTLED
    advice = "" if settled else "wait, or look at its events in CloudFormation"
    yield Finding(Health.OK if settled else Health.WARNING, "stack", f"{name} is {stack.status}", advice)
    yield from _of_parameters(stack, queue)
    if stack.parameters.get("stage") == "prod":
        yield from _of_protection(name)
    yield from _of_alarms(name)


def _of_parameters(stack: Stack, queue: BaseQueue) -> Iterator[Finding]:
    """Compare the parameters of a stack with each other and with its stored options."""
    with needs("aws"):
        from freshq.aws.pass_options import parse_pass_options, stored_pass_options
    try:
        passes = parse_pass_options(stored_pass_options(queue))
    except (FreshqError, ValueError) as error:
        yield Finding(Health.UNKNOWN, "settings", str(error))
        return
    problems = list(contradictions(stack.parameters, passes))
    for problem in problems:
        yield Finding(Health.WRONG, "settings", problem)
    if not problems:
        yield Finding(Health.OK, "settings", "they fit each other and the stored options")


def _of_protection(stack: str) -> Iterator[Finding]:
    """Check whether one wrong parameter could remove the protection from a table in production."""
    try:
        policy = client_of("cloudformation").get_stack_policy(StackName=stack).get("StackPolicyBody", "")
    except failures() as error:
        yield Finding(Health.UNKNOWN, "policy", str(error), "allow cloudformation:GetStackPolicy")
        return
    if "QueueTable" in policy:
        yield Finding(Health.OK, "policy", "an update cannot change the table")
    else:
        text = "an update with Stage=dev would take deletion protection and backups from the table"
        yield Finding(Health.WARNING, "policy", text, "set stack-policy.json, see docs/deploy.md, Protection")


def _of_alarms(stack: str) -> Iterator[Finding]:
    try:
        alarms = _alarms(stack)
    except failures() as error:
        yield Finding(Health.UNKNOWN, "alarms", str(error), "allow cloudwatch:DescribeAlarms")
        return
    for alarm in alarms:
        text = f"{alarm.get('AlarmName', stack)}: {alarm.get('AlarmDescription', '')}"
        yield Finding(Health.WRONG, "alarm", text, "see docs/operations.md, Alarms")
    if not alarms:
        yield Finding(Health.OK, "alarms", "none stands")


def _alarms(stack: str) -> list[dict[str, Any]]:
    """Return the alarms of a stack that are on now."""
    pages = client_of("cloudwatch").get_paginator("describe_alarms").paginate(AlarmNamePrefix=f"{stack}-")
    alarms = [alarm for page in pages for alarm in page.get("MetricAlarms", [])]
    return [alarm for alarm in alarms if alarm.get("StateValue") == "ALARM"]


Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="TASK_ID", help="Erase this task; repeatable.")
]
OfGroup = Annotated[str | None, typer.Option("--group", help="Erase all tasks of this group.")]
Events = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", exists=True, file_okay=False, help="A folder of landed events to erase the group from."
    ),
]
# The errors of a file that cannot be read, written or unpacked, and their remedies.
DAMAGED: Final = (OSError, EOFError, zlib.error)
AGAIN: Final = "replace or delete it, and repeat this command"
GZIP: Final = b"\x1f\x8b"
# Days for which a stack's logs are kept, by stage, as in template.yaml.
LOG_DAYS: Final = {"local": 1, "dev": 7}
PROD_LOG_DAYS: Final = 90
# What a finding says of the data in a place, by its health.
ERASED: Final = {
    Health.OK: "erased",
    Health.WARNING: "not reached",
    Health.UNKNOWN: "not known",
    Health.WRONG: "failed",
}
# Tasks may be put again while they are deleted.
MOST_ROUNDS: Final = 10


def forget(
    context: QueueContext,
    task_ids: Ids = None,
    group: OfGroup = None,
    events: Events = None,
    yes: Yes = False,
) -> None:
    """Erase tasks, and their group wherever it is kept.

    Deletes the tasks with payloads, results and errors, and erases their group from the history, from the
    archive of --stack, and from the events in --events. Says what it cannot reach, and until when. Exits with
    status 1 if a file could not be read.
    """
    session, queue = context.session, context.session.queue
    if (group is None) == (not task_ids):
        raise ValueError("--id, --group: give one of them")
    ids = tuple(dict.fromkeys(task_ids or ()))
    which = f"all tasks of group {group!r}" if group is not None else counted(len(ids), "task")
    confirm(f"Erase {which} of queue {queue.name!r}, including claimed ones?", yes=yes)
    found = [_deleted(queue, ids, group)]
    _scrub(queue, group)
    found += core_of(queue).store.erase(queue.name, ids, group)
    if events is not None:
        found += _of_folder(events, ids, group)
    if session.stack is not None:
        found += _erased_of_stack(Stack.describe(session.stack), ids, group)
    _tell(session, found, ERASED)


def _deleted(queue: BaseQueue, ids: Collection[str], group: str | None) -> Finding:
    """Delete tasks; say how many."""
    deleted = 0
    for task_id in ids:
        try:
            deleted += queue.purge(task_ids=[task_id], confirm=queue.name)
        except (NotFound, IllegalTransition):  # it is gone, or an application's record that is in no queue
            continue
    for _round in range(MOST_ROUNDS if group is not None else 0):
        some = queue.purge(where=lambda task: task.group == group, confirm=queue.name)
        if not some:
            break
        deleted += some
    return Finding(Health.OK, "queue", f"{counted(deleted, 'task')} deleted")


def _scrub(queue: BaseQueue, group: str | None) -> None:
    """Erase a group from the audit record."""
    if group is None:
        return

    def scrubbed(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
        entries = values.get("entries", [])
        for each in entries:
            hidden = [name for name, value in each["given"].items() if value == shortened(group)]
            each["given"] |= dict.fromkeys(hidden, FORGOTTEN)
        return {"entries": entries} if entries else None

    change_record(core_of(queue).store, queue.name, AUDIT, scrubbed)


def without_group(data: bytes, ids: Collection[str], group: str | None) -> tuple[bytes, int]:
    """Return landed events with the group of some tasks removed, and the number of events that had it.

    Args:
        data: Lines of JSON, perhaps gzipped. Lines that are not JSON are kept.
        ids: The tasks; empty if `group` names them.
        group: The group of the tasks; None if `ids` names them.

    Raises:
        OSError, EOFError, zlib.error: If it is gzipped and damaged.
    """
    packed = data.startswith(GZIP)
    lines, erased = [], 0
    for line in (gzip.decompress(data) if packed else data).splitlines(keepends=True):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and _is_meant(event, ids, group):
            del event["group"]
            erased += 1
            lines.append(json.dumps(event, separators=(",", ":")).encode() + b"\n")
        else:
            lines.append(line)
    if not erased:
        return data, 0
    text = b"".join(lines)
    return (gzip.compress(text, mtime=0) if packed else text), erased


def _is_meant(event: Mapping[str, Any], ids: Collection[str], group: str | None) -> bool:
    if event.get("group") is None:
        return False
    return event["group"] == group if group is not None else event.get("task_id") in ids


def _of_folder(folder: Path, ids: Collection[str], group: str | None) -> Iterator[Finding]:
    total = 0
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        try:
            data, erased = without_group(path.read_bytes(), ids, group)
            if erased:
                whole = path.with_name(f".{path.name}.part")  # the pipeline reads no hidden files
                whole.write_bytes(data)
                whole.replace(path)
        except DAMAGED as error:
            yield Finding(Health.WRONG, "events", f"{path}: {error}", AGAIN)
            continue
        total += erased
    yield Finding(Health.OK, "events", f"the group erased from {counted(total, 'event')} below {folder}")
    yield TABLES


TABLES: Final = Finding(
    Health.WARNING,
    "pipeline",
    "the group in its tables and kept runs",
    "until freshq-pipeline run --full-refresh --keep-runs 1 has read the events twice",
)


def _erased_of_stack(stack: Stack, ids: Collection[str], group: str | None) -> Iterator[Finding]:
    days = LOG_DAYS.get(stack.parameters.get("stage", ""), PROD_LOG_DAYS)
    yield Finding(Health.WARNING, "logs", "ids and errors of tasks", f"until they are {days} days old")
    yield Finding(Health.WARNING, "traces", "ids of tasks in X-Ray", "until they are 30 days old")
    bucket = stack.outputs.get(BUCKET)
    if bucket is None:
        return
    yield from _of_bucket(bucket, ids, group)
    late = "changes that Firehose has not written yet"
    yield Finding(Health.WARNING, "archive", late, "until this command is repeated, in 15 minutes")
    yield TABLES


def _of_bucket(bucket: str, ids: Collection[str], group: str | None) -> Iterator[Finding]:
    total = 0
    try:
        for client, key in archived(bucket, EVENTS, "errors/"):
            try:
                held = client.get_object(Bucket=bucket, Key=key)["Body"].read()
                data, erased = without_group(held, ids, group)
                if erased:
                    client.put_object(Bucket=bucket, Key=key, Body=data)
                total += erased
            except DAMAGED as error:
                yield Finding(Health.WRONG, "archive", f"{key}: {error}", AGAIN)
    except failures() as error:
        yield Finding(Health.WRONG, "archive", str(error), "allow it, and repeat this command")
    yield Finding(Health.OK, "archive", f"the group erased from {counted(total, 'event')} in {bucket}")


Commands = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of commands.")]


def audit(context: QueueContext, limit: Commands = AUDIT_ENTRIES) -> None:
    """Show what operators did to the queue, the latest last.

    Lists commands that pause, resume, purge, cancel, redrive, reprioritize, configure or forget; the queue
    keeps the last 50.
    Who: the identity in AWS, or the user of the database, and the user of the machine.
    """
    session = context.session
    core = core_of(session.queue)
    record = core.store.read_record(session.queue.name, AUDIT)
    entries = [] if record is None else list(record.values.get("entries", []))[-limit:]
    line: Callable[[Mapping[str, Any]], str] = _line
    session.output.answer(entries, *(map(line, entries) if entries else ["nothing is recorded"]))


def _line(entry: Mapping[str, Any]) -> str:
    at = datetime.fromtimestamp(float(entry["at"]), UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    given = " ".join(f"{name}={value}" for name, value in entry["given"].items())
    return printable(f"{at}  {entry['by']}  {entry['verb']} {given}".rstrip() + f"  {entry['outcome']}")


def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE", help="An error, such as TableMissing, or a shed reason, such as admission."
        ),
    ] = None,
) -> None:
    """Say what an error means, and what to do.

    Without CODE, list the errors and the shed reasons.
    """
    known = explanations()
    if code is None:
        width = max(map(len, known))
        for name, paragraphs in known.items():
            typer.echo(f"{name:<{width}}  {paragraphs[0].partition('. ')[0].removesuffix('.')}")
        return
    names = {name.lower(): name for name in known}
    if code.lower() not in names:
        msg = f"code: there is no {quoted(code)}; use one of {', '.join(known)}"
        raise ValueError(msg)
    typer.echo("\n\n".join(known[names[code.lower()]]))


def explanations() -> dict[str, list[str]]:
    """Return paragraphs on each error and shed reason: its meaning, what to do, where to read on."""
    found = {}
    for name in dir(errors):
        text = inspect.getdoc(getattr(errors, name)) or ""
        prose = re.split(r"\n\n(?:Attributes|Example):", text)[0]
        paragraphs = [" ".join(each.split()) for each in prose.split("\n\n")]
        found[name] = [*paragraphs, f"See docs/reference/errors.md#freshq.errors.{name}"]
    listed = re.split(r"\n\n(?:Example)", inspect.getdoc(ShedReason) or "")[0]
    reasons = " ".join(listed.split())
    for reason in ShedReason:
        meaning = re.search(rf"\b{reason.name}: (.+?\.)(?= [A-Z]+: |$)", reasons)
        shed = f"A task was shed, because {meaning[1]}" if meaning else ""
        found[reason.value] = [shed, SHEDDING, "See docs/overload.md#what-is-shed-and-why"]
    return found
