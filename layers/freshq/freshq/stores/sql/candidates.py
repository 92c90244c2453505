"""The candidates of a claim: the best tasks of each line, locked for a transaction."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.model.lifecycle import claim_times
from freshq.model.task import TaskStatus
from freshq.stores.sql.claim_statements import ClaimStatements
from freshq.stores.sql.line_window import LineWindow
from freshq.stores.sql.part import live_in_line
from freshq.stores.sql.rows import Stored, line_key, microseconds, stored
from freshq.stores.sql.settles import SettlePart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import sqlalchemy as sa

    from freshq.model.task import Task
    from freshq.stores.claim_request import ClaimMoment, ClaimRequest
    from freshq.stores.lines import Line
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

# Index rows that a claim looks at, in all its lines, to pass over tasks that are too late by their own
# deadline: a millisecond. Of each line it looks at `MIN_LOOKED_ROWS` at least.
LOOKED_ROWS: Final = 1_000
MIN_LOOKED_ROWS: Final = 64
# Rows on the first page of a line, beyond those wanted: others hold some, some are too late.
SPARE_ROWS: Final = 20
# Rows on the second page: the caller may shed as many before it keeps one.
SECOND_PAGE_ROWS: Final = 50


class Candidates(SettlePart):
    """Finds the best tasks of lines."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.claim_sql = ClaimStatements.shared(schema, database.engine.dialect)
        self.window = LineWindow(schema, database.engine.dialect)

    def candidates(
        self, connection: sa.Connection, request: ClaimRequest, moment: ClaimMoment
    ) -> Iterator[Stored]:
        """Yield the claimable tasks of all lines, best first, each locked until the transaction ends."""
        return self._best_first(connection, request, moment, self.window, self.claim_sql.page)

    @override
    def peek(self, request: ClaimRequest) -> list[Task]:
        def look(connection: sa.Connection) -> list[Task]:
            # A separate window: the place where the claims of this process continue stays as it is.
            shown = self._best_first(
                connection, request, request.moment(), self.window.copy(), self.claim_sql.shown
            )
            return [each.task for each in islice((each for each in shown if not each.problem), request.limit)]

        return self.database.read(look)

    def _best_first(
        self,
        connection: sa.Connection,
        request: ClaimRequest,
        moment: ClaimMoment,
        window: LineWindow,
        pages: Mapping[bool, sa.Select[Any]],
    ) -> Iterator[Stored]:
        def find(name: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
            return connection.execute(window.sql.finds[name], parameters).scalars().all()

        for lines in window.levels(find, request.queue):
            level, groups = lines[0][0], [group for _level, group in lines]
            share = max(1, request.limit // len(groups))
            of_group = {
                group: self._candidates_of(connection, request, moment, (level, group), share, pages)
                for group in groups
            }
            yield from request.turns.interleave(level, of_group)

    def _candidates_of(
        self,
        connection: sa.Connection,
        request: ClaimRequest,
        moment: ClaimMoment,
        line: Line,
        share: int,
        pages: Mapping[bool, sa.Select[Any]],
    ) -> Iterator[Stored]:
        """Yield claimable tasks of a line, best first: a small page, then a larger one."""
        oldest = partial(self.oldest_of_line, request, line, connection)
        newest_first = request.orders.newest_first(line, moment.now, oldest)
        parameters = in_time(request.queue, moment) | {"of_line": line_key(*line)}
        seen: set[str] = set()
        larger = max(request.limit, SECOND_PAGE_ROWS)
        for at_most, looked in ((share, share + SPARE_ROWS), (share + larger, larger + LOOKED_ROWS)):
            page = parameters | {"at_most": at_most, "looked": looked}
            rows = map(stored, connection.execute(pages[newest_first], page).all())
            for each in sorted(rows, key=position, reverse=newest_first):
                if each.task.task_id not in seen:
                    seen.add(each.task.task_id)
                    yield each

    def oldest_of_line(
        self, request: ClaimRequest, line: Line, connection: sa.Connection | None = None
    ) -> float | None:
        """Return when the oldest live task of a line was created, in seconds; None if none is seen."""
        moment = request.moment()
        where = live_in_line(request.queue, line, moment.created_after, moment.deadline_after)

        def read(connection: sa.Connection) -> int | None:
            return connection.execute(
                self.claim_sql.oldest_of_line, where | {"looked": LOOKED_ROWS, "at_most": 1}
            ).scalar()

        created_us = self.database.read(read) if connection is None else read(connection)
        return None if created_us is None else created_us / 1e6


def in_time(queue: str, moment: ClaimMoment) -> dict[str, Any]:
    """Return the parameters that say which tasks of a line are in time."""
    return {
        "of_queue": queue,
        "created_after_us": microseconds(moment.created_after),
        "deadline_after_us": microseconds(moment.deadline_after),
    }


def taken_parameters(request: ClaimRequest, moment: ClaimMoment) -> dict[str, Any]:
    """Return the parameters of what a claim writes: one token for all tasks that it takes."""
    lease_until_us = microseconds(moment.lease_until)
    return {
        "now_us": microseconds(moment.now),
        "token": request.tokens[0],
        "lease_from_us": lease_until_us,
        "lease_until_us": lease_until_us,
        "new_expires": moment.expires,
    }


def is_in_time(task: Task, moment: ClaimMoment) -> bool:
    """Return whether a task that was found a while ago may still be claimed."""
    return task.created > moment.created_after and task.deadline > moment.deadline_after


def position(each: Stored) -> tuple[float, str]:
    """Return the position of a task in its line."""
    return each.task.created, each.task.task_id


def as_taken(each: Stored, request: ClaimRequest, moment: ClaimMoment) -> Stored:
    """Return a candidate as it is once the claim has taken it."""
    task = replace(
        each.task,
        status=TaskStatus.TAKEN,
        updated=moment.now,
        attempts=each.task.attempts + 1,
        lease_token=request.tokens[0],
        lease_until=moment.lease_until,
        expires=moment.expires,
        request_token=request.tokens[0],
        **claim_times(each.task, moment.now),
    )
    return Stored(task, each.problem)
