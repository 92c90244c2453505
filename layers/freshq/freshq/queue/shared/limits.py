"""Limits that all workers of a queue share, to protect the downstream, and of its groups."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from dataclasses import asdict, astuple, replace
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from freshq.errors import StoreError
from freshq.model.fields import plain_token
from freshq.model.forks import forget_in_child, new_lock
from freshq.policy.backlog_limit import Share, WorkerShares
from freshq.policy.groups import KIND, GroupRoom, StartLog
from freshq.policy.limits import Brake, BucketState, ConcurrencyLimit, LimitState, Signals, spent
from freshq.queue.shared.measures import change_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.policy.groups import Group, GroupRules
    from freshq.policy.limits import RetryBudget, SharedBucket
    from freshq.stores.base import Store

    # A task's id, and the token of its claim.
    _Held = tuple[str, str | None]

logger = logging.getLogger(__name__)

SLOTS: Final = "slots"
TOKENS: Final = "tokens"
RETRIES: Final = "retries"
RUNNING: Final = "freshq#group-running"
BRAKES: Final = "brakes"
# The name of the queue's own rate among the names of groups, none of which is empty.
OF_QUEUE: Final = ""
# The record of brakes is read this often, and keeps this many: it must fit into one item.
READ_BRAKES_SECONDS: Final = 1.0
MAX_BRAKES: Final = 200
# Weight of a task in the units that the next task of its group is expected to take, and groups remembered.
LAST_COST_WEIGHT: Final = 1 / 8
MAX_EXPECTED: Final = 10_000
# Tasks whose kind has no room come back at twice its rate, because some find it taken, and cost less than
# expected; and at most this late, so that new rules reach them.
TURN_PART: Final = 0.5
LONGEST_TURN_SECONDS: Final = 60.0
# A worker that got fewer slots than it can use asks again after this time.
ASK_AGAIN_SECONDS: Final = 1.0
NO_DELAYS: Final[Mapping[str, float]] = MappingProxyType({})
# First attempts per deposit into the shared budget.
DEPOSIT_EVERY: Final = 20


class SharedSlots:
    """This worker's share of the concurrency limit.

    The claim loop calls `free`, `started` and `leave`; any thread may call the others.

    Each worker writes the shared record once per window: the signals of the downstream that it observed, and
    the slots that it takes. The shares never add up to more than the limit, except for tasks that are running
    when the limit falls. The share of a worker that dies lasts two more windows.
    """

    def __init__(self, store: Store, queue: str, limit: ConcurrencyLimit, wanted: int) -> None:
        """Start without slots.

        Args:
            store: The store of the shared record.
            queue: Name of the queue.
            limit: The limit for all workers together.
            wanted: Number of slots that this worker can use.
        """
        self._store = store
        self._queue = queue
        self._limit = limit
        self._wanted = wanted
        self._worker = uuid.uuid4().hex
        self._lock = new_lock()
        self._slots = 0
        self._window = -1
        self._until = 0.0
        self._ask_at = 0.0
        self._succeeded = self._pushed_back = self._in_flight = self._peak = 0
        forget_in_child(self)

    def forget_parent(self) -> None:
        """Have no slots and no signals in a forked child: they are its parent's."""
        self._worker, self._slots, self._window = uuid.uuid4().hex, 0, -1
        self._succeeded = self._pushed_back = self._in_flight = self._peak = 0

    def started(self) -> None:
        """Record the start of a task: it counts towards the peak even if it ends before the exchange."""
        self._in_flight += 1
        self._peak = max(self._peak, self._in_flight)

    def succeeded(self) -> None:
        """Record that a task succeeded."""
        with self._lock:
            self._succeeded += 1

    def pushed_back(self) -> None:
        """Record that the downstream pushed back: it was busy, timed out or failed."""
        with self._lock:
            self._pushed_back += 1

    def free(self, in_flight: int, now: float) -> int:
        """Return the number of further tasks that may be started.

        Args:
            in_flight: Tasks that this worker runs now.
            now: Current time in seconds.

        Raises:
            StoreError: If the store did not answer a request for slots.
        """
        self._in_flight = in_flight
        self._peak = max(self._peak, in_flight)
        if self._limit.window(now) != self._window or (self._slots < self._wanted and now >= self._ask_at):
            self._exchange(in_flight, now)
        if now >= self._until:
            return 0
        return max(0, self._slots - in_flight)

    def _exchange(self, in_flight: int, now: float) -> None:
        """Report the signals that this worker observed, and take its share for this window."""
        window = self._limit.window(now)
        with self._lock:
            succeeded, pushed_back = self._succeeded, self._pushed_back
        share = Share(now + 2 * self._limit.window_seconds, self._slots, self._peak)
        got = 0

        def change(values: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal got
            state = LimitState(**values["limit"]) if "limit" in values else self._limit.initial()
            shares = WorkerShares.of(values.get("workers", {}), now)
            peak = shares.peak_of_others(self._worker) + self._peak
            if window != self._window or pushed_back:
                seen = Signals(succeeded, pushed_back, peak)
                state = self._limit.moved(state, window - 1, seen) or state
            shares, got = shares.taken(self._worker, share, state.slots, self._wanted, in_flight)
            return {"limit": asdict(state), "workers": shares.values()}

        self._ask_at = now + min(ASK_AGAIN_SECONDS, self._limit.window_seconds / 4)
        if not change_record(self._store, self._queue, SLOTS, change):
            return
        with self._lock:
            self._succeeded -= succeeded
            self._pushed_back -= pushed_back
        if window != self._window:
            self._peak = in_flight
        self._slots, self._window, self._until = got, window, share.until

    def leave(self, now: float) -> None:
        """Return the share."""

        def change(values: Mapping[str, Any]) -> dict[str, Any] | None:
            if self._worker not in values.get("workers", {}):
                return None
            shares = WorkerShares.of(values["workers"], now)
            return {**values, "workers": shares.without(self._worker).values()}

        self._slots, self._until = 0, 0.0
        try:
            change_record(self._store, self._queue, SLOTS, change)
        except StoreError:
            logger.warning(
                "queue %r: could not return concurrency slots; they expire", self._queue, exc_info=True
            )


class SharedTokens:
    """Tokens of a bucket that all workers of a queue share, leased in blocks.

    Attributes:
        beyond: The tokens that the bucket had beside the leased ones, as last seen; below 0, a debt.
    """

    def __init__(
        self, store: Store, queue: str, bucket: SharedBucket, brakes: SharedBrakes | None = None
    ) -> None:
        self.beyond = 0.0
        self._store = store
        self._queue = queue
        self._brakes = brakes
        self._bucket = bucket
        self._left = 0.0
        # Tokens that runs took beyond, or less than, the costs of their tasks; charged with the next write.
        self._owed = 0.0
        self._now = 0.0
        self._until = 0.0
        self._ask_at = 0.0
        forget_in_child(self)

    def forget_parent(self) -> None:
        """Have no tokens in a forked child, and owe none: they are its parent's."""
        self._left = self._owed = 0.0

    def available(self, now: float, wanted: int) -> int:
        """Return how many of the wanted tokens may be spent now.

        Raises:
            StoreError: If the store did not answer a request for tokens.
        """
        self._now = now
        if now >= self._until:
            self._left = 0.0
        if self._left < 1 and wanted > 0 and now >= self._ask_at:
            self._lease(wanted)
        return min(int(self._left), wanted)

    def _lease(self, wanted: int) -> None:
        block = None
        bucket, owed = self._current(), self._owed - self._left

        def change(state: BucketState) -> BucketState | None:
            nonlocal block
            state, block = bucket.lease(state, self._now, max(wanted, bucket.block), owed)
            self.beyond = state.tokens
            return state if block.count or owed else None

        if self._change(bucket, change) and block is not None:
            self._left, self._until, self._owed = float(block.count), block.until, 0.0
            self._ask_at = self._now + block.retry_after_seconds

    def _current(self) -> SharedBucket:
        """Return the bucket with the rate that applies now."""
        part = 1.0 if self._brakes is None else self._brakes.part(self._now)
        return replace(self._bucket, rate_per_second=self._bucket.rate_per_second * part)

    def _change(self, bucket: SharedBucket, change: Callable[[BucketState], BucketState | None]) -> bool:
        def changed(values: Mapping[str, Any]) -> dict[str, Any] | None:
            state = change(BucketState(**values) if values else bucket.full(self._now))
            return None if state is None else asdict(state)

        return change_record(self._store, self._queue, TOKENS, changed)

    def take(self, *costs: float) -> int:
        """Spend the costs of tasks after `available`, while a whole token is left; return of how many."""
        if sum(costs) <= self._left:
            self._left -= sum(costs)
            return len(costs)
        return self._charge(costs)

    def _charge(self, costs: Sequence[float]) -> int:
        taken, owed = 0, self._owed - self._left

        def change(state: BucketState) -> BucketState:
            nonlocal taken
            state = bucket.filled(state, self._now, owed)
            self.beyond, taken = spent(state.tokens, costs)
            return replace(state, tokens=self.beyond)

        try:
            bucket = self._current()
            if not self._change(bucket, change):
                return 0
        except StoreError:
            logger.warning("queue %r: could not reach the shared rate", self._queue, exc_info=True)
            return 0
        self._left = self._owed = 0.0
        self._ask_at = self._now + max(0.0, 1 - self.beyond) / bucket.rate_per_second
        return taken

    def correct(self, units: float) -> None:
        """Spend units in addition, with the next write; a negative number returns some."""
        self._owed += units
        if units < 0:
            self._ask_at = 0.0

    def leave(self) -> None:
        """Charge what is owed."""
        if self._owed:
            self._charge(())

    def seconds_until_next(self, now: float) -> float:
        """Return the seconds until the next request for tokens; 0 if there are tokens."""
        return 0.0 if self._left >= 1 else max(0.0, self._ask_at - now)


class SharedBrakes:
    """How far providers slow the rates of a queue and of its groups, in one shared record. Thread-safe.

    A process whose rates are limited reads it at most once a second.
    """

    def __init__(self, store: Store, queue: str) -> None:
        """Start with no rate slowed, and read nothing yet."""
        self._store = store
        self._queue = queue
        self._lock = new_lock()
        # By group, or `OF_QUEUE`.
        self._brakes: dict[str, Brake] = {}
        self._read_at = -inf
        # The rules of groups, and what they are since the last read.
        self._slowed: tuple[GroupRules, GroupRules] | None = None

    def part(self, now: float) -> float:
        """Return the part of the queue's rate that applies at `now` (seconds).

        Raises:
            StoreError: If the store did not answer.
        """
        brake = self._known(now).get(OF_QUEUE)
        return 1.0 if brake is None else brake.part_at(now)

    def groups(self, rules: GroupRules, now: float) -> GroupRules:
        """Return the rules of groups with the rates that apply at `now` (seconds).

        Raises:
            StoreError: If the store did not answer.
        """
        if not rules.has_rates:
            return rules
        brakes = self._known(now)
        with self._lock:
            if self._slowed is None or self._slowed[0] is not rules:
                parts = {name: brake.part_at(now) for name, brake in brakes.items()}
                self._slowed = rules, rules.slowed(parts)
            return self._slowed[1]

    def lower(self, name: str, now: float, retry_after_seconds: float) -> None:
        """Lower the rate of a group, or of the queue (`OF_QUEUE`), because a provider pushed back.

        Raises:
            StoreError: If the store did not answer.
        """
        if self._known(now).get(name, Brake()).lowered(now, retry_after_seconds) is None:
            return
        brakes: dict[str, Brake] = {}

        def change(values: Mapping[str, Any]) -> dict[str, Any] | None:
            nonlocal brakes
            brakes = _live_brakes(values, now)
            brake = brakes.pop(name, Brake()).lowered(now, retry_after_seconds)
            if brake is not None:
                brakes[name] = brake  # last, as the newest
            newest = list(brakes.items())[-MAX_BRAKES:]
            return None if brake is None else {"of": {each: astuple(kept) for each, kept in newest}}

        change_record(self._store, self._queue, BRAKES, change)
        with self._lock:
            self._read_at = -inf  # others may have lowered it, too

    def _known(self, now: float) -> Mapping[str, Brake]:
        with self._lock:
            if 0 <= now - self._read_at < READ_BRAKES_SECONDS:
                return self._brakes
        record = self._store.read_record(self._queue, BRAKES)
        brakes = {} if record is None else _live_brakes(record.values, now)
        with self._lock:
            self._brakes, self._read_at, self._slowed = brakes, now, None
        return brakes


def _live_brakes(values: Mapping[str, Any], now: float) -> dict[str, Brake]:
    """Return the brakes that still slow a rate."""
    brakes = {str(name): Brake(*map(float, brake)) for name, brake in values.get("of", {}).items()}
    return {name: brake for name, brake in brakes.items() if brake.part_at(now) < 1}


class SharedRetries:
    """The retry budget of a queue, shared by all workers. Thread-safe."""

    def __init__(self, store: Store, queue: str, budget: RetryBudget) -> None:
        self._store = store
        self._queue = queue
        self._budget = budget
        self._lock = new_lock()
        self._first_attempts = 0

    def first_attempt(self) -> None:
        """Record the first attempt of a task."""
        with self._lock:
            self._first_attempts += 1
            due = self._first_attempts >= DEPOSIT_EVERY
        if due:
            self._settle(spend=False)

    def spend(self) -> bool:
        """Take a retry out of the budget; return whether the retry may be made.

        Also returns True if the store does not answer: one retry too many does less harm than a task lost
        because of a failed call.
        """
        return self._settle(spend=True)

    def _settle(self, *, spend: bool) -> bool:
        with self._lock:
            deposited, self._first_attempts = self._first_attempts, 0
        granted = False

        def change(values: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal granted
            budget = self._budget.at(values.get("balance", self._budget.balance))
            budget.deposit(deposited)
            granted = spend and budget.spend()
            return {"balance": budget.balance}

        try:
            if change_record(self._store, self._queue, RETRIES, change):
                return granted
        except StoreError:
            logger.warning("queue %r: could not reach the retry budget", self._queue, exc_info=True)
        with self._lock:
            self._first_attempts += deposited
        return True


class Admission(NamedTuple):
    """What the limits of groups and kinds admit of some claims.

    Attributes:
        claims: Those within the limits.
        wait_seconds: When the rates leave room for more; infinite if none held a task back.
        put_off: Of tasks whose kinds have no room, by id: how long they should wait, in seconds.
    """

    claims: list[Claim]
    wait_seconds: float = inf
    put_off: Mapping[str, float] = NO_DELAYS


def _judged(claims: Sequence[Claim], room: GroupRoom) -> tuple[list[Claim], list[Task]]:
    """Return the claims that have room, and the tasks whose kinds have none."""
    admitted: list[Claim] = []
    refused: list[Task] = []
    for claim in claims:
        task = claim.task
        if not room.allows_kind(task.kind):
            refused.append(task)
        elif room.allows(task.group):
            room.start(task.group, task.units, task.kind)
            admitted.append(claim)
    return admitted, refused


class SharedRunning:
    """The running tasks by group, of every process, in one shared record. Thread-safe.

    Each process writes its own running tasks, with the end of their leases: a killed process counts until
    then. A claim counts only once it is written, and the write is conditional, so no two processes start
    tasks on the same count. A task claimed beyond a limit is released before it runs.
    """

    def __init__(self, store: Store, queue: str) -> None:
        """Start without running tasks."""
        self._store = store
        self._queue = queue
        self._process = uuid.uuid4().hex[:12]
        self._lock = new_lock()
        # Held during a write of what runs here, so that each thread counts what the others have started.
        self._writing = new_lock()
        # How often what runs here has changed, and how much of that is written.
        self._changes = self._written = 0
        # Whether the last write failed. It may have been made, so that others count what does not run.
        self._is_unsure = False
        # Whether a rule limits running tasks, so that others must know them.
        self._counts_running = True
        # The group of each claim, and when its lease ends.
        self._held: dict[_Held, tuple[str, float]] = {}
        # The units of the tasks of groups, of late.
        self._expected: dict[Group, float] = {}
        # By kind: when the last task that was put off comes back.
        self._turns: dict[str | None, float] = {}

    def room(self, rules: GroupRules, now: float) -> GroupRoom:
        """Return the room that the limits leave, as last written.

        Raises:
            StoreError: If the store did not answer.
        """
        record = self._store.read_record(self._queue, RUNNING)
        if self._is_unsure and rules.counts_running:
            self._publish(self._changes, now)
        return self._room({} if record is None else record.values, rules, now)

    def admitted(self, claims: Sequence[Claim], rules: GroupRules, now: float) -> Admission:
        """Return the claims that are within the limits, and count them.

        Raises:
            StoreError: If the store did not answer, or other processes wrote each time; nothing was counted.
        """
        room = self._room({}, rules, now)
        admitted: list[Claim] = []
        refused: list[Task] = []

        def add(values: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal admitted, refused, room
            room = self._room(values, rules, now)
            admitted, refused = _judged(claims, room)
            with self._lock:
                held = self._held | _entries(admitted, rules)
            starts = room.log.values(rules, now)
            own = self._own(held, now) if rules.counts_running else {}
            return {"held": self._others(values, now) | own, "starts": starts}

        with self._writing:
            self._is_unsure = True
            self._change(add)
            self._is_unsure = False
            self._counts_running = rules.counts_running
            with self._lock:
                # The ends of runs that lost their leases are not told.
                live = {held: entry for held, entry in self._held.items() if entry[1] > now}
                self._held = live | _entries(admitted, rules)
        with self._lock:
            if rules.has_units:
                self._expect([claim.task for claim in claims])
            put_off = {task.task_id: self._turn(task, rules, room.log, now) for task in refused}
        return Admission(admitted, room.wait_seconds, put_off)

    def _change(self, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
        if not change_record(self._store, self._queue, RUNNING, change):
            msg = f"queue {self._queue!r}: other processes changed the counts of groups each time"
            raise StoreError(msg)

    def _turn(self, task: Task, rules: GroupRules, log: StartLog, now: float) -> float:
        """Return how long to put a task off, so that the tasks of a kind come back one after the other."""
        rule, latest = rules.kinds[str(task.kind)], now + LONGEST_TURN_SECONDS
        wait_seconds = log.wait_seconds(f"{KIND}{task.kind}", rule, now)
        turn = min(max(self._turns.get(task.kind, 0.0), now + wait_seconds), latest)
        self._turns[task.kind] = turn + TURN_PART * rule.seconds_per_task(task.units)
        return turn - now

    def _expect(self, tasks: Sequence[Task]) -> None:
        """Follow the units of the tasks of each group, so that claims take few that must go back."""
        for task in tasks:
            mean = self._expected.pop(task.group, task.units)
            self._expected[task.group] = mean + LAST_COST_WEIGHT * (task.units - mean)
        for group in list(self._expected)[:-MAX_EXPECTED]:
            del self._expected[group]

    def counts(self, task: Task) -> bool:
        """Return whether a task of this process is counted as running."""
        return _held(task) in self._held

    def correct(self, due: Sequence[tuple[Group, str | None, float]], rules: GroupRules, now: float) -> None:
        """Take units of groups and kinds in addition, or return some.

        Raises:
            StoreError: If the store did not answer, or other processes wrote each time; nothing was changed.
        """

        def correct(values: Mapping[str, Any]) -> dict[str, Any]:
            log = StartLog(values.get("starts"))
            log.correct(due, rules, now)
            return {**values, "starts": log.values(rules, now)}

        self._change(correct)

    def extended(self, tasks: Sequence[Task], now: float) -> None:
        """Count tasks until the end of their extended leases."""
        with self._lock:
            known = {_held(task): _entry(task) for task in tasks if self.counts(task)}
            self._held |= known
            change = self._changes = self._changes + bool(known)
        if known and self._counts_running:
            self._publish(change, now)

    def ended(self, tasks: Sequence[Task], now: float) -> None:
        """Stop counting tasks."""
        with self._lock:
            known = [self._held.pop(_held(task), None) for task in tasks]
            change = self._changes = self._changes + any(known)
        if any(known) and self._counts_running:
            self._publish(change, now)

    def _publish(self, change: int, now: float) -> None:
        """Write this process's running tasks, unless another thread has written them since a change.

        So threads whose tasks end while one writes share the next write. If a write fails, the tasks count
        until the next claim of this process, or until their leases end.
        """
        written = 0

        def write(values: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal written
            with self._lock:
                own, written = self._own(self._held, now), self._changes
            return {**values, "held": self._others(values, now) | own}

        with self._writing:
            if change <= self._written and not self._is_unsure:
                return
            self._is_unsure = True
            try:
                if change_record(self._store, self._queue, RUNNING, write):
                    self._written, self._is_unsure = written, False
            except StoreError:
                logger.warning("queue %r: could not share the counts of groups", self._queue, exc_info=True)

    def _room(self, values: Mapping[str, Any], rules: GroupRules, now: float) -> GroupRoom:
        counts = Counter[str]()
        with self._lock:
            own = self._own(self._held, now)
        for _until, groups in (self._others(values, now) | own).values():
            counts.update(groups)
        if rules.separator is not None:
            by_group, counts = counts, Counter()
            for group, number in by_group.items():
                for name in rules.lineage(group):
                    counts[str(name)] += number
        room = GroupRoom(rules, counts.__getitem__, StartLog(values.get("starts")), now)
        room.expected = self._expected
        return room

    def _others(self, values: Mapping[str, Any], now: float) -> dict[str, Any]:
        held = values.get("held", {})
        return {
            process: [float(until), {str(group): int(number) for group, number in groups.items()}]
            for process, (until, groups) in held.items()
            if process != self._process and until > now
        }

    def _own(self, held: Mapping[_Held, tuple[str, float]], now: float) -> dict[str, Any]:
        live = [(group, until) for group, until in held.values() if until > now]
        if not live:
            return {}
        return {self._process: [max(until for _, until in live), Counter(group for group, _ in live)]}


def _entry(task: Task) -> tuple[str, float]:
    return task.group or "", task.lease_until or 0.0


def _held(task: Task) -> _Held:
    """Return what identifies a claim: a process may lose a task and claim it again."""
    return task.task_id, plain_token(task.lease_token)


def _entries(claims: Sequence[Claim], rules: GroupRules) -> dict[_Held, tuple[str, float]]:
    """Return the entries of the claims whose tasks a limit may count."""
    tasks = [claim.task for claim in claims]
    return {_held(task): _entry(task) for task in tasks if rules.limiting(task.group, task.kind)}
