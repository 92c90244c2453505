"""The protocol of a store of resources and callers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from freshq.stores.base import History

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from freshq.matching.places import Place
    from freshq.matching.resource import Caller, Entry, Resource


class Changed(Exception):
    """The resource, the caller or an entry has changed in between; nothing was written."""


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of one transaction: to a resource with its entries, a caller with its entry, or both.

    Attributes:
        before: The stored version of the resource, identified by its status, its token and the end of its
            lease; None if it must be new.
        after: Its next version; None to delete it. If both are None, no resource is changed.
        last_name: The greatest attribute name, kept in the entries of `after`.
        caller_before: As `before`, of the caller.
        caller_after: As `after`, of the caller.
        at: The time of the change, in seconds since the epoch.
    """

    before: Resource | None = None
    after: Resource | None = None
    last_name: str = ""
    caller_before: Caller | None = None
    caller_after: Caller | None = None
    at: float = 0.0

    @property
    def leading(self) -> tuple[Resource | Caller | None, Resource | Caller | None]:
        """The versions of the resource, or of the caller if no resource is changed."""
        if self.before is None and self.after is None:
            return self.caller_before, self.caller_after
        return self.before, self.after


@dataclass(frozen=True, slots=True)
class Span:
    """A part of one partition to read.

    Attributes:
        partition: The partition.
        low: Least key.
        high: Greatest key.
        newest_first: Whether to read from the greatest key down.
        limit: Maximum number of entries.
        start_after: A key within the bounds after which to start, in reading order.
    """

    partition: str
    low: str
    high: str
    newest_first: bool
    limit: int
    start_after: str | None = None


@dataclass(frozen=True, slots=True)
class StoredValues:
    """The options that are stored with the resources.

    Attributes:
        values: JSON values by name.
        version: Token of the write that made them.
    """

    values: Mapping[str, Any]
    version: str


class MatchHistories(History, Protocol):
    """The histories of resources and callers.

    Attributes:
        queues: The pipeline's names for the resources and the callers.
    """

    queues: tuple[str, str]


class MatchStore(Protocol):
    """Resources and their entries. Thread-safe; every read sees every earlier write.

    Attributes:
        history: The histories of resources and callers; None where the store keeps none itself.
    """

    history: MatchHistories | None = None

    def clock(self) -> float:
        """Return the time of the store, or of this machine where it has none, in seconds since the epoch."""
        return time.time()

    def create_table(self) -> None:
        """Create the tables of the store, unless they exist; return once they can be used."""

    def delete_table(self) -> None:
        """Delete everything that `create_table` created; return once it is gone. A missing table is no error.

        Raises:
            StoreError: If the table is not one of resources; nothing was deleted.
        """

    def tidy(self, now: float) -> None:
        """Delete some of the expired data.

        Args:
            now: The time, in seconds since the epoch.
        """
        return

    def close(self) -> None:
        """Close the connections that the store opened; it can be used again."""
        return

    def read_options(self) -> StoredValues | None:
        """Return the stored options; None if there are none."""

    def write_options(self, values: Mapping[str, Any], version: str | None) -> bool:
        """Store options unless they changed since they were read; return whether they were stored.

        Args:
            values: JSON values by name.
            version: The version that was read; None if there was none.
        """

    def add_names(self, names: Collection[str]) -> None:
        """Add attribute names, before a resource that has them is committed."""

    def add_combinations(self, combinations: Collection[str]) -> None:
        """Add full combinations of values, before a resource that can serve them is committed."""

    def combinations(self) -> Iterator[str]:
        """Yield every combination ever added, in order."""

    def count(self, place: Place, names: int, at_most: int | None) -> int:
        """Return how many waiting resources have an entry at a place, without returning the entries.

        Args:
            place: The place.
            names: Count only resources with this number of attribute names.
            at_most: Where to stop counting; None to count all.
        """

    def last_name(self) -> str:
        """Return the greatest name ever added; empty if there is none."""

    def get(self, resource_id: str) -> Resource | None:
        """Return a resource; None if the id is unknown."""

    def commit(self, change: Change) -> None:
        """Replace versions and their entries by the next ones, atomically.

        A QUEUED resource has an entry at each of its places, and a WAITING caller has one in the line and a
        key for each of its questions; other versions have none. Keys may be deleted later than the rest.

        Raises:
            Changed: If something differs from `change`; nothing was written.
            StoreError: If the store did not carry it out.
        """

    def caller(self, caller_id: str) -> Caller | None:
        """Return a caller; None if the id is unknown."""

    def waiting_callers(self, limit: int, start_after: str | None) -> list[Caller]:
        """Return waiting callers in order; fewer than the limit only if there are no more.

        Args:
            limit: Maximum number of callers.
            start_after: The key in the line after which to start; None for its beginning.
        """

    def line_keys(self, question: str, limit: int, start_after: str | None) -> list[str]:
        """Return the keys in the line of waiting callers who ask a question, in order.

        Args:
            question: The question, as `Caller.questions` has it.
            limit: Maximum number of keys; fewer only if there are no more.
            start_after: The key after which to start; None for the beginning of the line.
        """

    def forget_line_key(self, question: str, key: str) -> None:
        """Delete a key that `line_keys` returned although no caller waits there; keep it if one does."""
        return

    def page(self, span: Span) -> list[Entry]:
        """Return entries in order; fewer than the limit only if there are no more."""

    def resources(self) -> Iterator[Resource]:
        """Yield every resource in any order."""
