"""How soon a worker goes on after its store is back, by an injected clock."""

import random
from types import SimpleNamespace

import pytest

from freshq.policy.retry import Backoff
from freshq.worker import loop
from freshq.worker.loop import CLAIM_BACKOFF, ClaimBackoff
from freshq.worker.settle import SETTLE_BACKOFF

# The longest time after which a worker asks a store that is back.
RESUMES_SECONDS = 1.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, which the test sets."""
    now = [1_000.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize("outage_seconds", [0.01, 0.7, 2, 5, 60, 3_600])
@pytest.mark.parametrize("uniform", [lambda: 0.0, lambda: 0.999_999, random.Random(1).random])
def test_a_worker_claims_within_a_second(now: list[float], outage_seconds: float, uniform: object) -> None:
    backoff, back_at, claims = ClaimBackoff(uniform), now[0] + outage_seconds, 0  # type: ignore[arg-type]
    while now[0] < back_at:
        claims += 1
        backoff.claim_failed()
        assert backoff.active
        now[0] += backoff.left_seconds + 1e-6
        assert not backoff.active
    assert now[0] - back_at <= RESUMES_SECONDS + 1e-6
    assert claims <= 3 + 2.1 * outage_seconds  # it does not flood a store that is down
    assert backoff.outage_seconds >= outage_seconds
    backoff.claim_answered()
    assert (backoff.outage_seconds, backoff.left_seconds) == (0.0, float("inf"))


@pytest.mark.parametrize("backoff", [CLAIM_BACKOFF, SETTLE_BACKOFF])
def test_no_pause_is_longer(backoff: Backoff) -> None:
    """A run that waits to be settled keeps its slot from other tasks."""
    assert max(backoff.delay_seconds(tries, 0.999_999) for tries in range(1, 100)) <= RESUMES_SECONDS
