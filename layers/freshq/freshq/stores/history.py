"""The protocol of a store's history: every change of a queue's tasks, in batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of the history of a queue.

    Attributes:
        history_id: Names the history. A history that is started again has another id.
        first_batch: The first batch of which nothing was deleted.
        last_batch: The last batch; less than `first_batch` if there is none.
    """

    history_id: str
    first_batch: int
    last_batch: int


class History(Protocol):
    """The histories of the queues of a store. A batch never changes, but is deleted in the end.

    Attributes:
        command: The command that begins a history.
    """

    command: ClassVar[str]

    def kept(self, queue: str) -> Kept | None:
        """Return what is kept of the history of a queue; None if it keeps none.

        Raises:
            StoreError: If the store did not answer. So for all methods.
        """

    def add_batches(self, queue: str) -> None:
        """Put the events that are in no batch yet into new ones."""

    def events(self, queue: str, batch: int) -> Sequence[Mapping[str, Any]]:
        """Return the events of a batch as landed events, in the order in which they were written."""
