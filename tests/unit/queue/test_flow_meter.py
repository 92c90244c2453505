"""When the flow counts of a process reach the counts of its queue, and how many measurements it keeps."""

import pytest

from freshq import Queue
from freshq.policy import AdmissionLimit
from freshq.policy.reserve import MOST_KEPT, KindTimes
from freshq.policy.rules import OverloadRules
from freshq.policy.shedding import ShedReason
from freshq.queue.shared.measures import KEPT_SECONDS, FlowMeter, SharedReserve
from freshq.stores.memory import MemoryStore
from freshq.testing import make_task

# Windows of a minute begin at whole minutes; counts are written every 5 s.
NOON = 12 * 3600.0
RECORD = f"flow-{12 * 60}"
TASK = make_task("work")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def meter(store: MemoryStore) -> FlowMeter:
    return FlowMeter(store, "q", OverloadRules(3600.0))


def test_counts_are_written_every_five_seconds(store: MemoryStore, meter: FlowMeter) -> None:
    written = []
    for seconds in (0, 4.9375, 5, 9.9375, 10):
        meter.ended(NOON + seconds, TASK, 0.5, in_time=True)
        written.append(store.read_counts("q", RECORD).get("served", 0))
    assert written == [0, 0, 3, 3, 5]


def test_they_are_kept_for_the_next_window_and_a_minute(store: MemoryStore, meter: FlowMeter) -> None:
    kept = []
    for minute in range(5):
        meter.shed_early(NOON + 60 * minute, ShedReason.CODEL, 2)
        meter.flush(NOON + 60 * minute)
        kept.append(store.read_counts("q", RECORD).get("shed_early", 0))
    # A store deletes what expired a minute before the newest expires.
    assert kept == [2, 2, 0, 0, 0]
    assert KEPT_SECONDS == 60


def test_an_admission_limit_sees_what_each_group_offers(store: MemoryStore) -> None:
    queue = Queue(store, name="q", admission=AdmissionLimit(), clock=lambda: NOON, max_age_seconds=3600)
    for group, count in (("flood", 30), ("quiet", 2)):
        queue.put_many([{"payload": number, "group": group} for number in range(count)])
    queue.admin.flush()
    flow = FlowMeter(store, "q", OverloadRules(3600.0, admission=AdmissionLimit())).flow(NOON)
    assert flow.offered_by("flood") == 15 * flow.offered_by("quiet") > 0


def test_the_time_of_every_attempt_counts_as_work(store: MemoryStore, meter: FlowMeter) -> None:
    meter.ended(NOON, TASK, 2.0, in_time=None)
    meter.ended(NOON, TASK, 1.0, in_time=False)
    meter.flush(NOON)
    assert store.read_counts("q", RECORD) == {"work_us": 3_000_000, "served": 1}
    flow = meter.flow(NOON + 10)
    assert flow.work / flow.served == pytest.approx(3.0)


@pytest.mark.parametrize(("later_runs", "known"), [(MOST_KEPT - KindTimes.LEAST, 2.0), (MOST_KEPT, 0.0)])
def test_a_process_keeps_five_thousand_service_times_until_they_are_used(
    store: MemoryStore, later_runs: int, known: float
) -> None:
    reserve = SharedReserve(store, "q", OverloadRules(3600.0))
    for kind, runs in (("first", KindTimes.LEAST), ("later", later_runs)):
        for _ in range(runs):
            reserve.observe(2.0, kind, NOON)
    assert reserve.needed_seconds("first", NOON) == pytest.approx(known, rel=0.1)
    assert reserve.needed_seconds("later", NOON) == pytest.approx(2.0, rel=0.1)
    assert MOST_KEPT == 5000


def test_a_child_leaves_unwritten_counts_to_its_parent(store: MemoryStore, meter: FlowMeter) -> None:
    meter.shed_early(NOON, ShedReason.CODEL, 2)
    meter.forget_parent()
    assert meter.is_unused
    meter.flush(NOON)
    assert store.read_counts("q", RECORD) == {}
    meter.shed_early(NOON + 1, ShedReason.CODEL, 1)
    meter.flush(NOON + 1)
    assert store.read_counts("q", RECORD)["shed_early"] == 1
