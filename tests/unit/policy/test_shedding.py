"""Rules that shed tasks that are too late."""

import pytest

from freshq.policy.shedding import ShedReason, too_late


@pytest.mark.parametrize(
    ("deadline", "reason"),
    [(9.0, ShedReason.EXPIRED), (10.0, ShedReason.EXPIRED), (12.0, ShedReason.RESERVE), (12.1, None)],
)
def test_too_late(deadline: float, reason: ShedReason | None) -> None:
    assert too_late(10.0, deadline, reserve_seconds=2.0) is reason
