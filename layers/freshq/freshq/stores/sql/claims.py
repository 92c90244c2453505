"""Claims tasks: by one statement from the lines of the last claim, or from lines that it looks up first."""

from __future__ import annotations

import logging
from collections import defaultdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.model.task import TaskStatus
from freshq.stores.base import ConflictError, Guard
from freshq.stores.sql.candidates import (
    LOOKED_ROWS,
    MIN_LOOKED_ROWS,
    Candidates,
    as_taken,
    in_time,
    is_in_time,
    position,
    taken_parameters,
)
from freshq.stores.sql.line_window import NO_OTHERS
from freshq.stores.sql.quarantine import as_dead_letter
from freshq.stores.sql.rows import Stored, line_key, microseconds, stored
from freshq.stores.sql.stale import StaleTasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sqlalchemy as sa

    from freshq.model.task import Task
    from freshq.stores.claim_request import ClaimMoment, ClaimRequest
    from freshq.stores.lines import Line
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.line_window import Window
    from freshq.stores.sql.schema import Schema

logger = logging.getLogger(__name__)

# If that does not suffice, as many stale tasks are taken out of their lines, and the claim looks once more.
STALE_ROWS: Final = 500
MAX_LOOKS: Final = 2
# Statements that take from the lines of a level: a line may have less than its turns.
MAX_ROUNDS: Final = 3
# Lines that a statement asks at least, if there are as many: the next lines may be empty by then.
MIN_ASKED: Final = 4


class ClaimPart(Candidates):
    """Claims tasks."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self._stale_tasks = StaleTasks(database, schema)

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
        taken: list[Stored] = []
        take = self._take_in_transaction
        if self.claim_sql.has_returning:
            take = self._take_by_statements
            window = self.window.known(request.queue)
            if window is not None:
                taken += self._take_again(request, window)
        for _ in range(MAX_LOOKS):
            if len(taken) >= request.limit:
                break
            found_lines = take(request, taken)
            is_short = found_lines and len(taken) < request.limit
            if not is_short or not self.clear_stale(request):
                break
        self.window.used(request.queue, len(taken))
        return taken

    def clear_stale(self, request: ClaimRequest) -> int:
        """Take some of the tasks that are past their deadline out of their lines; return how many."""
        return self._stale_tasks.leave_lines(request.queue, request.clock(), STALE_ROWS)

    def _take_again(self, request: ClaimRequest, window: Window) -> list[Stored]:
        """Take from the lines of an earlier claim, unless there are others now."""
        if len(window.groups) == 1:  # nothing to plan
            counts = {window.groups[0]: request.limit}
        else:
            counts = _asked(request.turns.plan(window.level, window.groups, request.limit))
        return self._take(request, window.level, counts, window.others(), [])

    def _take_by_statements(self, request: ClaimRequest, taken: list[Stored]) -> bool:
        """Find lines and take from them, by statements that each commit; return whether there are lines."""
        found_lines = False
        for lines in self.window.levels(self._find, request.queue):
            found_lines = True
            self._take_from_level(request, lines, taken)
            if len(taken) >= request.limit:
                break
        return found_lines

    def _find(self, name: str, parameters: Mapping[str, Any]) -> list[Any]:
        return [
            row[0] for row in self.database.execute(self.window.sql.prepared_finds[name], parameters).rows
        ]

    def _take_from_level(self, request: ClaimRequest, lines: Sequence[Line], taken: list[Stored]) -> None:
        level, groups = lines[0][0], [group for _level, group in lines]
        for number in range(1, MAX_ROUNDS + 1):
            turns = request.turns.plan(level, groups, request.limit - len(taken))
            counts = _asked(turns, every=number == MAX_ROUNDS)
            found = self._take(request, level, counts, NO_OTHERS, taken)
            taken += found
            served = [each.task.group for each in found]
            groups = [
                group for group in groups if group not in counts or served.count(group) == counts[group]
            ]
            if not groups or len(taken) >= request.limit:
                return

    def _take(
        self,
        request: ClaimRequest,
        level: int,
        counts: Mapping[str | None, int],
        others: Mapping[str, str],
        taken: Sequence[Stored],
    ) -> list[Stored]:
        """Take tasks of lines of a level, in turns; by one statement if all have the same order."""
        known = {each.task.task_id for each in taken}
        found: defaultdict[str | None, list[Stored]] = defaultdict(list)
        missing = request.limit - len(taken)
        for newest_first, asked in self._by_order(request, level, counts).items():
            at_most = min(missing, sum(asked.values()))
            rows = self._take_lines(request, level, newest_first, asked, others, at_most)
            for each in sorted(rows, key=position, reverse=newest_first):
                if each.task.task_id not in known:
                    found[each.task.group].append(each)
                    missing -= 1
        if len(found) == 1:
            ((group, only),) = found.items()
            request.turns.record(level, group, len(only))
            return only
        # In the order of the plan, as claims of one task each would take them.
        in_turn = {group: iter(found[group]) for group in counts if group in found}
        return list(request.turns.interleave(level, in_turn))

    def _by_order(
        self, request: ClaimRequest, level: int, counts: Mapping[str | None, int]
    ) -> dict[bool, dict[str | None, int]]:
        """Return the lines by whether their newest task is served first."""
        now = request.clock()
        by_order: dict[bool, dict[str | None, int]] = {}
        for group, count in counts.items():
            line = (level, group)
            oldest = partial(self.oldest_of_line, request, line)
            newest_first = request.orders.newest_first(line, now, oldest)
            by_order.setdefault(newest_first, {})[group] = count
        return by_order

    def _take_lines(
        self,
        request: ClaimRequest,
        level: int,
        newest_first: bool,  # noqa: FBT001 - a key of the statements
        asked: Mapping[str | None, int],
        others: Mapping[str, str],
        at_most: int,
    ) -> list[Stored]:
        lines = [line_key(level, group) for group in asked]
        arms = 0
        if self.database.dialect == "postgresql":
            which: dict[str, Any] = {"many_lines": lines, "many_counts": list(asked.values())}
        else:
            arms = 1 << (len(lines) - 1).bit_length()
            counts = [*asked.values()]
            which = {f"line_{arm}": lines[arm] if arm < len(lines) else "" for arm in range(arms)}
            which |= {f"count_{arm}": counts[arm] if arm < len(lines) else 0 for arm in range(arms)}
        if len(lines) == 1 and self.database.dialect == "postgresql" and others is not NO_OTHERS:
            statement = self.claim_sql.take_only_line[newest_first]
            which = {"of_line": lines[0]}
        else:
            statement = self.claim_sql.take_lines(newest_first, arms)
        looked = at_most + max(MIN_LOOKED_ROWS, LOOKED_ROWS // len(lines))
        moment = request.moment()
        parameters = in_time(request.queue, moment) | taken_parameters(request, moment)
        result = self.database.execute(
            statement,
            {**parameters, **which, **others, "looked": looked, "at_most": at_most},
            committed_earlier=self.claim_sql.prepared_taken,
        )
        return list(map(stored, result.rows))

    def _take_in_transaction(self, request: ClaimRequest, taken: list[Stored]) -> bool:
        """Lock the best tasks of the lines and take them, in a transaction; return whether there are lines.

        For databases whose UPDATE does not return what it changed.
        """
        first = request.moment()
        found_lines = False

        def take(connection: sa.Connection) -> list[Stored]:
            nonlocal found_lines
            candidates = self.candidates(connection, request, request.moment())
            found = list(islice(candidates, request.limit - len(taken)))
            found_lines = bool(found) or self.window.known_lines(request.queue)
            return self._take_locked(connection, request, found)

        found = self.database.transaction(
            take, committed_earlier=partial(self._claimed_earlier, request=request, first=first)
        )
        known = {each.task.task_id for each in taken}
        taken += [each for each in found if each.task.task_id not in known]
        return found_lines

    def _take_locked(
        self, connection: sa.Connection, request: ClaimRequest, found: Sequence[Stored]
    ) -> list[Stored]:
        moment = request.moment()
        chosen = [each for each in found if is_in_time(each.task, moment)]
        if not chosen:
            return []
        listed = {"of_queue": request.queue, "ids": [each.task.task_id for each in chosen]}
        connection.execute(self.claim_sql.take, listed | taken_parameters(request, moment))
        return [as_taken(each, request, moment) for each in chosen]

    def _claimed_earlier(
        self, connection: sa.Connection, request: ClaimRequest, first: ClaimMoment
    ) -> list[Stored]:
        """Return the tasks that an earlier try of this claim, begun at `first`, took; best first."""
        moment = request.moment()

        def rank(each: Stored) -> tuple[int, float, str]:
            task = each.task
            line = (task.priority, task.group)
            oldest = partial(self.oldest_of_line, request, line, connection)
            newest_first = request.orders.newest_first(line, moment.now, oldest)
            return -task.priority, -task.created if newest_first else task.created, task.task_id

        parameters = {"of_queue": request.queue} | taken_parameters(request, moment)
        parameters["lease_from_us"] = microseconds(first.lease_until)
        return sorted(map(stored, connection.execute(self.claim_sql.taken, parameters)), key=rank)


def _asked(turns: Mapping[str | None, int], *, every: bool = False) -> dict[str | None, int]:
    """Return how many tasks to ask of which lines: of those to come to turn, and of a few to fill in."""
    in_turn = sum(1 for count in turns.values() if count)
    number = len(turns) if every else max(MIN_ASKED, 1 << (in_turn - 1).bit_length())
    return {group: max(1, count) for group, count in islice(turns.items(), number)}
