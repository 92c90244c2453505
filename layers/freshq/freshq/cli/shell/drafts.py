"""Drafts: records that a shell has made but not put into the queue yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

TEST_IDS: Final = ("A-101", "A-202", "A-303", "A-404")
TEST_ITEMS: Final = 3


class DraftStatus(StrEnum):
    """Whether a draft may be put."""

    UNDER_CONSTRUCTION = "UNDER_CONSTRUCTION"
    READY = "READY"


@dataclass
class Draft:
    """A record that is not in the queue.

    Attributes:
        task_id: The id that its task will have.
        payload: The payload that its task will have.
        status: Whether it may be put.
    """

    task_id: str
    payload: Any
    status: DraftStatus = DraftStatus.UNDER_CONSTRUCTION


@dataclass
class Drafts:
    """The drafts of one shell, by id."""

    _drafts: dict[str, Draft] = field(default_factory=dict)

    def make(self, task_ids: Iterable[str]) -> list[Draft]:
        """Make test records, replacing those with the same ids."""
        made = [Draft(task_id, shipment(task_id)) for task_id in task_ids]
        self._drafts |= {draft.task_id: draft for draft in made}
        return made

    def find(self, task_id: str | None) -> Draft | None:
        """Return the draft with this id, or None."""
        return None if task_id is None else self._drafts.get(task_id)

    def drop(self, draft: Draft) -> None:
        """Forget a draft that is in the queue now."""
        self._drafts.pop(draft.task_id, None)

    def all(self) -> list[Draft]:
        """Return the drafts in the order they were made."""
        return list(self._drafts.values())


def shipment(task_id: str) -> dict[str, Any]:
    """Return the payload of a test record."""
    return {
        "id": task_id,
        "items": [{"sku": f"Item-{number}", "packed": True} for number in range(1, TEST_ITEMS + 1)],
    }
