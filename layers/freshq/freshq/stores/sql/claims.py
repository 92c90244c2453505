"""Claims: from the only line of a queue by one statement, or from several lines in turns."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.task import TaskStatus
from freshq.stores.base import ConflictError, Guard
from freshq.stores.sql.line_window import LineWindow
from freshq.stores.sql.part import live_in_line
from freshq.stores.sql.quarantine import as_dead_letter
from freshq.stores.sql.rows import DUE, Stored, microseconds, stored
from freshq.stores.sql.settles import Settles
from freshq.stores.sql.statements import TAKEN, Conditions, Statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.model.task import Task
    from freshq.stores.claim_request import ClaimMoment, ClaimRequest
    from freshq.stores.lines import Line
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.prepared import PreparedStatement
    from freshq.stores.sql.schema import Schema

logger = logging.getLogger(__name__)

PAST_EVERY_TIME_US: Final = 2**62


class ClaimStatements(Statements):
    """The statements of claims. Those that depend on the order are keyed by "newest first"."""

    @cached_property
    def _claimable(self) -> Conditions:
        """The task is live, and has more time left than the reserve."""
        return (*self.live_in_line, self.tasks.c.deadline_us > sa.bindparam("deadline_after_us"))

    @cached_property
    def _best_first(self) -> dict[bool, tuple[sa.ColumnElement[Any], ...]]:
        created, task_id = self.tasks.c.created_us, self.tasks.c.task_id
        return {True: (created.desc(), task_id.desc()), False: (created, task_id)}

    @cached_property
    def _beyond(self) -> dict[bool, Conditions]:
        """The task comes after the position (`beyond_us`, `beyond_id`) of its line."""
        created, task_id = self.tasks.c.created_us, self.tasks.c.task_id
        time_us: sa.BindParameter[int] = sa.bindparam("beyond_us")
        at_id: sa.BindParameter[str] = sa.bindparam("beyond_id")
        return {
            True: (created <= time_us, sa.or_(created < time_us, task_id < at_id)),
            False: (created >= time_us, sa.or_(created > time_us, task_id > at_id)),
        }

    @cached_property
    def page(self) -> dict[bool, sa.Select[Any]]:
        """The next candidates of a line, best first, locked until the transaction ends."""
        return {
            newest_first: sa.select(*self.columns)
            .where(*self._claimable, *self._beyond[newest_first])
            .order_by(*self._best_first[newest_first])
            .limit(sa.bindparam("at_most"))
            .with_for_update(skip_locked=True)
            for newest_first in (True, False)
        }

    @cached_property
    def _taken_values(self) -> dict[str, Any]:
        """The columns that a claim changes."""
        return {
            "status": TAKEN,
            "line": sa.null(),
            "updated_us": sa.bindparam("now_us"),
            "attempts": self.tasks.c.attempts + 1,
            "lease_token": sa.bindparam("token"),
            "request_token": sa.bindparam("token"),
            "lease_until_us": sa.bindparam("lease_until_us"),
            "agenda": sa.literal_column(f"'{DUE}'"),
            "due_us": sa.bindparam("lease_until_us"),
            "expires": sa.bindparam("new_expires"),
        }

    @cached_property
    def take(self) -> sa.Update:
        """Take the tasks that the transaction has locked."""
        in_line = self.tasks.c.line.is_not(None)
        return (
            sa.update(self.tasks).where(self.in_queue_by_id, self.listed, in_line).values(self._taken_values)
        )

    @cached_property
    def taken(self) -> sa.Select[Any]:
        """The tasks that are held under a token, with a lease that ends in a range."""
        tasks = self.tasks
        return sa.select(*self.columns).where(
            self.in_queue,
            tasks.c.agenda == DUE,
            tasks.c.due_us.between(sa.bindparam("lease_from_us"), sa.bindparam("lease_until_us")),
            tasks.c.lease_token == sa.bindparam("token"),
        )

    @cached_property
    def prepared_taken(self) -> PreparedStatement:
        """As `taken`."""
        return self.prepared(self.taken)

    @cached_property
    def take_only_line(self) -> dict[bool, PreparedStatement]:
        """Take the best tasks of a line unless another line has a task; return them."""
        return {
            newest_first: self.prepared(self._take_only_line(newest_first)) for newest_first in (True, False)
        }

    def _take_only_line(self, newest_first: bool) -> sa.Update:  # noqa: FBT001 - a key
        tasks = self.tasks
        line: sa.BindParameter[str] = sa.bindparam("of_line")
        others = [
            sa.exists(sa.select(sa.literal_column("1")).select_from(tasks).where(self.in_queue, other))
            for other in (tasks.c.line > line, tasks.c.line < line)
        ]
        best = (
            sa.select(tasks.c.task_id)
            .where(*self._claimable, *(~other for other in others))
            .order_by(*self._best_first[newest_first])
            .limit(sa.bindparam("at_most"))
        )
        if self.dialect.name == "postgresql":
            # By their place in the table: a join by id reads all finished rows of a table that was never
            # analyzed, through the index of due times.
            place: sa.ColumnElement[Any] = sa.literal_column("ctid")
            chosen = best.with_only_columns(place).with_for_update(skip_locked=True)
            update = sa.update(tasks).where(place == sa.any_(sa.func.array(chosen.scalar_subquery())))
        else:
            update = sa.update(tasks).where(self.in_queue, tasks.c.task_id.in_(best))
        return update.values(self._taken_values).returning(*self.columns)


class Claims(Settles):
    """Claims tasks."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.claim_sql = ClaimStatements(schema, database.engine.dialect)
        self._window = LineWindow(database, schema)
        # By queue: the line that was its only one at the last look. A claim that trusts it finds out.
        self._only_line: dict[str, Line] = {}

    @override
    def claim(self, request: ClaimRequest) -> list[Task]:
        claimed = self._claim(request)
        for each in claimed:
            if each.problem is not None:
                self._quarantine(each.task, each.problem, each.task.updated)
        return [each.task for each in claimed if each.problem is None]

    def _quarantine(self, task: Task, problem: str, now: float) -> None:
        try:
            self.replace(
                as_dead_letter(task, problem, now), Guard(TaskStatus.TAKEN, lease_token=task.lease_token)
            )
        except ConflictError:
            logger.warning("task %s changed before it could become a dead letter", task.task_id)

    def _claim(self, request: ClaimRequest) -> list[Stored]:
        """Take tasks: most queues have one priority level and no groups, where one statement suffices."""
        if self.claim_sql.has_returning:
            claimed = self._claim_from_only_line(request)
            if claimed:
                return claimed
        first = request.moment()
        return self.database.transaction(
            partial(self._claim_from_lines, request=request),
            committed_earlier=partial(self._claimed_earlier, request=request, first=first),
        )

    def _claim_from_only_line(self, request: ClaimRequest) -> list[Stored]:
        line = self._only_line.get(request.queue, (0, None))
        look = request.moment()
        newest_first = request.orders.newest_first(
            line,
            look.now,
            lambda: self.database.read(
                partial(self._oldest_of_line, queue=request.queue, moment=look, line=line)
            ),
        )
        moment = request.moment()
        chosen = candidate_parameters(request.queue, moment, line) | {"at_most": request.limit}
        result = self.database.execute(
            self.claim_sql.take_only_line[newest_first],
            chosen | taken_parameters(request, moment),
            committed_earlier=self.claim_sql.prepared_taken,
        )
        claimed = sorted(map(stored, result.rows), key=_position, reverse=newest_first)
        if claimed:
            request.turns.record(*line, len(claimed))
        return claimed

    def _claim_from_lines(self, connection: sa.Connection, request: ClaimRequest) -> list[Stored]:
        found = list(islice(self.candidates(connection, request, request.moment()), request.limit))
        moment = request.moment()
        chosen = [each for each in found if is_in_time(each.task, moment)]
        if not chosen:
            return []
        listed = {"of_queue": request.queue, "ids": [each.task.task_id for each in chosen]}
        connection.execute(self.claim_sql.take, listed | taken_parameters(request, moment))
        return [as_taken(each, request, moment) for each in chosen]

    def candidates(
        self, connection: sa.Connection, request: ClaimRequest, moment: ClaimMoment
    ) -> Iterator[Stored]:
        """Yield the claimable tasks of all lines, best first, each locked until the transaction ends."""
        found = 0
        for lines in self._window.levels(connection, request.queue):
            found += len(lines)
            if found == 1:
                self._only_line[request.queue] = lines[0]
            level, groups = lines[0][0], [group for _level, group in lines]
            share = max(1, request.limit // len(groups))
            of_group = {
                group: self._candidates_of(connection, request, moment, (level, group), share)
                for group in groups
            }
            yield from request.turns.interleave(level, of_group)

    def _candidates_of(
        self, connection: sa.Connection, request: ClaimRequest, moment: ClaimMoment, line: Line, page: int
    ) -> Iterator[Stored]:
        """Yield the claimable tasks of a line, best first, by pages that grow."""
        newest_first = self._newest_first(connection, request, moment, line)
        parameters = candidate_parameters(request.queue, moment, line)
        parameters |= {"beyond_us": PAST_EVERY_TIME_US if newest_first else -1, "beyond_id": ""}
        while True:
            rows = connection.execute(self.claim_sql.page[newest_first], parameters | {"at_most": page}).all()
            yield from map(stored, rows)
            if len(rows) < page:
                return
            last = rows[-1]
            parameters |= {"beyond_us": last.created_us, "beyond_id": last.task_id}
            page *= 2

    def _newest_first(
        self, connection: sa.Connection, request: ClaimRequest, moment: ClaimMoment, line: Line
    ) -> bool:
        oldest_created = partial(self._oldest_of_line, connection, request.queue, moment, line)
        return request.orders.newest_first(line, moment.now, oldest_created)

    def _oldest_of_line(
        self, connection: sa.Connection, queue: str, moment: ClaimMoment, line: Line
    ) -> float | None:
        created_us = connection.execute(
            self.claim_sql.oldest_of_line, live_in_line(queue, line, moment.created_after)
        ).scalar()
        return None if created_us is None else created_us / 1e6

    def _claimed_earlier(
        self, connection: sa.Connection, request: ClaimRequest, first: ClaimMoment
    ) -> list[Stored]:
        """Return the tasks that an earlier try of this claim, begun at `first`, took; best first."""
        moment = request.moment()

        def rank(each: Stored) -> tuple[int, float, str]:
            task = each.task
            newest_first = self._newest_first(connection, request, moment, (task.priority, task.group))
            return -task.priority, -task.created if newest_first else task.created, task.task_id

        parameters = {"of_queue": request.queue} | taken_parameters(request, moment)
        parameters["lease_from_us"] = microseconds(first.lease_until)
        return sorted(map(stored, connection.execute(self.claim_sql.taken, parameters)), key=rank)


def candidate_parameters(queue: str, moment: ClaimMoment, line: Line) -> dict[str, Any]:
    """Return the parameters that say which tasks of a line may be claimed."""
    return live_in_line(queue, line, moment.created_after) | {
        "deadline_after_us": microseconds(moment.deadline_after)
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


def _position(each: Stored) -> tuple[float, str]:
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
    )
    return Stored(task, each.problem)
