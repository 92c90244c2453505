"""The counts of the benchmark of departures from the order."""

from benchmarks.growth import Departures, TimedClaim, departures


def test_a_better_task_that_waits_during_the_whole_claim_is_passed_over() -> None:
    claims = [
        TimedClaim(2, 0.0, 1.0),
        TimedClaim(0, 2.0, 3.0),
        TimedClaim(1, 2.0, 3.0),
        TimedClaim(3, 4.0, 5.0),
    ]
    assert departures(claims, 4) == Departures(4, share=0.25, mean_places=2.0, most_places=2)


def test_claims_at_the_same_time_pass_over_nothing() -> None:
    claims = [TimedClaim(1, 0.0, 2.0), TimedClaim(0, 1.0, 3.0)]
    assert departures(claims, 2) == Departures(2, share=0.0, mean_places=0.0, most_places=0)


def test_no_claims() -> None:
    assert departures([], 1) == Departures(1, share=0.0, mean_places=0.0, most_places=0)
