"""Claim tasks, and peek at the tasks that a claim would take."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import StoreError
from freshq.model.answers import Claim, Claims, Waiting
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.task import keep_clock
from freshq.model.telemetry import ClaimSpan
from freshq.policy.shedding import MAX_TAKES
from freshq.queue.core import Verbs, claim_request
from freshq.queue.filters import fit_to_run, shed_late, within_limits
from freshq.queue.lines import PLANNED_LINES, CountedClaim, LimitedClaim, OpenLines, place_in_line, planned
from freshq.queue.polling import answer_of, poll_for_claims
from freshq.queue.reading import first_to_expire, oldest_expiring, waiting
from freshq.queue.upkeep import SMALL_PORTION
from freshq.stores.lines import END, Choice, ClaimRequest, parse_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from freshq.model.lifecycle import ClaimMoment
    from freshq.model.task import Task
    from freshq.policy.groups import Group, GroupRoom
    from freshq.queue.core import Core
    from freshq.queue.lines import Level, LineBook
    from freshq.queue.shared.admission import LineCodel
    from freshq.stores.base import Lines
    from freshq.stores.lines import Found, LimitedLines, LineReader, Stored

logger = logging.getLogger(__name__)
# Looks for lines of one claim: once, and again if stale tasks were in the way.
MAX_LOOKS: Final = 2
# Calls that ask some lines of a level. The next one asks all lines that may have a task: any number may be
# empty, and no claim ends while a known line has more.
PARTIAL_ROUNDS: Final = 2
# Extra tasks to look at on the first page of a line, because some are locked or past their deadline.
SPARE_ROWS: Final = 20
# Tasks on the second page: the caller may shed this many before it keeps one.
SECOND_PAGE_ROWS: Final = 50
# Tasks of a line that a claim looks at, to skip those past their own deadline; this takes a millisecond.
LOOKED_ROWS: Final = 1_000
# Far more than one process can start; the lease record of a claim must fit into one item.
MAX_CLAIM: Final = 1000


def candidates(
    reader: LineReader[Found], request: ClaimRequest, levels: Iterable[Level], room: GroupRoom | None = None
) -> Iterator[Found]:
    """Yield the claimable tasks of lines in the order of claims.

    Args:
        reader: Reads the lines.
        request: The claim.
        levels: The lines, the highest level first.
        room: The room that the limits of groups leave; None: no limits.
    """
    moment, plan = request.moment(), request.plan
    if plan is not None:
        reader.more_lines = PLANNED_LINES
    for level in levels:
        if room is None:  # a claim within limits searches every line
            request.search_incomplete |= not level.is_whole
        of_line = partial(_of_line, reader, request, moment, max(1, request.limit // len(level.keys)))
        lines = {
            group: chain.from_iterable(map(of_line, keys))
            if plan is None
            else planned(reader, request, plan, keys)
            for group, keys in level.keys.items()
        }
        yield from request.schedulers.interleave(level.number, lines, room)


def _of_line(
    reader: LineReader[Found], request: ClaimRequest, moment: ClaimMoment, share: int, key: str
) -> Iterator[Found]:
    """Yield claimable tasks of a line, best first, from a small page and then a larger one."""
    if not reader.searches(key):
        return
    newest_first = request.orders.constant
    if newest_first is None:
        newest_first = _newest_first(reader, request, key)
    larger = max(request.limit, SECOND_PAGE_ROWS)
    seen: set[str] = set()
    for count, looked in ((share, share + SPARE_ROWS), (share + larger, larger + LOOKED_ROWS)):
        for each in reader.page(key, moment, count, looked, newest_first=newest_first):
            if each.task_id not in seen:
                seen.add(each.task_id)
                yield each


def _newest_first(reader: LineReader[Any], request: ClaimRequest, key: str) -> bool:
    """Return which end of a line is served, in an order that switches; it may read the oldest task first."""
    moment = request.moment()
    live = (key, moment.deadline_after, moment.created_after)
    oldest, nearest = partial(reader.oldest_created, *live), partial(reader.first_to_expire, *live)
    return request.orders.newest_first(parse_line(key), moment.now, oldest, nearest)


def best_first(
    book: LineBook, open_lines: OpenLines, request: ClaimRequest, reader: LineReader[Found]
) -> Iterator[Found]:
    """Yield the claimable tasks of all lines in the order of claims, within the room that is left."""
    if request.room is None:
        if request.plan is not None:
            reader.more_lines = PLANNED_LINES  # `levels` reads the lines immediately
        return candidates(reader, request, book.levels(reader))
    claim = CountedClaim(reader, request, request.room)
    return candidates(reader, request, open_lines.levels(claim, time.monotonic()), claim.room)


class Search:
    """The search of one claim for its tasks.

    It asks the lines that the book knows, under the condition that there is no better line. If it finds too
    few tasks, it looks for lines and asks those; then it takes stale tasks out of the way, once, and looks
    again. A claim within limits, and every claim on a database that must lock rows first, looks for lines and
    takes under locks instead. On a store that takes one task after the other, each claim looks for lines.

    Attributes:
        request: The claim.
    """

    def __init__(self, book: LineBook, open_lines: OpenLines, request: ClaimRequest) -> None:
        self._book = book
        self._open_lines = open_lines
        self._store: Lines
        self.request = request
        self._taken: list[Task] = []
        self._missing = request.limit

    def run(self, store: Lines) -> list[Task]:
        """Take tasks from the lines of a store; return them, best first.

        Raises:
            StoreError: If the store did not answer.
        """
        request, self._store = self.request, store
        take = self._take_found
        if store.takes_each:
            take = self._take_each
        elif request.groups.has_limits or store.locks_to_take or request.plan is not None:
            take = self._take_locked
        else:
            request.saw_no_line = self._takes_all_known()
            if request.saw_no_line:
                return self._taken
        if self._missing:
            self._look(take)
            if not self._taken and store.searches_again(request.queue):
                self._look(take)
        return self._taken

    def _takes_all_known(self) -> bool:
        """Take tasks of known lines; return whether these, and so the queue, have no more.

        A check of a line's order needs a look: a known line may be empty by now, or not have its turn.
        """
        request = self.request
        known = self._book.choose(request.limit)
        if known is None:
            return False
        level, asked = known
        orders_switch = request.orders.constant is None
        if orders_switch:
            lines = (parse_line(key) for group in asked for key in level.keys[group])
            if request.orders.any_due(lines, request.clock()):
                return False
        found = self._take(level, asked)
        # An order that switches takes by several calls.
        if not self._missing or orders_switch:
            return False
        return self._book.has_no_more(level, asked, found, request.clock())

    def _look(self, take: Callable[[], bool]) -> None:
        """Look for lines, and take tasks from them; if these are too few, clear stale tasks and try again."""
        request = self.request
        for _ in range(MAX_LOOKS):
            request.search_incomplete = False
            request.saw_no_line = not take()
            is_short = not request.saw_no_line and self._missing > 0
            if not is_short or not self._store.clear_stale(request.queue, request.clock()):
                break
            request.search_incomplete = True
        request.search_incomplete &= self._missing > 0

    def _take_found(self) -> bool:
        """Look for lines and ask them, the highest level first; return whether there are lines."""
        for level in self._book.look(self._store.line_reader(self.request.queue)):
            self.request.search_incomplete |= not level.is_whole
            self._take_from(level)
            if not self._missing:
                break
        else:  # only then does the claim look for stale tasks, and for those that it skipped
            self._book.note_look(self.request.clock())
        return self._book.has_lines

    def _take_from(self, level: Level) -> None:
        """Ask the lines of a level in turn, again and again, as a line may have fewer tasks than turns."""
        groups, rounds = [*level.keys], 0
        while self._missing and groups:
            asked = self._book.ask(level, groups, self._missing, every=rounds >= PARTIAL_ROUNDS)
            served = Counter([task.group for task in self._take(level, asked)])
            groups = [group for group in groups if served[group] >= asked.get(group, 0)]
            rounds += 1

    def _take(self, level: Level, asked: Mapping[Group, int]) -> list[Task]:
        """Take tasks of lines; return them in turn, without those that it had taken before."""
        constant, start = self.request.orders.constant, len(self._taken)
        by_order = self._by_order(level, asked) if constant is None else [(constant, asked)]
        for newest_first, of_order in by_order:
            lines = {key: wanted for group, wanted in of_order.items() for key in level.keys[group]}
            choice = Choice(lines, newest_first, self._missing, level.unless)
            tasks = self._store.take(self.request, choice)
            if self._taken:
                tasks = self._new(tasks)
            if len(tasks) > 1:
                tasks.sort(key=place_in_line, reverse=newest_first)
            self._taken += tasks
            self._missing -= len(tasks)
            if not self._missing:
                break
        self._taken[start:] = found = self._book.in_turn(level, asked, self._taken[start:])
        return found

    def _by_order(
        self, level: Level, asked: Mapping[Group, int]
    ) -> Iterator[tuple[bool, Mapping[Group, int]]]:
        """Yield lines by the end that is served first, for an order that switches.

        The lines that have turns come first; more only if these had too few tasks, because each check of a
        line reads its oldest task, and may switch its order.
        """
        reader = self._store.line_reader(self.request.queue)
        by_order: dict[bool, dict[Group, int]] = {}
        expected = 0
        for group, wanted in asked.items():
            newest_first = _newest_first(reader, self.request, level.keys[group][0])
            by_order.setdefault(newest_first, {})[group] = wanted
            expected += wanted
            if expected >= self._missing:
                yield from by_order.items()
                by_order, expected = {}, 0
        yield from by_order.items()

    def _take_locked(self) -> bool:
        """Take the best tasks of all lines under locks; return whether there may be lines."""
        request, ids = self.request, list[str]()
        if not (self._book.has_lines or self._book.is_partial or self._sees_line()):
            return False

        def choose(reader: LimitedLines) -> list[Stored]:
            claim = LimitedClaim(reader, request, request.clock()) if request.groups.has_limits else None
            if claim is None:
                found = candidates(reader, request, self._book.look(reader))
            else:
                levels = self._open_lines.levels(claim, time.monotonic())
                found = candidates(reader, request, levels, claim.room)
            chosen = list(islice(found, self._missing))
            ids[:] = [each.task.task_id for each in chosen]
            moment = request.moment()  # the search took time
            if claim is not None:
                claim.end(moment.now)
                request.room_in_seconds = claim.room.wait_seconds
                request.search_incomplete |= claim.room.passed_over
            return reader.take(chosen, moment)

        tasks = self._store.take_locked(request, choose)
        rank = {task_id: place for place, task_id in enumerate(ids)}
        self._taken += sorted(self._new(tasks), key=lambda task: rank.get(task.task_id, len(rank)))
        self._missing = request.limit - len(self._taken)
        return request.groups.has_limits or bool(ids) or self._book.has_lines

    def _sees_line(self) -> bool:
        """Return whether there is a line, without a lock: claims of an empty queue do not hold up others."""
        return self._store.line_reader(self.request.queue).last_line(END) is not None

    def _take_each(self) -> bool:
        """Take the best tasks of all lines, one after the other; return True, as there may be more."""
        request = self.request
        find = partial(best_first, self._book, self._open_lines, request)
        self._taken = self._store.take_each(request, find)
        self._missing = request.limit - len(self._taken)
        return True

    def _new(self, tasks: list[Task]) -> list[Task]:
        """Return the tasks that were not taken before; put the others in place of their older versions.

        A claim slower than its lease may take a task again that was recovered in between; and after a lost
        reply a store returns all tasks that were taken under the token.
        """
        places = {task.task_id: place for place, task in enumerate(self._taken)}
        new = []
        for task in tasks:
            if (place := places.get(task.task_id)) is None:
                new.append(task)
            else:
                self._taken[place] = task
        return new


def preview(book: LineBook, store: Lines, request: ClaimRequest) -> list[Task]:
    """Return the tasks that a claim would take now, best first, and take none.

    Raises:
        StoreError: If the store did not answer.
    """
    book = book.copy(request.schedulers)  # it starts where the next claim of this process will

    def look(reader: LineReader[Any]) -> list[Task]:
        return reader.tasks(best_first(book, OpenLines(book), request, reader), request.limit)

    return store.look(request, look)


def has_claimable(core: Core) -> bool:
    """Return whether claims would find a task now; delayed tasks do not count.

    On DynamoDB, groups at their limits do not count either; other stores judge limits only while they claim.
    Also true if the search reached a bound of its work first: further claims would continue the search.

    Raises:
        StoreError: If the store did not answer.
    """
    core.begin()
    if core.store.paused(core.name):
        return False
    request = claim_request(core, 1)
    request.schedulers = core.schedulers.copy()
    if request.groups.has_limits:
        core.limits.prepare(request)
    return bool(preview(core.book, core.store, request)) or request.search_incomplete


def checked_claim(core: Core, limit: int, lease_seconds: float | None) -> float:
    """Check the arguments of a claim; return the length of its leases."""
    checked_count("limit", limit, at_most=MAX_CLAIM)
    if lease_seconds is None:
        return core.rules.config.lease_seconds
    return checked_seconds("lease_seconds", lease_seconds, above_zero=True)


def note_skipped(core: Core, request: ClaimRequest, *, short: bool) -> None:
    """Record live tasks that this claim would have taken without its reserve."""
    reserve, seconds = core.rules.reserve, request.reserve_seconds
    if request.saw_no_line:  # no task waits that it could have skipped
        return
    moment = request.moment()
    found = not reserve.check_due(moment.now, seconds, short=short)  # by an earlier claim
    if not found:
        created_after = moment.now - request.max_age_seconds
        store = core.store
        until = moment.now + seconds
        oldest = oldest_expiring(store, core.name, moment.now, created_after, until)
        found = reserve.note_skipped(moment.now, seconds, oldest, created_after + seconds, short=short)
        if found and short:
            reserve.bound(first_to_expire(store, core.name, moment.now, created_after))
    if found and short:
        core.book.note_skipped()


class Claiming(Verbs):
    """Claims tasks."""

    def claim(
        self, limit: int = 1, *, lease_seconds: float | None = None, wait_seconds: float | None = 0
    ) -> Claims:
        """Claim tasks, in the queue's order.

        Each lease counts from the write that took its task; at least nine tenths of it are left. If fewer
        than `limit` are claimable, a small portion of the due tasks is brought in, and the rest is claimed
        from these. Even if every claim is full, expired leases and due tasks still come back: a process
        brings in a portion once a quarter of a lease. So a claim makes a bounded number of calls; `recover`
        and `upkeep` bring in the rest.

        Args:
            limit: Maximum number of claims: as many as the caller can start now.
            lease_seconds: Length of the leases; None for the queue's default.
            wait_seconds: How long to wait for the first task; None: indefinitely. While nothing is claimable,
                it claims again every second, and as soon as this process puts or returns a task.

        Returns:
            The claims; empty if nothing is claimable or the queue is paused. If `more` is true, the claim
            reached a bound of its work first, and the next one looks further.

        Raises:
            ValueError: If an argument is wrong.
            StoreError: If the store did not answer. If some tasks were already claimed, they are returned
                instead.
        """
        if wait_seconds != 0:
            claim = partial(self.claim, limit, lease_seconds=lease_seconds)
            return answer_of(poll_for_claims(claim, self._core, wait_seconds))
        began = self._core.begin_write()
        lease_seconds = checked_claim(self._core, limit, lease_seconds)
        observer = self._core.observer
        if observer is None:
            return self._claim(limit, lease_seconds, began)
        span = ClaimSpan(self._core.name)
        with observer.claim(span):
            span.claims = claims = self._claim(limit, lease_seconds, began)
        return claims

    def _claim(self, limit: int, lease_seconds: float, began: float) -> Claims:
        core = self._core
        if core.store.paused(core.name):
            return Claims()
        codel = core.rules.codel
        take = self._take if codel is None else partial(self._take_unless_shed, codel)
        is_due = core.upkeep.look_is_due(lease_seconds, began)
        # If the store does not answer, the next look is a quarter of a lease later.
        brought_in = core.bring_in_due() if is_due else 0
        claims = take(limit, lease_seconds)
        if len(claims) < limit and not is_due and not core.upkeep.nothing_is_due(began):
            brought_in = self._add_due(claims, take, limit, lease_seconds)
        taken = len(claims)
        claims[:] = fit_to_run(core, claims, lease_seconds, began)
        for claim in claims:
            keep_clock(claim.task, core.now)
        more_due = brought_in >= SMALL_PORTION and taken < limit
        claims.more |= more_due or len(claims) < taken
        return claims

    def _add_due(
        self,
        claims: Claims,
        take: Callable[[int, float], Claims],
        limit: int,
        lease_seconds: float,
    ) -> int:
        """Bring in a portion of the due tasks, and claim up to `limit`; return how many it brought in."""
        brought_in = 0
        try:
            if brought_in := self._core.bring_in_due():
                found = take(limit - len(claims), lease_seconds)
                claims += found
                claims.more, claims.room_in_seconds = found.more, found.room_in_seconds
        except StoreError:
            if not claims:
                raise
            logger.warning("claimed only %d of %d tasks", len(claims), limit, exc_info=True)
        return brought_in

    def peek(self, limit: int = 10) -> list[Waiting]:
        """Return waiting tasks in the order in which claims would take them, and take none.

        Claimable tasks come first, in the order this process would claim them if nobody else claimed or put
        any; then delayed tasks by due time. Each shows what it waits for, other than a claim. The number of
        calls is bounded: it may show fewer than `limit` delayed tasks, and only some groups if there are
        very many. CoDel may shed a task that it shows.

        Args:
            limit: Maximum number of tasks to return.

        Raises:
            ValueError: If the limit is wrong.
            StoreError: If the store did not answer.

        Examples:
            >>> receipt = queue.put("work", task_id="later", delay_seconds=5)
            >>> [(each.task.task_id, each.waits_for.value) for each in queue.peek()]
            [('later', 'due')]
        """
        checked_count("limit", limit, at_most=MAX_CLAIM)
        self._core.begin()
        store = self._core.store
        request = claim_request(self._core, limit)
        request.schedulers = self._core.schedulers.copy()
        tasks = preview(self._core.book, store, request)
        delayed = store.delayed(self.name, limit - len(tasks)) if len(tasks) < limit else []
        return waiting(tasks, delayed, self._core.time_order, paused=store.paused(self.name))

    def _take_unless_shed(self, codel: LineCodel, limit: int, lease_seconds: float) -> Claims:
        """Claim tasks; shed the tasks that CoDel selects, and the tasks behind them, and claim once more."""
        kept = Claims()
        longest_wait_seconds = math.inf
        for _ in range(MAX_TAKES):
            try:
                claims = self._take(limit - len(kept), lease_seconds, longest_wait_seconds)
            except StoreError:
                if not kept:
                    raise
                logger.warning("claimed only %d of %d tasks", len(kept), limit, exc_info=True)
                break
            kept.more, kept.room_in_seconds = claims.more, claims.room_in_seconds
            to_shed = [claim for claim in claims if codel.sheds(claim.task, claim.task.updated)]
            kept += [claim for claim in claims if claim not in to_shed]
            if not to_shed:
                break
            longest_wait_seconds = shed_late(self._core, codel, to_shed)
        else:
            kept.more = True
        return kept

    def _take(self, limit: int, lease_seconds: float, longest_wait_seconds: float = math.inf) -> Claims:
        core = self._core
        request = claim_request(core, limit, lease_seconds, longest_wait_seconds)
        if request.groups.has_limits:
            core.limits.prepare(request)
        tasks = Search(core.book, core.open_lines, request).run(core.store)
        core.schedulers.claimed(tasks)
        if request.plan is not None:
            core.service.claimed(tasks, core.now(), lease_seconds)
        if request.reserve_seconds:
            note_skipped(core, request, short=len(tasks) < limit)
        claims = Claims([Claim.of(task) for task in tasks])
        if request.room is not None:  # the store does not count what runs
            claims[:] = within_limits(core, request, request.room, claims)
        claims.more, claims.room_in_seconds = request.search_incomplete, request.room_in_seconds
        return claims
