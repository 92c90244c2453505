"""Compute and store the next version of a resource under each verb."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Final, TypeVar

from freshq.errors import IllegalTransition, LostRace, NotFound
from freshq.matching.resource import Resource, ResourceStatus, caller_of
from freshq.matching.stores.base import Change, Changed
from freshq.model.checks import checked_seconds
from freshq.model.codec import WORKER_SEPARATOR
from freshq.model.lifecycle import Stamps, new_token
from freshq.policy.retry import until_committed

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.matching.places import Attributes
    from freshq.matching.stores.base import MatchStore

T = TypeVar("T")
AfterT = TypeVar("AfterT", bound=Resource | None)
# Tries of a read-change-commit.
MAX_COMMIT_TRIES: Final = 10
DEFAULT_LEASE_SECONDS: Final = 3600.0
# Minimum time between two recoveries by callers: a fraction of a lease, and not more than some seconds.
MIN_RECOVERY_INTERVAL: Final = 0.1
MIN_RECOVERY_SECONDS: Final = 6.0


def registered(
    resource_id: str, attributes: Attributes, data_json: str | None, before: Resource | None
) -> Resource:
    """Return a resource with these attributes and data, AVAILABLE; `before` itself if nothing differs.

    Raises:
        IllegalTransition: If it has other attributes or other data, and is not available.
    """
    if before is not None and (before.attributes, before.data_json) == (attributes, data_json):
        return before
    if before is not None and before.status is not ResourceStatus.AVAILABLE:
        verb = "change the data" if before.attributes == attributes else "change the attributes"
        advice = _how_to_free(before, then="withdraw it first")
        raise IllegalTransition.of_resource(resource_id, verb, before.status, advice)
    return Resource(resource_id, attributes, ResourceStatus.AVAILABLE, new_token(), data_json=data_json)


def _how_to_free(before: Resource, *, then: str) -> str:
    """Return how a resource becomes available.

    Args:
        before: The stored version, queued or matched.
        then: What to do with a queued one.
    """
    if before.status is not ResourceStatus.MATCHED:
        return then
    until = "" if before.lease_until is None else ", wait until its lease expires"
    shown = before.resource_id
    return (
        f"its holder must complete it first{until}, or free it from a holder that is gone: queue.complete("
        f"queue.admin.held({shown!r})), or freshq match complete {quote(shown)} --force"
    )


def unregistered(resource_id: str, before: Resource | None) -> None:
    """Check that a resource may be deleted.

    Raises:
        NotFound: If it is not registered.
        IllegalTransition: If it is not available.
    """
    before = known(resource_id, before)
    if before.status is not ResourceStatus.AVAILABLE:
        raise IllegalTransition.of_resource(
            resource_id, "unregister", before.status, _how_to_free(before, then="withdraw it first")
        )


def offered(before: Resource, now: float, stamp: Callable[[], float]) -> Resource:
    """Return the QUEUED version of a resource.

    Args:
        before: The version that is stored.
        now: Current time in seconds.
        stamp: Returns the time from which it waits, in seconds since the epoch.

    Raises:
        IllegalTransition: If it is queued, or matched and its lease has not expired.
    """
    if before.status is ResourceStatus.QUEUED:
        raise IllegalTransition.of_resource(
            before.resource_id, "offer", before.status, "it keeps its position"
        )
    if before.status is ResourceStatus.MATCHED and not before.expired(now):
        advice = _how_to_free(before, then="")
        raise IllegalTransition.of_resource(before.resource_id, "offer", before.status, advice)
    return queued(before, stamp)


def withdrawn(resource_id: str, before: Resource | None) -> Resource:
    """Return the AVAILABLE version of a resource; `before` itself if it is available already.

    Raises:
        NotFound: If it is not registered.
        IllegalTransition: If it is matched.
    """
    before = known(resource_id, before)
    if before.status is ResourceStatus.AVAILABLE:
        return before
    if before.status is ResourceStatus.MATCHED:
        raise IllegalTransition.of_resource(
            resource_id, "withdraw", before.status, _how_to_free(before, then="")
        )
    return available(before)


def queued(before: Resource, stamp: Callable[[], float]) -> Resource:
    """Return the QUEUED version: in its old position if it was matched, otherwise at the end."""
    since = stamp() if before.since is None else before.since
    return replace(available(before), status=ResourceStatus.QUEUED, since=since)


def available(before: Resource) -> Resource:
    """Return the AVAILABLE version of a resource."""
    return replace(
        before,
        status=ResourceStatus.AVAILABLE,
        token=new_token(),
        since=None,
        lease_until=None,
        caller_id=None,
    )


def known(resource_id: str, resource: Resource | None) -> Resource:
    """Return the stored version of a resource.

    Raises:
        NotFound: If it is not registered.
    """
    if resource is None:
        raise NotFound.of_resource(resource_id)
    return resource


class Changes:
    """The changes of the resources of a store. Thread-safe.

    Attributes:
        clock: Returns the time in seconds since the epoch.
        stamp: Returns the time at which a wait begins, always a new one.
        lease_seconds: How long a match holds its resource unless extended; None: until it is settled.
    """

    def __init__(
        self,
        store: MatchStore,
        clock: Callable[[], float],
        lease_seconds: float | None,
        worker_name: str | None = None,
    ) -> None:
        """Use a store.

        Args:
            store: The store of the resources.
            clock: Returns the time in seconds since the epoch.
            lease_seconds: How long a match holds its resource unless extended; None: until it is settled.
            worker_name: Prefix of the tokens of its matches; None for no prefix.
        """
        self._store = store
        self.clock = clock
        self.lease_seconds = lease_seconds
        self._prefix = "" if worker_name is None else worker_name + WORKER_SEPARATOR
        self._next_recovery = 0.0
        self.stamp = Stamps(clock).next

    def stored(self, resource_id: str) -> Resource | None:
        """Return the stored version of a resource; None if the id is unknown."""
        return self._store.get(resource_id)

    def matched(self, before: Resource, since: float | None, caller_id: str | None = None) -> Resource:
        """Return the MATCHED version of a resource.

        Args:
            before: The version that is stored.
            since: When it started to wait, or would have, in seconds since the epoch.
            caller_id: Id of the caller in line that it is held for; None for a caller who did not wait.
        """
        return replace(
            before,
            status=ResourceStatus.MATCHED,
            token=self._prefix + new_token(),
            since=since,
            lease_until=self.lease_end(),
            caller_id=caller_id,
        )

    def may_recover(self) -> bool:
        """Return whether a lease may have expired, and the last recovery is long enough ago."""
        return self.clock() >= self._next_recovery

    def recover(self, serve: Callable[[Resource], object]) -> int:
        """Return resources whose callers' leases have expired to their old positions.

        Reads every registered resource.

        Args:
            serve: Called with each resource that was recovered, now queued.

        Returns:
            How many were recovered.
        """
        now = self.clock()
        # Other processes may make matches that expire, even if this one makes none.
        lease_seconds = self.lease_seconds or DEFAULT_LEASE_SECONDS
        lease_ends = [now + lease_seconds]
        recovered = 0
        for resource in self._store.resources():
            if resource.expired(now):
                back = queued(resource, self.stamp)
                if self.committed(resource, back):
                    recovered += 1
                    serve(back)
            elif resource.status is ResourceStatus.MATCHED and resource.lease_until is not None:
                lease_ends.append(resource.lease_until)
        pause_seconds = min(MIN_RECOVERY_INTERVAL * lease_seconds, MIN_RECOVERY_SECONDS)
        self._next_recovery = max(min(lease_ends), now + pause_seconds)
        return recovered

    def change(self, resource_id: str, change: Callable[[Resource | None], AfterT]) -> AfterT:
        """Read a resource, compute its next version and commit it; repeat if it changed in between.

        Args:
            resource_id: Its id.
            change: Returns the next version: None to delete it; return the argument to leave it unchanged.
        """

        def attempt() -> AfterT:
            before = self._store.get(resource_id)
            after = change(before)
            if after is not before:
                self.commit(before, after)
            return after

        return repeated(partial(LostRace.of_resource, resource_id), attempt)

    def withdraw(self, resource_id: str) -> Resource:
        """Stop a resource from waiting.

        A resource whose caller's lease has expired is queued first, so that its history shows the lost lease
        rather than a success.

        Raises:
            NotFound: If it is not registered.
            IllegalTransition: If it is matched.
        """

        def change(before: Resource | None) -> Resource:
            if before is not None and before.expired(self.clock()):
                queued_again = queued(before, self.stamp)
                self.commit(before, queued_again)
                raise Changed  # by this change: read it and withdraw it
            return withdrawn(resource_id, before)

        return self.change(resource_id, change)

    def committed(self, before: Resource, after: Resource) -> bool:
        """Commit a change; return False if the resource has changed since `before` was read."""
        try:
            self.commit(before, after)
        except Changed:
            return False
        return True

    def commit(self, before: Resource | None, after: Resource | None) -> None:
        """Commit a change. The caller of a match is deleted with it.

        Raises:
            Changed: If the resource has changed since `before` was read.
        """
        is_queued = after is not None and after.status is ResourceStatus.QUEUED
        caller = None if before is None else caller_of(before)
        if before is not None and after is not None and before.token == after.token:  # extended
            caller = None
        # Read after the stamp was taken: resources with a greater name are queued later.
        last_name = self._store.last_name() if is_queued else ""
        self.write(Change(before, after, last_name, caller_before=caller))

    def write(self, change: Change) -> None:
        """Commit a change, with the current time.

        Raises:
            Changed: If something differs from `change`.
        """
        self._store.commit(replace(change, at=self.clock()))

    def lease_end(self, lease_seconds: float | None = None) -> float | None:
        """Return when a lease that starts now ends, and None if it does not end.

        Args:
            lease_seconds: Its length; None for the queue's.
        """
        if lease_seconds is None:
            lease_seconds = self.lease_seconds
        if lease_seconds is None:
            return None
        checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        return round(self.clock() + lease_seconds, 6)


def repeated(lost: Callable[[int], LostRace], attempt: Callable[[], T]) -> T:
    """Read, change and commit; repeat if another writer came first.

    Args:
        lost: Returns the error that names the resource or the caller, for a number of tries.
        attempt: Reads, changes and commits.

    Raises:
        LostRace: If another writer came first each time.
    """
    try:
        return until_committed(attempt, Changed, MAX_COMMIT_TRIES)
    except Changed:
        raise lost(MAX_COMMIT_TRIES) from None
