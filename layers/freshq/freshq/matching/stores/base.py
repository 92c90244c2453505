"""The protocol of the stores of `MatchQueue`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from freshq.matching.resource import Entry, Resource


class ChangedError(Exception):
    """The resource or one of its entries has changed in between; nothing was written."""


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


class MatchStore(Protocol):
    """Resources and their entries. Thread-safe; every read sees every earlier write."""

    def create_table(self) -> None:
        """Create what the store needs, unless it exists; return once it can be used."""

    def add_names(self, names: Collection[str]) -> None:
        """Add attribute names, before a resource that has them is committed."""

    def last_name(self) -> str:
        """Return the greatest name ever added; empty if there is none."""

    def get(self, resource_id: str) -> Resource | None:
        """Return a resource; None if there is none of this id."""

    def commit(self, before: Resource | None, after: Resource | None, last_name: str) -> None:
        """Replace a version of a resource, and its entries, by the next: all or nothing.

        A QUEUED version has an entry at each of its places; other versions have none.

        Args:
            before: The stored version, identified by status and token; None if it must be new.
            after: The next version; None to delete it.
            last_name: The greatest attribute name, kept in the entries of `after`.

        Raises:
            ChangedError: If the resource or an entry is not as in `before`.
            StoreError: If the store did not carry it out.
        """

    def page(self, span: Span) -> list[Entry]:
        """Return entries in order; fewer than the limit only if there are no more."""

    def resources(self) -> Iterator[Resource]:
        """Yield every resource in any order."""
