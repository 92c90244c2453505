"""`freshq doctor`: look at a queue and its stack, and say what to do."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer

from freshq.cli.command import QueueContext
from freshq.cli.errors import ExitStatus, printable
from freshq.cli.output import counted, span
from freshq.cli.stacks import Stack
from freshq.errors import FreshqError, needs
from freshq.queue.core import core_of
from freshq.stores.base import Finding, Health

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.queue.base import BaseQueue

# A machine whose clock differs by more sheds and recovers at the wrong time.
CLOCK_SECONDS: Final = 1.0
# States of a stack in which it has what its template says.
SETTLED: Final = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE")
# A larger share of new tasks that will not be served in time is an overload.
OVERLOAD_RATIO: Final = 0.05
# PostgreSQL removes no dead rows while a transaction is open; claims then read more of them.
OLD_SNAPSHOT_SECONDS: Final = 300


def doctor(context: QueueContext) -> None:
    """Look for what is wrong with a queue, and say what to do.

    Changes nothing. Exits with status 1 if something is wrong.
    """
    session = context.session
    found = list(_of_stack(session.stack)) if session.stack is not None else []
    found += _of_queue(session.queue)
    chars = max(len(each.subject) for each in found)
    lines = []
    for each in found:
        advice = f"; {each.action}" if each.action else ""
        lines.append(printable(f"{each.health:<7}  {each.subject:<{chars}}  {each.text}{advice}"))
    session.output.answer([asdict(each) for each in found], *lines)
    if any(each.health is Health.WRONG for each in found):
        raise typer.Exit(ExitStatus.REFUSED)


def _of_queue(queue: BaseQueue) -> Iterator[Finding]:
    try:
        yield from core_of(queue).store.examine()
        options = _of_options(queue)
        yield options
        if options.health is Health.OK:  # otherwise every verb refuses them
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


def _of_stack(name: str) -> Iterator[Finding]:
    stack = Stack.describe(name)
    settled = stack.status in SETTLED
    advice = "" if settled else "wait, or look at its events in CloudFormation"
    yield Finding(Health.OK if settled else Health.WARNING, "stack", f"{name} is {stack.status}", advice)
    if stack.gone:
        text = f"{', '.join(stack.gone)} do not count any more"
        yield Finding(Health.WARNING, "stack", text, f"freshq configure --stack {name} --adopt, then deploy")
    yield from _of_alarms(name)


def _of_alarms(stack: str) -> Iterator[Finding]:
    with needs("aws"):
        from botocore.exceptions import BotoCoreError, ClientError
    try:
        alarms = _alarms(stack)
    except (BotoCoreError, ClientError) as error:
        yield Finding(Health.UNKNOWN, "alarms", str(error), "allow cloudwatch:DescribeAlarms")
        return
    for alarm in alarms:
        text = f"{alarm['AlarmName']}: {alarm.get('AlarmDescription', '')}"
        yield Finding(Health.WRONG, "alarm", text, "see docs/operations.md, Alarms")
    if not alarms:
        yield Finding(Health.OK, "alarms", "none stands")


def _alarms(stack: str) -> list[dict[str, Any]]:
    """Return the alarms of a stack that stand now."""
    with needs("aws"):
        import boto3

        from freshq.stores.dynamodb.calls import own_region
    client = boto3.client("cloudwatch", own_region())
    pages = client.get_paginator("describe_alarms").paginate(AlarmNamePrefix=f"{stack}-")
    return [alarm for page in pages for alarm in page["MetricAlarms"] if alarm["StateValue"] == "ALARM"]
