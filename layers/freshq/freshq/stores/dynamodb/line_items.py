"""Line records and closings as items."""

from __future__ import annotations

import logging
import secrets
import uuid
from math import ceil
from typing import TYPE_CHECKING, Final

from freshq.model.lifecycle import new_token
from freshq.model.new_task import RESERVED_ID_PREFIX
from freshq.stores.dynamodb.values import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freshq.stores.dynamodb.names import Item
    from freshq.stores.lines import Line

logger = logging.getLogger(__name__)

LINE_PREFIX: Final = f"{RESERVED_ID_PREFIX}line#"
CLOSING: Final = "closing"
# TTL is the last resort for items that no process deletes.
TTL_SECONDS: Final = 7 * 86_400
# A record is written again when its TTL leaves less than this after the deadline of a task.
TTL_MARGIN_SECONDS: Final = 86_400


def record_id(queue: str, line: Line) -> str:
    """Return the id of the record of a line."""
    return f"{LINE_PREFIX}{queue}#{_name(line)}"


def line_record(queue: str, line: Line, now: float, deadline: float) -> Item:
    """Return the record of a line.

    Args:
        queue: Name of the queue.
        line: The line.
        now: Current time in seconds.
        deadline: Deadline of a task that is put into the line.
    """
    # No two records of a line have the same time, even if a clock stands still.
    opened = now + secrets.randbelow(1000) / 1e6
    return {
        "taskId": {"S": record_id(queue, line)},
        "dueShard": {"S": lines_partition(queue)},
        "dueAt": milliseconds(opened),
        "ttl": {"N": str(ceil(deadline) + TTL_SECONDS)},
        "requestToken": {"S": new_token()},
    }


def outlasts(record: Item, deadline: float) -> bool:
    """Return whether a line record stays until well after a deadline."""
    try:
        return int(record["ttl"]["N"]) >= deadline + TTL_MARGIN_SECONDS
    except (KeyError, TypeError, ValueError):
        return False


def lines_partition(queue: str) -> str:
    """Return the partition of the line records in the due index."""
    return f"{queue}#LINES"


def closings_partition(queue: str) -> str:
    """Return the partition of the closings in the due index."""
    return f"{queue}#CLOSING"


def closing_item(queue: str, lines: Iterable[Line], due_at: float) -> Item:
    """Return the closing of some lines, due at a time in seconds."""
    return {
        "taskId": {"S": f"{LINE_PREFIX}{queue}#{CLOSING}#{uuid.uuid4().hex}"},
        "dueShard": {"S": closings_partition(queue)},
        "dueAt": milliseconds(due_at),
        "lines": {"SS": [_name(line) for line in lines]},
        "ttl": {"N": str(ceil(due_at) + TTL_SECONDS)},
        "requestToken": {"S": new_token()},
    }


def lines_of(closing: Item) -> list[Line]:
    """Return the lines that a closing names; of a damaged one, those that can be read."""
    names: Sequence[str] = closing.get("lines", {}).get("SS", ())
    return [line for name in names if (line := _named(name)) is not None]


def line_of(item_id: str, queue: str) -> Line | None:
    """Return the line of a record; None if its id names none."""
    return _named(item_id.removeprefix(f"{LINE_PREFIX}{queue}#"))


def _name(line: Line) -> str:
    level, group = line
    return f"{level}#{group}"


def _named(name: str) -> Line | None:
    level, _, group = name.partition("#")
    if not level.isdecimal():
        logger.warning("left out: %r names no line", name)
        return None
    return int(level), group
