"""What a simulation says of a recorded load, counted as the table `tasks` counts the recording.

The simulator knows when a task starts, and how long a server has it. The recording knows how it ends.
"""

from __future__ import annotations

from array import array
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from freshq.policy.shedding import ShedReason
from freshq.simulate import summarize
from freshq.simulate.backlog import Fates
from freshq_pipeline.replays.counts import Counts, Ending

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from freshq.simulate import Simulation
    from freshq_pipeline.replays.record import Recorded

# Fates that the simulator does not have.
FAILED: Final = 253
PENDING: Final = 254
# Of a task whose end was not recorded: it is counted on neither side.
UNKNOWN: Final = 255
_EXPIRED: Final = Fates.SHED[ShedReason.EXPIRED]
_SERVED: Final = (Fates.IN_TIME, Fates.LATE)
# Not of recorded loads.
_LEFT_OUT: Final = ("by_group", "recovery_seconds")


def measures(simulation: Simulation, record: Recorded, deadline_seconds: float | None) -> dict[str, Any]:
    """Return the measures of a simulation, by the names of `simulate.Result` and `Counts`.

    Args:
        simulation: The simulation of a load of the record.
        record: The recorded load.
        deadline_seconds: Max age of that load; None: as recorded.
    """
    served = np.isin(_codes(simulation), _SERVED)
    codes = _fates(simulation, record, record.deadlines(deadline_seconds), served)
    load = replace(simulation.load, created=array("d", record.created.tobytes()))
    result = asdict(summarize(replace(simulation, load=load, fates=bytearray(codes.tobytes()))))
    found = _counts(codes)
    shed = {str(reason): int((codes == code).sum()) for reason, code in Fates.SHED.items()}
    worked = served & ~np.isin(codes, (PENDING, UNKNOWN))
    seconds = record.service[worked].sum()
    wasted = record.service[worked & (codes != Fates.IN_TIME)].sum()
    more = {
        "offered": found.offered,
        "shed_by_reason": shed,
        "shed_ratio": found.shed / max(1, found.offered),
        "wasted_ratio": float(wasted / seconds) if seconds else 0.0,
    }
    counted = asdict(found)
    del counted["shed"]
    return {name: value for name, value in result.items() if name not in _LEFT_OUT} | counted | more


def _fates(
    simulation: Simulation, record: Recorded, deadline: NDArray[np.float64], served: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Return the fate of each task, with the pauses and the ending that were recorded.

    A task that begins after the end of the recording still waits then, unless it is stale by then.
    """
    codes, starts = _codes(simulation).copy(), np.frombuffer(simulation.starts)
    done = starts + record.service + record.pause
    codes[served & (done > deadline)] = Fates.LATE
    codes[served & (record.endings == Ending.FAILURE)] = FAILED
    codes[served & (record.endings == Ending.SHED)] = _EXPIRED
    codes[served & (starts > record.end)] = PENDING
    codes[~served & (deadline > record.end)] = PENDING
    codes[record.endings == Ending.UNKNOWN] = UNKNOWN
    return codes


def _codes(simulation: Simulation) -> NDArray[np.uint8]:
    return np.frombuffer(simulation.fates, dtype=np.uint8)


def _counts(codes: NDArray[np.uint8]) -> Counts:
    counts = np.bincount(codes, minlength=UNKNOWN + 1)
    shed = sum(int(counts[code]) for code in Fates.SHED.values())
    in_time, late, failed, pending = (
        int(counts[code]) for code in (Fates.IN_TIME, Fates.LATE, FAILED, PENDING)
    )
    return Counts(in_time, late, failed, shed, pending)
