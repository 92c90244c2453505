"""Records under construction: what a shell has made up but not put into the queue yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

TEST_IDS: Final = ("A-101", "A-202", "A-303", "A-404")
TEST_ITEMS: Final = 3


class DraftStatus(StrEnum):
    """Where a record stands before it is put."""

    UNDER_CONSTRUCTION = "UNDER_CONSTRUCTION"
    READY = "READY"


@dataclass
class Draft:
    """A record that is not in the queue.

    Attributes:
        task_id: The id that its task will have.
        payload: The work that it will be.
        status: Whether it may be put.
    """

    task_id: str
    payload: Any
    status: DraftStatus = DraftStatus.UNDER_CONSTRUCTION


@dataclass
class Drafts:
    """The records of one shell, by id."""

    _records: dict[str, Draft] = field(default_factory=dict)

    def make(self, task_ids: Iterable[str]) -> list[Draft]:
        """Make test records anew."""
        made = [Draft(task_id, _shipment(task_id)) for task_id in task_ids]
        self._records |= {draft.task_id: draft for draft in made}
        return made

    def find(self, task_id: str | None) -> Draft | None:
        """Return a record, None if there is none of this id."""
        return None if task_id is None else self._records.get(task_id)

    def drop(self, draft: Draft) -> None:
        """Forget a record: it is in the queue now."""
        self._records.pop(draft.task_id, None)

    def all(self) -> list[Draft]:
        """Return the records."""
        return list(self._records.values())


def _shipment(task_id: str) -> dict[str, Any]:
    return {
        "id": task_id,
        "items": [{"sku": f"Item-{number}", "packed": True} for number in range(1, TEST_ITEMS + 1)],
    }
