"""What became of the tasks: in the recording, and if they are served in a replay."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow as pa


class Ending(IntEnum):
    """How a task ends in every replay that serves it, because it ended so in the recording."""

    SUCCESS = 0
    FAILURE = 1
    SHED = 2  # it went stale between two attempts
    UNKNOWN = 3  # it was still running at the end


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of tasks by what became of them up to the end of the recording.

    Attributes:
        served_in_time: Succeeded by their deadline.
        served_late: Succeeded after their deadline.
        failed: Failed.
        shed: Were shed.
        pending: Still waited at the end.
    """

    served_in_time: int
    served_late: int
    failed: int
    shed: int
    pending: int

    @property
    def offered(self) -> int:
        """Number of all these tasks."""
        return sum(asdict(self).values())

    @classmethod
    def recorded(cls, rows: pa.Table) -> Counts:
        """Count rows of the table `tasks`, without those of tasks still in progress."""
        found = pc.value_counts(rows["outcome"].combine_chunks()).to_pylist()
        by_outcome = {one["values"]: one["counts"] for one in found}
        in_time = pc.sum(rows["in_time"]).as_py() or 0
        late = by_outcome.get("success", 0) - in_time
        return cls(in_time, late, *(by_outcome.get(name, 0) for name in ("failure", "shed", "pending")))
