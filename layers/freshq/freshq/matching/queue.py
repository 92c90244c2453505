"""Matching: whoever calls gets the resource that fits and has waited longest, and no one else gets it."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import (
    FreshqError,
    MatchLost,
    ResourceNotFound,
    StoreError,
    Throttled,
    WrongResourceState,
    needs,
)
from freshq.matching.criteria import parse_criteria
from freshq.matching.places import (
    GREATEST_KEY,
    LEAST_KEY,
    MAX_RESOURCE_ID_BYTES,
    parse_attributes,
    queues_of,
)
from freshq.matching.resource import Resource, ResourceStatus
from freshq.matching.stores.base import ChangedError, Span
from freshq.matching.walk import Lines
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.lifecycle import new_token
from freshq.policy.order import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self, TypedDict, Unpack

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.matching.criteria import Ask
    from freshq.matching.places import Attributes
    from freshq.matching.resource import Entry
    from freshq.matching.stores.base import MatchStore

    class MatchOptions(TypedDict, total=False):
        """Options by name; `MatchQueue` says what they mean."""

        order: Order | str
        lease_seconds: float
        clock: Callable[[], float]


logger = logging.getLogger(__name__)

DEFAULT_LEASE_SECONDS: Final = 60.0
MAX_MATCHES: Final = 100
# A verb that reads before it writes starts again so often when the resource changes in between.
MAX_READ_WRITE_TRIES: Final = 10
# After a look for leases that ran out, the next one is at least this share of a lease later.
LEAST_LOOK_SHARE: Final = 0.1
DEPTH_PAGE_ENTRIES: Final = 1000


@dataclass(frozen=True, slots=True)
class Match:
    """A resource held for a caller.

    Attributes:
        resource_id: Whose.
        token: Proves who holds it.
        attributes: What the resource was registered with, each name with its values.
        criteria: The exact question that it answered.
        rank: Which preference that was; 0 is the first.
        since: Since when it had waited, in seconds since the epoch.
        lease_until: Until when it is held, in seconds since the epoch.
    """

    resource_id: str
    token: str
    attributes: Attributes
    criteria: Ask
    rank: int
    since: float
    lease_until: float

    def held(self) -> Resource:
        """Return the resource as it is as long as the match holds it."""
        return Resource(
            self.resource_id,
            self.attributes,
            ResourceStatus.MATCHED,
            self.token,
            self.since,
            self.lease_until,
        )


class MatchQueue:
    """Resources that wait, and callers who each take the one that fits and is first in line.

    A resource stands in several queues, one for each combination of values that it can be asked for, and
    a match takes it out of all of them in one transaction. Thread-safe. A wrong argument raises
    ValueError before any write; a store that does not answer raises StoreError, and never looks like an
    empty line.
    """

    def __init__(
        self,
        store: MatchStore,
        order: Order | str = Order.FIFO,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Use a store.

        Args:
            store: Home of the resources.
            order: fifo: who waited longest is first; lifo: who waited least.
            lease_seconds: How long a match is held unless it is extended. The same in every process.
            clock: Returns the time in seconds since the Unix epoch.

        Raises:
            ValueError: If an option is wrong.
        """
        if order not in (Order.FIFO, Order.LIFO):
            msg = f"order: must be fifo or lifo, got {order!r}"
            raise ValueError(msg)
        self._lease_seconds = checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        self._clock = clock
        self._store = store
        self._lines = Lines(store, newest_first=Order(order) is Order.LIFO)
        self._stamp_lock = threading.Lock()
        self._last_stamp_us = 0
        self._next_look = 0.0

    @classmethod
    def memory(cls, **options: Unpack[MatchOptions]) -> Self:
        """Return a queue in this process's memory, for tests and trials."""
        from freshq.matching.stores.memory import MemoryMatchStore  # noqa: PLC0415 - only the store in use

        return cls(MemoryMatchStore(), **options)

    @classmethod
    def dynamodb(
        cls, table: str, client: DynamoDBClient | None = None, **options: Unpack[MatchOptions]
    ) -> Self:
        """Return a queue on a DynamoDB table of its own.

        Args:
            table: Name of the table.
            client: A low-level boto3 client; None for one from the environment.
            **options: As for `MatchQueue`.
        """
        with needs("aws"):
            from freshq.matching.stores.dynamodb import DynamoDBMatchStore  # noqa: PLC0415 - only the store in use

        return cls(DynamoDBMatchStore(table, client), **options)

    def create_table(self) -> None:
        """Make what the store needs, unless it is there; return once it can be used."""
        self._store.create_table()

    # --- resources

    def register(self, resource_id: str, attributes: Mapping[str, Any]) -> Resource:
        """Make a resource known, available but not yet in line; to repeat it changes nothing.

        Other attributes than before are taken over while it is available.

        Args:
            resource_id: Its id, at most 256 bytes.
            attributes: What it can be asked for: names, each with a text or a set of texts.

        Raises:
            ValueError: If an argument is wrong, or the attributes make more queue entries than one
                transaction can change.
            WrongResourceState: If it has other attributes and is in line or matched.
        """
        checked_resource_id(resource_id)
        parsed = parse_attributes(attributes)
        if parsed:
            self._store.add_names(parsed.keys())
        for _ in range(MAX_READ_WRITE_TRIES):
            before = self._store.get(resource_id)
            if before is not None and before.attributes == parsed:
                return before
            if before is not None and before.status is not ResourceStatus.AVAILABLE:
                advice = "its attributes are those of its places; leave the line or release it first"
                raise WrongResourceState(resource_id, "change the attributes", before.status, advice)
            after = Resource(resource_id, parsed, ResourceStatus.AVAILABLE, new_token())
            if self._commit(before, after):
                return after
        raise _restless(resource_id)

    def unregister(self, resource_id: str) -> None:
        """Forget a resource that is available; one that is not registered is no error.

        Raises:
            WrongResourceState: If it is in line or matched.
        """
        checked_resource_id(resource_id)
        for _ in range(MAX_READ_WRITE_TRIES):
            before = self._store.get(resource_id)
            if before is None:
                return
            if before.status is not ResourceStatus.AVAILABLE:
                advice = "leave the line or release it first"
                raise WrongResourceState(resource_id, "unregister", before.status, advice)
            if self._commit(before, None):
                return
        raise _restless(resource_id)

    def get(self, resource_id: str) -> Resource | None:
        """Return a resource; None if it is not registered."""
        return self._store.get(checked_resource_id(resource_id))

    # --- the line

    def enqueue(self, resource_id: str) -> Resource:
        """Put an available resource at the end of every queue that it belongs in.

        One whose caller's lease ran out gets the place back that it had.

        Raises:
            ResourceNotFound: If it is not registered.
            WrongResourceState: If it is in line already, or matched.
        """
        checked_resource_id(resource_id)
        for _ in range(MAX_READ_WRITE_TRIES):
            before = self._known(resource_id)
            if before.status is ResourceStatus.QUEUED:
                raise WrongResourceState(resource_id, "enqueue", before.status, "it keeps its place")
            if before.status is ResourceStatus.MATCHED and not before.lapsed(self._clock()):
                advice = "release it first, or wait until its lease ends"
                raise WrongResourceState(resource_id, "enqueue", before.status, advice)
            after = self._queued(before)
            if self._commit(before, after):
                return after
        raise _restless(resource_id)

    def leave(self, resource_id: str) -> Resource:
        """Take a resource out of every queue that it stands in; it stays registered.

        One that is available already is returned as it is.

        Raises:
            ResourceNotFound: If it is not registered.
            WrongResourceState: If it is matched.
        """
        checked_resource_id(resource_id)
        for _ in range(MAX_READ_WRITE_TRIES):
            before = self._known(resource_id)
            if before.status is ResourceStatus.AVAILABLE:
                return before
            if before.status is ResourceStatus.MATCHED and not before.lapsed(self._clock()):
                raise WrongResourceState(resource_id, "leave", before.status, "release it first")
            after = _available(before)
            if self._commit(before, after):
                return after
        raise _restless(resource_id)

    def depths(self) -> dict[str, int]:
        """Return how many resources wait for each full combination of values, by its name.

        A resource counts in every combination that it can serve; so ``gender=F&language=English`` is as
        deep as there are such resources. Counted from the entries themselves, of which it reads a share:
        exact while nothing changes.
        """
        depths: Counter[str] = Counter()
        for resource in self._waiting().values():
            depths.update(queues_of(resource.attributes))
        return dict(sorted(depths.items()))

    def waiting(self) -> int:
        """Return how many resources are in line, each counted once."""
        return len(self._waiting())

    def _waiting(self) -> dict[str, Resource]:
        """Return the resources in line; all of them stand in the queue that names nothing."""
        found: dict[str, Resource] = {}
        start_after = None
        while True:
            span = Span("", LEAST_KEY, GREATEST_KEY, False, DEPTH_PAGE_ENTRIES, start_after)  # noqa: FBT003
            page = self._store.page(span)
            found.update((entry.resource.resource_id, entry.resource) for entry in page)
            if len(page) < DEPTH_PAGE_ENTRIES:
                return found
            start_after = page[-1].sort_key

    # --- callers

    def match(self, criteria: Any, limit: int = 1) -> list[Match]:  # noqa: ANN401 - checked at once
        """Take the resources that fit and are first in line.

        If fewer are in line than asked for, resources whose caller's lease ran out are looked for and
        brought back; at most once a tenth of a lease, and not before a lease can have run out.

        Args:
            criteria: Names, each with what is asked for: a text; a set of texts, any of which will do; or
                a list of texts, sets and None in order of preference, where None is any. What is left out
                does not matter. Or a list of such mappings in order of preference.
            limit: How many at the most, 1 to 100.

        Returns:
            The matches, best first; empty if no one fits.

        Raises:
            ValueError: If an argument is wrong.
            StoreError: If the store did not answer. What was taken before that is returned instead, and
                the next call fails.
        """
        ranks = parse_criteria(criteria)
        checked_count("limit", limit, at_most=MAX_MATCHES)
        found: list[Match] = []
        try:
            self._match(ranks, limit, found)
            if len(found) < limit and self._clock() >= self._next_look and self.recover():
                self._match(ranks, limit, found)
        except StoreError:
            if not found:
                raise
            logger.warning("matched only %d of %d resources", len(found), limit, exc_info=True)
        return found

    def _match(self, ranks: list[list[Ask]], limit: int, found: list[Match]) -> None:
        """Add matches until there are enough, or no candidate is left.

        Whoever lost once tries the next candidate. Whoever loses again competes with several callers who
        walk down the same line in step, and steps aside: at random past fewer candidates than it lost,
        who are tried in the end if they are still there. A caller who meets no more than one other at a
        time takes them strictly in order.
        """
        tried: set[str] = set()
        losses = skip = 0
        for rank, asks in enumerate(ranks):
            passed: list[tuple[Entry, Ask]] = []
            for entry, ask in chain(self._lines.fitting(asks), passed):
                if entry.resource.token in tried:
                    continue
                if skip:
                    skip -= 1
                    passed.append((entry, ask))
                    continue
                tried.add(entry.resource.token)
                match = self._take(entry, ask, rank)
                if match is None:
                    losses += 1
                    skip = int(random.random() * losses)  # noqa: S311 - spreads callers, keeps no secret
                    continue
                found.append(match)
                if len(found) >= limit:
                    return

    def _take(self, entry: Entry, ask: Ask, rank: int) -> Match | None:
        """Take one resource out of line; None if it is no longer there to be taken."""
        lease_until = self._lease_end()
        match = Match(
            resource_id=entry.resource.resource_id,
            token=new_token(),
            attributes=entry.resource.attributes,
            criteria=ask,
            rank=rank,
            since=entry.since,
            lease_until=lease_until,
        )
        return match if self._commit(entry.resource, match.held()) else None

    def release(self, match: Match) -> Resource:
        """Give a resource back: available, not yet in line.

        Raises:
            MatchLost: If the match no longer holds it.
        """
        after = _available(match.held())
        self._settle(match, after)
        return after

    def extend(self, match: Match, lease_seconds: float | None = None) -> Match:
        """Hold a resource for `lease_seconds` from now; None for the queue's own lease.

        Returns:
            The match with its new end; the token stays.

        Raises:
            MatchLost: If the match no longer holds it.
        """
        extended = replace(match, lease_until=self._lease_end(lease_seconds))
        self._settle(match, extended.held())
        return extended

    def _settle(self, match: Match, after: Resource) -> None:
        if self._commit(match.held(), after):
            return
        current = self._store.get(match.resource_id)
        why = "it is no longer registered" if current is None else f"it is {current.status} now"
        if current is not None and current.status is ResourceStatus.MATCHED:
            why = "it is matched to another caller now"
        raise MatchLost(match.resource_id, why)

    # --- upkeep

    def recover(self) -> int:
        """Bring resources back into line, at the place they had, whose caller's lease ran out.

        Reads every registered resource.

        Returns:
            How many came back.
        """
        now = self._clock()
        ends = [now + self._lease_seconds]
        recovered = 0
        for resource in self._store.resources():
            if resource.lapsed(now):
                recovered += self._commit(resource, self._queued(resource))
            elif resource.status is ResourceStatus.MATCHED and resource.lease_until is not None:
                ends.append(resource.lease_until)
        self._next_look = max(min(ends), now + LEAST_LOOK_SHARE * self._lease_seconds)
        return recovered

    # --- within

    def _known(self, resource_id: str) -> Resource:
        resource = self._store.get(resource_id)
        if resource is None:
            raise ResourceNotFound(resource_id)
        return resource

    def _queued(self, before: Resource) -> Resource:
        """Return the version that stands in line: at its old place if a lost caller owes it, else last."""
        since = self._stamp() if before.since is None else before.since
        return Resource(
            before.resource_id, before.attributes, ResourceStatus.QUEUED, new_token(), since=since
        )

    def _commit(self, before: Resource | None, after: Resource | None) -> bool:
        """Make a change; return whether the resource still was what the change started from."""
        queued = after is not None and after.status is ResourceStatus.QUEUED
        try:
            # Read after the time of joining was taken: whoever has a greater name joins later.
            self._store.commit(before, after, self._store.last_name() if queued else "")
        except ChangedError:
            return False
        return True

    def _lease_end(self, lease_seconds: float | None = None) -> float:
        if lease_seconds is None:
            lease_seconds = self._lease_seconds
        checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        return round(self._clock() + lease_seconds, 6)

    def _stamp(self) -> float:
        """Return the time, later than any that this process gave before."""
        with self._stamp_lock:
            self._last_stamp_us = max(round(self._clock() * 1e6), self._last_stamp_us + 1)
            return self._last_stamp_us / 1e6


def checked_resource_id(resource_id: Any) -> str:  # noqa: ANN401 - whatever a caller gave
    """Return an id that a resource may have.

    Raises:
        ValueError: If it is no text, or empty, or longer than `MAX_RESOURCE_ID_BYTES`.
    """
    try:
        usable = isinstance(resource_id, str) and 0 < len(resource_id.encode()) <= MAX_RESOURCE_ID_BYTES
    except UnicodeEncodeError:
        usable = False
    if not usable:
        msg = f"resource_id: must be a text of 1 to {MAX_RESOURCE_ID_BYTES} bytes, got {resource_id!r:.60}"
        raise ValueError(msg)
    return str(resource_id)


def _available(before: Resource) -> Resource:
    return Resource(before.resource_id, before.attributes, ResourceStatus.AVAILABLE, new_token())


def _restless(resource_id: str) -> FreshqError:
    return Throttled(f"resource {resource_id!r}: others changed it {MAX_READ_WRITE_TRIES} times; try again")
