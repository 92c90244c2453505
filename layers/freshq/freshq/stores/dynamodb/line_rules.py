"""The rules by which line records are kept: no task waits in a line that no record announces.

A producer reads the record of its line, writes it if there is none, and then trusts it for a short time. A
claimer that finds a line empty writes a closing, which names the line, and then deletes the line's record. A
put that trusted the deleted record has become visible when the closing is due. Then upkeep looks into the
line once more, and announces it again if a task waits.

This needs a bound on the time from sending a write to its effect. A live process notices a write that took
longer, and repeats the step before it. A process may pause or die at any step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class LineRules:
    """The times of the protocol, in seconds.

    Attributes:
        trust_seconds: How long a producer puts into a line without another look at its record.
        send_seconds: How long after its closing was written a record may still be deleted.
        landing_seconds: From sending a write to its effect, unless the sender notices that it took longer.
        index_lag_seconds: From the effect of a put until every query of the index finds the task.
    """

    trust_seconds: float
    send_seconds: float
    landing_seconds: float
    index_lag_seconds: float

    def may_put(self, check_age_seconds: float) -> bool:
        """Return whether a task may be put, given the time since the record was last looked at."""
        return check_age_seconds < self.trust_seconds

    def put_was_late(self, check_age_seconds: float) -> bool:
        """Return whether the record must be looked at again after a put that has just ended."""
        return check_age_seconds > self.trust_seconds + self.landing_seconds

    def may_delete(self, closing_age_seconds: float) -> bool:
        """Return whether the records of a closing may still be deleted."""
        return closing_age_seconds < self.send_seconds

    def deletion_was_late(self, closing_age_seconds: float) -> bool:
        """Return whether the lines need another closing after a deletion that has just ended."""
        return closing_age_seconds > self.send_seconds + self.landing_seconds

    @property
    def recheck_after_seconds(self) -> float:
        """From a closing until upkeep looks into its lines.

        A deletion takes effect up to `send_seconds + landing_seconds` after the closing. A put may have
        looked at the record right before that.
        """
        deleted = self.send_seconds + self.landing_seconds
        return deleted + self.trust_seconds + self.landing_seconds + self.index_lag_seconds


RULES: Final = LineRules(trust_seconds=1.0, send_seconds=1.0, landing_seconds=2.0, index_lag_seconds=3.0)
# A line whose tasks come more often than this stays announced while it is empty.
QUIET_SECONDS: Final = 2.0
