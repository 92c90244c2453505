"""What became of every task of a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq.policy.shedding import ShedReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.policy.order import OrderSwitch
    from freshq.policy.reserve import ReserveSpans
    from freshq.simulate.load import Load


class Fates:
    """The fate of every task, by its number in the load.

    Attributes:
        codes: For each task `WAITING`, `IN_TIME`, `LATE`, or the code of a shed reason in `SHED`.
        switches: Every switch of an adaptive order.
    """

    __slots__ = ("codes", "switches")

    WAITING: Final = 0
    IN_TIME: Final = 1
    LATE: Final = 2
    SHED: Final[Mapping[ShedReason, int]] = {reason: code for code, reason in enumerate(ShedReason, 3)}

    def __init__(self, count: int) -> None:
        self.codes = bytearray(count)
        self.switches: list[OrderSwitch] = []

    def shed(self, task: int, reason: ShedReason) -> None:
        """Record why a task was shed."""
        self.codes[task] = self.SHED[reason]

    def shed_waiting(self, load: Load, spans: ReserveSpans) -> None:
        """Shed what is still waiting when the run is over: it went stale.

        Args:
            load: The tasks.
            spans: When claims skipped tasks because of the reserve.
        """
        expired = bytes([self.SHED[ShedReason.EXPIRED]])
        if not spans:
            self.codes = self.codes.replace(bytes([self.WAITING]), expired)
            return
        for task, code in enumerate(self.codes):
            if code == self.WAITING:
                self.shed(task, spans.reason(load.deadline[task]))
