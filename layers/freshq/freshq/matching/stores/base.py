"""What a store must do for `MatchQueue`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from freshq.matching.resource import Entry, Resource


class ChangedError(Exception):
    """The resource, or an entry of it, is no longer what the change started from; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of one queue to read.

    Attributes:
        partition: The queue.
        low: Least key.
        high: Greatest key.
        newest_first: Whether to read from the greatest key down.
        limit: How many entries at the most.
        start_after: A key within the bounds; only what comes after it in reading order is read.
    """

    partition: str
    low: str
    high: str
    newest_first: bool
    limit: int
    start_after: str | None = None


class MatchStore(Protocol):
    """Resources, and their entries in the queues. Thread-safe; every read sees every write before it."""

    def create_table(self) -> None:
        """Make what the store needs, unless it is there."""

    def add_names(self, names: Collection[str]) -> None:
        """Note that resources have attributes of these names; must be done before one is committed."""

    def last_name(self) -> str:
        """Return the greatest name ever noted; empty if there is none."""

    def get(self, resource_id: str) -> Resource | None:
        """Return a resource."""

    def commit(self, before: Resource | None, after: Resource | None, last_name: str) -> None:
        """Replace one version of a resource by the next, and its entries with it: all of it or nothing.

        A version that is QUEUED has an entry at each of its places; others have none.

        Args:
            before: The version that is there, known by status and token; None if it must be new.
            after: The next version; None to delete it.
            last_name: For the entries, if `after` is QUEUED.

        Raises:
            ChangedError: If the resource or an entry is not what `before` says.
            StoreError: If the store did not carry it out.
        """

    def page(self, span: Span) -> list[Entry]:
        """Return entries in order; fewer than the limit only if there are no more."""

    def resources(self) -> Iterator[Resource]:
        """Yield every resource, in no order."""
