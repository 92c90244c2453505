"""Matching: a caller gets the resource that fits and has waited longest, and nobody else gets it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from freshq.errors import MatchLost, StoreError, Throttled, needs
from freshq.matching import lifecycle
from freshq.matching.criteria import parse_criteria
from freshq.matching.match import Match
from freshq.matching.places import checked_resource_id, parse_attributes, partitions_of
from freshq.matching.resource import Resource, ResourceStatus
from freshq.matching.stores.base import ChangedError
from freshq.matching.walk import Walk, taken
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.lifecycle import new_token
from freshq.model.stamps import Stamps
from freshq.policy.order import Order
from freshq.policy.retry import until_committed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self, TypedDict, Unpack

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.matching.criteria import Ask
    from freshq.matching.resource import Entry
    from freshq.matching.stores.base import MatchStore

    class MatchOptions(TypedDict, total=False):
        """Options by name, as the constructors of `MatchQueue` take them; `MatchQueue` describes them."""

        order: Order | str
        lease_seconds: float
        clock: Callable[[], float]


AfterT = TypeVar("AfterT", bound=Resource | None)

logger = logging.getLogger(__name__)

DEFAULT_LEASE_SECONDS: Final = 60.0
MAX_MATCHES: Final = 100
# Tries of a verb that reads a resource before it changes it.
MAX_COMMIT_TRIES: Final = 10
# Minimum time between two recoveries that `match` makes, as a part of a lease.
MIN_RECOVERY_INTERVAL: Final = 0.1


class MatchQueue:
    """Resources that wait, and callers who each take the one that fits and is first.

    A waiting resource has an entry for each combination of values that callers can ask for. A match deletes
    all of them in one transaction. Thread-safe. A wrong argument raises ValueError before any write. A
    store that does not answer raises StoreError; it never looks like an empty queue.
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
            store: Where the resources are.
            order: fifo: the resource that has waited longest is first; lifo: the one that came last.
            lease_seconds: How long a match holds its resource unless extended. Must be the same in every
                process.
            clock: Returns the time in seconds since the Unix epoch.

        Raises:
            ValueError: If an option is wrong.
        """
        if order not in (Order.FIFO, Order.LIFO):
            msg = f"order: must be fifo or lifo, got {order!r}"
            raise ValueError(msg)
        self._lease_seconds = checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        self._clock = clock
        self._stamps = Stamps(clock)
        self._store = store
        self._walk = Walk(store, newest_first=Order(order) is Order.LIFO)
        self._next_recovery = 0.0

    @classmethod
    def memory(cls, **options: Unpack[MatchOptions]) -> Self:
        """Return a queue in this process's memory, for tests and trials."""
        from freshq.matching.stores.memory import MemoryMatchStore  # noqa: PLC0415 - only the store in use

        return cls(MemoryMatchStore(), **options)

    @classmethod
    def dynamodb(
        cls, table: str, client: DynamoDBClient | None = None, **options: Unpack[MatchOptions]
    ) -> Self:
        """Return a queue on its own DynamoDB table.

        Args:
            table: Name of the table.
            client: A low-level boto3 client; None for one from the environment.
            **options: As for `MatchQueue`.

        Raises:
            MissingExtra: If the extra `aws` is not installed.
        """
        with needs("aws"):
            from freshq.matching.stores.dynamodb import DynamoDBMatchStore  # noqa: PLC0415 - only the store in use

        return cls(DynamoDBMatchStore(table, client), **options)

    def create_table(self) -> None:
        """Create what the store needs, unless it exists; return once it can be used."""
        self._store.create_table()

    # --- resources

    def register(self, resource_id: str, attributes: Mapping[str, Any]) -> Resource:
        """Register a resource: available, not yet waiting. Repeating it changes nothing.

        An available resource may be registered again with other attributes.

        Args:
            resource_id: Its id, at most 256 bytes.
            attributes: What callers can ask for: names, each with a text or a set of texts.

        Raises:
            ValueError: If an argument is wrong, or the attributes need more entries than one transaction
                can change.
            WrongResourceState: If it has other attributes and is queued or matched.
        """
        checked_resource_id(resource_id)
        parsed = parse_attributes(attributes)
        if parsed:
            self._store.add_names(parsed.keys())
        return self._change(resource_id, lambda before: lifecycle.registered(resource_id, parsed, before))

    def unregister(self, resource_id: str) -> None:
        """Delete an available resource; one that is not registered is no error.

        Raises:
            WrongResourceState: If it is queued or matched.
        """
        self._change(checked_resource_id(resource_id), lifecycle.unregistered)

    def get(self, resource_id: str) -> Resource | None:
        """Return a resource; None if it is not registered."""
        return self._store.get(checked_resource_id(resource_id))

    def enqueue(self, resource_id: str) -> Resource:
        """Let an available resource wait, behind all that wait already.

        A resource whose caller's lease has expired gets its old position back.

        Raises:
            ResourceNotFound: If it is not registered.
            WrongResourceState: If it is queued or matched.
        """
        checked_resource_id(resource_id)
        return self._change(
            resource_id,
            lambda before: lifecycle.enqueued(resource_id, before, self._clock(), self._stamps.next),
        )

    def leave(self, resource_id: str) -> Resource:
        """Stop a resource from waiting; it stays registered. An available one stays as it is.

        Raises:
            ResourceNotFound: If it is not registered.
            WrongResourceState: If it is matched.
        """
        checked_resource_id(resource_id)
        return self._change(resource_id, lambda before: lifecycle.left(resource_id, before, self._clock()))

    def depths(self) -> dict[str, int]:
        """Return how many resources wait for each full combination of values, by its name.

        A resource counts in every combination that it can serve: ``gender=F&language=English`` is as deep
        as there are such resources. Counted from the entries; exact while nothing changes.
        """
        depths: Counter[str] = Counter()
        for resource in self._walk.waiting().values():
            depths.update(partitions_of(resource.attributes))
        return dict(sorted(depths.items()))

    def waiting(self) -> int:
        """Return how many resources wait, each counted once."""
        return len(self._walk.waiting())

    # --- callers

    def match(self, criteria: Any, limit: int = 1) -> list[Match]:  # noqa: ANN401 - checked at once
        """Take the resources that fit, in the order of the queue.

        If too few are waiting, resources whose callers' leases have expired are recovered first: at most
        once in a tenth of a lease, and not before a lease can have expired.

        Args:
            criteria: Names, each with what is asked for: a text; a set of texts, any of which will do; or
                a list of texts, sets and None in order of preference, where None is any. Names left out do
                not matter. Or a list of such mappings in order of preference.
            limit: Maximum number of matches, 1 to 100.

        Returns:
            The matches, best first; empty if nothing fits.

        Raises:
            ValueError: If an argument is wrong.
            StoreError: If the store did not answer before the first match. Later, the matches made so far
                are returned.
        """
        ranks = parse_criteria(criteria)
        checked_count("limit", limit, at_most=MAX_MATCHES)
        found: list[Match] = []
        try:
            for match in islice(self._matches(ranks), limit):
                found.append(match)  # noqa: PERF402 - kept if the store fails at the next one
        except StoreError:
            if not found:
                raise
            logger.warning("matched only %d of %d resources", len(found), limit, exc_info=True)
        return found

    def _matches(self, ranks: list[list[Ask]]) -> Iterator[Match]:
        yield from taken(self._walk, ranks, self._take)
        if self._clock() >= self._next_recovery and self.recover():
            yield from taken(self._walk, ranks, self._take)

    def _take(self, entry: Entry, ask: Ask, rank: int) -> Match | None:
        """Match one resource; None if somebody else was first."""
        match = Match(
            resource_id=entry.resource.resource_id,
            token=new_token(),
            attributes=entry.resource.attributes,
            criteria=ask,
            rank=rank,
            since=entry.since,
            lease_until=self._lease_end(),
        )
        return match if self._committed(entry.resource, match.held()) else None

    def release(self, match: Match) -> Resource:
        """Give a resource back: available, not yet waiting.

        Raises:
            MatchLost: If the match no longer holds it.
        """
        after = lifecycle.available(match.held())
        self._settle(match, after)
        return after

    def extend(self, match: Match, lease_seconds: float | None = None) -> Match:
        """Hold a resource for `lease_seconds` from now; None for the queue's lease.

        Returns:
            The match with its new end and the same token.

        Raises:
            MatchLost: If the match no longer holds it.
        """
        extended = replace(match, lease_until=self._lease_end(lease_seconds))
        self._settle(match, extended.held())
        return extended

    def _settle(self, match: Match, after: Resource) -> None:
        if self._committed(match.held(), after):
            return
        current = self._store.get(match.resource_id)
        why = "it is no longer registered" if current is None else f"it is {current.status} now"
        if current is not None and current.status is ResourceStatus.MATCHED:
            why = "it is matched to another caller now"
        raise MatchLost(match.resource_id, why)

    # --- upkeep

    def recover(self) -> int:
        """Return resources whose callers' leases have expired to their old positions.

        Reads every registered resource.

        Returns:
            How many were recovered.
        """
        now = self._clock()
        lease_ends = [now + self._lease_seconds]
        recovered = 0
        for resource in self._store.resources():
            if resource.expired(now):
                recovered += self._committed(resource, lifecycle.queued(resource, self._stamps.next))
            elif resource.status is ResourceStatus.MATCHED and resource.lease_until is not None:
                lease_ends.append(resource.lease_until)
        self._next_recovery = max(min(lease_ends), now + MIN_RECOVERY_INTERVAL * self._lease_seconds)
        return recovered

    # --- writes

    def _change(self, resource_id: str, change: Callable[[Resource | None], AfterT]) -> AfterT:
        """Read a resource, compute its next version and commit it, again if it changed in between.

        Args:
            resource_id: Its id.
            change: Returns the next version: None to delete it, its argument to leave it alone.
        """

        def attempt() -> AfterT:
            before = self._store.get(resource_id)
            after = change(before)
            if after is not before:
                self._commit(before, after)
            return after

        try:
            return until_committed(attempt, ChangedError, MAX_COMMIT_TRIES)
        except ChangedError:
            msg = f"resource {resource_id!r}: changed at each of {MAX_COMMIT_TRIES} tries; try again"
            raise Throttled(msg) from None

    def _committed(self, before: Resource, after: Resource) -> bool:
        """Commit a change; return False if the resource is no longer as it was before."""
        try:
            self._commit(before, after)
        except ChangedError:
            return False
        return True

    def _commit(self, before: Resource | None, after: Resource | None) -> None:
        queued = after is not None and after.status is ResourceStatus.QUEUED
        # Read after the stamp was taken: a resource with a greater name is queued later.
        self._store.commit(before, after, self._store.last_name() if queued else "")

    def _lease_end(self, lease_seconds: float | None = None) -> float:
        if lease_seconds is None:
            lease_seconds = self._lease_seconds
        checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        return round(self._clock() + lease_seconds, 6)
