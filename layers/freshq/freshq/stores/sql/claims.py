"""How tasks are claimed: the best of the only line at once, or of several lines in turns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from freshq.model.task import TaskStatus
from freshq.stores.sql.rows import Stored, line_key, microseconds, parse_line, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

    from freshq.stores.base import ClaimRequest
    from freshq.stores.lines import Line
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.statements import Statements

PAST_EVERY_TIME_US: Final = 2**62


@dataclass
class Claims:
    """Claims tasks of a store.

    Attributes:
        database: Where the tasks are.
        statements: The statements on them.
    """

    database: Database
    statements: Statements
    # The line that was the only one of a queue the last time; a claim that trusts it finds out.
    _only_line: dict[str, Line] = field(default_factory=dict)

    def claim(self, request: ClaimRequest) -> list[Stored]:
        """Take up to `request.limit` claimable tasks, best first.

        Most queues have one priority level and no groups. There, one statement does it all: it takes
        from the only line, and nothing if there is another one with anything in it.
        """
        if self.statements.quick_take:
            found = self._of_only_line(request)
            if found:
                return found
        return self.database.transaction(lambda connection, again: self.of_all(connection, request, again))

    def _of_only_line(self, request: ClaimRequest) -> list[Stored]:
        """Take from the line that was the only one the last time, if it still is."""
        line = self._only_line.get(request.queue, (0, None))
        newest_first = request.orders.newest_first(
            line, request.now, partial(self._oldest_apart, request, line)
        )
        parameters = self._candidates_of(request, line) | self._taking(request) | {"at_most": request.limit}
        take, seek = self.statements.quick_take[newest_first], self.statements.quick_taken
        rows, _changed = self.database.quick(take, parameters, seek)
        found = [stored(row) for row in rows]
        if not found:
            return []
        found.sort(key=_place, reverse=newest_first)
        request.turns.record(*line, len(found))
        return found

    def _oldest_apart(self, request: ClaimRequest, line: Line) -> float | None:
        return self.database.single(lambda connection, _again: self._oldest(connection, request, line))

    def of_all(self, connection: sa.Connection, request: ClaimRequest, again: bool) -> list[Stored]:  # noqa: FBT001 - as it is called
        """Take tasks from all lines in turns, in a transaction."""
        if again and (held := self._taken(connection, request)):
            return held
        chosen = list(islice(self.candidates(connection, request), request.limit))
        if not chosen:
            return []
        connection.execute(
            self.statements.take,
            {"of_queue": request.queue, "ids": [each.task.task_id for each in chosen]}
            | self._taking(request),
        )
        return [as_taken(each, request) for each in chosen]

    def candidates(self, connection: sa.Connection, request: ClaimRequest) -> Iterator[Stored]:
        """Yield what may be claimed, best first, each locked until the transaction ends."""
        rows = connection.execute(self.statements.lines, {"of_queue": request.queue})
        lines = [parse_line(row[0]) for row in rows]
        if len(lines) == 1:
            self._only_line[request.queue] = lines[0]
        for level in sorted({level for level, _group in lines}, reverse=True):
            groups = [group for of_level, group in lines if of_level == level]
            share = max(1, request.limit // len(groups))
            yield from request.turns.interleave(
                level, {group: self._line(connection, request, (level, group), share) for group in groups}
            )

    def _line(
        self, connection: sa.Connection, request: ClaimRequest, line: Line, share: int
    ) -> Iterator[Stored]:
        """Yield what may be claimed of a line, best first, looking for no more than its share at a time."""
        newest_first = self._newest_first(connection, request, line)
        parameters = self._candidates_of(request, line) | start_of_line(newest_first=newest_first)
        while True:
            rows = connection.execute(
                self.statements.page[newest_first], parameters | {"at_most": share}
            ).all()
            yield from map(stored, rows)
            if len(rows) < share:
                return
            last = rows[-1]
            parameters |= {"beyond_us": last.created_us, "beyond_id": last.task_id}
            share *= 2

    def _newest_first(self, connection: sa.Connection, request: ClaimRequest, line: Line) -> bool:
        oldest = partial(self._oldest, connection, request, line)
        return request.orders.newest_first(line, request.now, oldest)

    def _oldest(self, connection: sa.Connection, request: ClaimRequest, line: Line) -> float | None:
        created_us = connection.execute(
            self.statements.oldest_of_line, self._candidates_of(request, line)
        ).scalar()
        return None if created_us is None else created_us / 1e6

    def _taken(self, connection: sa.Connection, request: ClaimRequest) -> list[Stored]:
        """Return what an earlier try of this claim took, whose answer was lost."""
        rows = connection.execute(
            self.statements.taken,
            {
                "of_queue": request.queue,
                "lease_until_us": microseconds(request.lease_until),
                "token": request.tokens[0],
            },
        )

        def place(each: Stored) -> tuple[int, float, str]:
            task = each.task
            line = (task.priority, task.group)
            sign = -1 if self._newest_first(connection, request, line) else 1
            return -task.priority, sign * task.created, task.task_id

        return sorted(map(stored, rows), key=place)

    @staticmethod
    def _candidates_of(request: ClaimRequest, line: Line) -> dict[str, Any]:
        return {
            "of_queue": request.queue,
            "of_line": line_key(*line),
            "created_after_us": microseconds(request.created_after),
            "deadline_after_us": microseconds(request.deadline_after),
        }

    @staticmethod
    def _taking(request: ClaimRequest) -> dict[str, Any]:
        """Return what a claim writes: one token for all it takes, since each task has but one holder."""
        return {
            "now_us": microseconds(request.now),
            "token": request.tokens[0],
            "lease_until_us": microseconds(request.lease_until),
            "new_expires": request.expires,
        }


def start_of_line(*, newest_first: bool) -> dict[str, Any]:
    """Return the place before every candidate of a line."""
    return {"beyond_us": PAST_EVERY_TIME_US if newest_first else -1, "beyond_id": ""}


def _place(each: Stored) -> tuple[float, str]:
    return each.task.created, each.task.task_id


def as_taken(each: Stored, request: ClaimRequest) -> Stored:
    """Return a candidate as the claim has made it."""
    task = replace(
        each.task,
        status=TaskStatus.TAKEN,
        updated=request.now,
        attempts=each.task.attempts + 1,
        lease_token=request.tokens[0],
        lease_until=request.lease_until,
        expires=request.expires,
        request_token=request.tokens[0],
    )
    return Stored(task, each.problem)
