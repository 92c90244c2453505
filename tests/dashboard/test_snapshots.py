"""The dashboard's snapshots of a queue, in memory and in SQLite."""

import json
from dataclasses import replace

import pytest

from freshq import GroupRule, GroupRules, Queue, Task
from freshq.cli.dashboard import snapshots as survey
from freshq.cli.dashboard.snapshots import (
    MAX_MARKS,
    PageWatcher,
    ShedRate,
    Surveyor,
    WaitSamples,
    details,
    has_deadline,
    horizon,
    listed_row,
    marks_of,
    schedule_rows,
)
from freshq.feeds.schedules import Cron, Every, Schedule, Scheduler
from freshq.policy.pressure import Pressure
from freshq.queue.core import core_of
from freshq.simulate.results import percentile
from freshq.stores.base import Stats
from tests.conftest import Clock, StoreUnderTest
from tests.dashboard.conftest import MAX_AGE_SECONDS
from tests.support.readings import known
from tests.support.worker_threads import raising, work_off

PAYLOAD = "what nobody asked for"


def overloaded(store: StoreUnderTest) -> Queue:
    """Return a queue with a task in every state; one of three dead letters is past its deadline."""
    queue = store.queue(max_age_seconds=MAX_AGE_SECONDS, lease_seconds=30)
    queue.put(PAYLOAD, task_id="old letter", group="desk")
    queue.fail(queue.claim()[0], error="no symbol")
    for second in range(12):
        queue.put_many([{"payload": PAYLOAD, "group": group} for group in (None, "desk")])
        if second % 3 == 0:
            queue.complete(queue.claim()[0], result={"answer": PAYLOAD})
        store.clock.advance(1)
    for task_id in ("letter", "last letter"):
        queue.put(PAYLOAD, task_id=task_id, priority=5)
        queue.fail(queue.claim()[0], error=f"the downstream refused {task_id}")
        store.clock.advance(0.5)
    queue.put(PAYLOAD, task_id="later", delay_seconds=60)
    queue.cancel(queue.put(PAYLOAD).task_id)
    queue.put_many([{"payload": PAYLOAD, "task_id": name, "priority": 5} for name in ("held", "also held")])
    queue.claim(limit=2)
    return queue


class TestSnapshot:
    def test_it_counts_what_the_queue_holds(self, store: StoreUnderTest) -> None:
        queue = overloaded(store)
        shown, exact = PageWatcher(queue).snapshot(), queue.stats()
        assert shown["stats"]["pending"] == exact.pending == len(shown["marks"]["ages_ms"])
        assert shown["survey"]["by_status"] == {
            "SUCCESS": 4, "FAILURE": 3, "CANCELLED": 1, "TAKEN": 2,
            "PENDING": exact.pending + exact.delayed, "SHED": exact.shed,
        }  # fmt: skip
        assert shown["survey"]["by_reason"] == {"expired": exact.shed}
        assert exact.shed > 0
        assert list(shown["forecast"]) == ["put next", "waiting now", "would help"]
        assert sum(row["waiting"] for row in shown["groups"]["rows"]) == exact.pending
        assert [(row["group"], row["held"]) for row in shown["groups"]["rows"]] == [(None, 2), ("desk", 0)]
        assert {row["task_id"] for row in shown["leases"]} == {"held", "also held"}
        assert {row["progress_fraction"] for row in shown["leases"]} == {None}
        assert all(row["left_seconds"] == pytest.approx(30, abs=0.1) for row in shown["leases"])

    def test_groups_have_weights_shares_and_limits(self, store: StoreUnderTest) -> None:
        rules = GroupRules(of={"acme": GroupRule(weight=3, max_running=2)}, separator="/")
        queue = store.queue(max_age_seconds=MAX_AGE_SECONDS, groups=rules)
        queue.create_table()
        queue.put_many([{"payload": 0, "group": group} for group in ("acme/1", "other") for _ in range(5)])
        assert len(queue.claim(4)) == 4
        shown = PageWatcher(queue).snapshot()["groups"]["rows"]
        assert shown == [
            {"group": "acme/1", "waiting": 3, "held": 2, "share": 0.5, "weight": 1.0, "full": "acme"},
            {"group": "other", "waiting": 3, "held": 2, "share": 0.5, "weight": 1.0, "full": None},
        ]

    def test_marks_keep_their_creation_time_from_snapshot_to_snapshot(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=MAX_AGE_SECONDS)
        watcher = PageWatcher(queue)
        for _ in range(5):
            queue.put("work")
            store.clock.advance(0.7777)
        snapshots = [watcher.snapshot()]
        store.clock.advance(1.2345)
        snapshots.append(watcher.snapshot())
        times = [[snapshot["at_ms"] - age for age in snapshot["marks"]["ages_ms"]] for snapshot in snapshots]
        assert times[0] == times[1]
        assert len(times[0]) == 5

    def test_a_task_past_its_deadline_has_no_mark(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=MAX_AGE_SECONDS)
        queue.put("old")
        store.clock.advance(MAX_AGE_SECONDS - 1)
        queue.put("new")
        watcher = PageWatcher(queue)
        assert [age // 1000 for age in watcher.snapshot()["marks"]["ages_ms"]] == [0, 9]
        store.clock.advance(1.1)
        assert [age // 1000 for age in watcher.snapshot()["marks"]["ages_ms"]] == [1]

    def test_dead_letters_say_whether_they_can_be_redriven(self, store: StoreUnderTest) -> None:
        letters = PageWatcher(overloaded(store)).snapshot()["dead_letters"]
        assert [(row["task_id"], row["redrivable"]) for row in letters] == [
            ("last letter", True), ("letter", True), ("old letter", False),
        ]  # fmt: skip
        assert letters[0]["error"] == "the downstream refused last letter"

    def test_no_payload_result_or_token_is_in_it(self, store: StoreUnderTest) -> None:
        queue = overloaded(store)
        text = json.dumps(PageWatcher(queue).snapshot())
        tokens = [task.lease_token for task in core_of(queue).store.leased(queue.name, 10)]
        assert all(tokens)
        assert not any(secret in text for secret in (PAYLOAD, "answer", *map(str, tokens)))

    def test_turned_away_puts_count_by_reason(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, max_age_seconds=MAX_AGE_SECONDS)
        core_of(queue).store.add_counts(queue.name, "refused", {"admission": 7}, None)
        shown = PageWatcher(queue).snapshot()["survey"]
        assert (shown["by_reason"], shown["turned_away"]) == ({"admission": 7}, 7)

    def test_an_empty_queue(self, store: StoreUnderTest) -> None:
        shown = PageWatcher(store.queue()).snapshot()
        assert (shown["marks"]["ages_ms"], shown["groups"]["rows"], shown["leases"]) == ((), [], [])
        assert shown["survey"]["complete"]
        assert shown["waits"] == {"tasks": 0, "p50_seconds": None, "p90_seconds": None, "p99_seconds": None}

    def test_a_deadline_too_far_away_is_no_line(self) -> None:
        assert has_deadline(3600)
        assert not has_deadline(float("inf"))
        assert horizon(3600, 5.0) == 3600
        assert horizon(float("inf"), None) == 60
        assert horizon(float("inf"), 500.0) == 960


class TestMarks:
    def test_a_large_backlog_has_a_sample_that_stays_the_same(self) -> None:
        times = [1_700_000_000 + n / 250 for n in range(4000)]
        first = marks_of({None: times[:2000], "desk": times[2000:]}, 4000, times[-1], 20)
        later = marks_of({None: times}, 4000, times[-1] + 1, 20)
        assert MAX_MARKS / 4 < len(first.ages_ms) <= MAX_MARKS
        assert first.one_in == later.one_in == 8
        assert [age + 1000 for age in first.ages_ms] == list(later.ages_ms)
        assert len(first.ages_ms) * first.one_in == pytest.approx(4000, rel=0.25)
        assert first.by_age[-1] == (20, 4000)

    def test_what_was_not_read_is_said(self) -> None:
        assert marks_of({None: [99.0, 98.0]}, 10, 100.0, 10).older == 8


class TestRates:
    def test_what_is_neither_served_nor_live_was_not_served(self) -> None:
        rate, pressure = ShedRate(10), Pressure(24.0, 8.0, 0.33, overloaded=True, retry_after_seconds=None)
        assert rate.per_second(100.0, Stats(pending=10), pressure) is None
        assert rate.per_second(105.0, Stats(pending=40, taken=4, delayed=1), pressure) == pytest.approx(9.0)
        assert rate.per_second(115.0, Stats(pending=45), pressure) == pytest.approx(16.0)

    def test_it_is_unknown_while_the_backlog_is_not_counted(self) -> None:
        rate, pressure = ShedRate(10), Pressure(24.0, 8.0, 0.33, overloaded=True, retry_after_seconds=None)
        rate.per_second(100.0, Stats(pending=10), pressure)
        too_many = Stats(pending=10_000, bounded={"pending": "at least"})
        assert rate.per_second(105.0, too_many, pressure) is None
        assert rate.per_second(106.0, Stats(pending=10), pressure) is None

    def test_waits_count_once_and_only_first_claims(self, clock: Clock) -> None:
        queue, samples = Queue.memory(clock=clock), WaitSamples()

        def held() -> list[Task]:
            return core_of(queue).store.leased(queue.name, 10)

        queue.put("before", task_id="a")
        queue.claim()
        assert samples.add(queue.admin.now(), held()).tasks == 0
        queue.put("work", task_id="b")
        clock.advance(3)
        (claim,) = queue.claim()
        clock.advance(1)
        waits = samples.add(queue.admin.now(), held())
        assert waits.tasks == 1
        assert [waits.p50_seconds, waits.p99_seconds] == pytest.approx([3, 3])
        queue.extend(claim, lease_seconds=100)
        clock.advance(1)
        assert samples.add(queue.admin.now(), held()).tasks == 1
        queue.release(claim)
        queue.retry(queue.claim()[0], delay_seconds=1)
        clock.advance(2)
        queue.claim(2)
        clock.advance(1)
        second_attempt = samples.add(queue.admin.now(), held())
        assert second_attempt.tasks == 1
        clock.advance(100)
        assert samples.add(queue.admin.now(), held()).tasks == 0

    def test_percentiles_are_by_nearest_rank(self) -> None:
        assert percentile([], 0.5) is None
        assert [percentile([1, 2, 3, 4], share) for share in (0.5, 0.9, 0.99)] == [2, 4, 4]


class TestSurvey:
    def test_it_goes_through_the_tasks_in_parts(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(survey, "PART_TASKS", 4)
        queue = store.queue()
        queue.put_many([{"payload": n} for n in range(9)])
        surveyor = Surveyor(queue)
        assert (surveyor.survey().tasks, surveyor.survey().complete) == (4, False)
        for _ in range(2):
            store.clock.advance(survey.EVERY_SECONDS)
            found = surveyor.survey()
        assert (found.tasks, found.complete, found.by_status) == (9, True, {"PENDING": 9})
        queue.cancel(queue.put("unwanted").task_id)
        store.clock.advance(survey.EVERY_SECONDS)
        assert surveyor.survey() == found, "the last complete count stays until the next is complete"
        for _ in range(2):
            store.clock.advance(survey.EVERY_SECONDS)
            found = surveyor.survey()
        assert found.by_status == {"PENDING": 9, "CANCELLED": 1}

    def test_a_change_is_seen_at_once(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        queue.put("work", task_id="a")
        surveyor = Surveyor(queue)
        surveyor.survey()
        queue.cancel("a")
        assert surveyor.survey().by_status == {"PENDING": 1}
        surveyor.restart()
        assert surveyor.survey().by_status == {"CANCELLED": 1}


class TestCauses:
    def test_dead_letters_are_counted_by_error_and_kind_in_parts(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(survey, "PART_TASKS", 4)
        queue = store.queue(max_age_seconds=MAX_AGE_SECONDS)
        for number in range(6):
            queue.put(PAYLOAD, kind="mail" if number % 3 else "chat", task_id=str(number))
            queue.fail(queue.claim()[0], error=f"no answer after {number} s")
            store.clock.advance(2)
        watcher = PageWatcher(queue)
        assert watcher.snapshot()["causes"]["complete"] is False
        store.clock.advance(survey.EVERY_SECONDS)
        found = watcher.snapshot()["causes"]
        assert (found["count"], found["left_out"], found["complete"]) == (6, 0, True)
        assert [(row["kind"], row["error"], row["count"], row["stale"]) for row in found["rows"]] == [
            ("mail", "no answer after <n> s", 4, 1),
            ("chat", "no answer after <n> s", 2, 1),
        ]
        assert watcher.causes.count(("no answer after <n> s", "chat")) == 2
        assert watcher.causes.count(("no answer after <n> s", None)) == 0
        queue.redrive(as_new=True)
        watcher.restart_survey()
        assert watcher.snapshot()["causes"]["count"] == 0


class TestTask:
    def test_its_attempts_have_their_tracebacks(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=MAX_AGE_SECONDS)
        queue.put(PAYLOAD, task_id="a")
        work_off(queue, raising(KeyError("no symbol")))
        (attempt,) = details(known(queue, "a"), queue.admin.now())["attempt_log"]
        assert (attempt["number"], attempt["outcome"]) == (1, "retried")
        assert "KeyError" in attempt["traceback"]

    def events(self, queue: Queue, task_id: str) -> list[str]:
        task = known(queue, task_id)
        return [each["event"] for each in details(task, queue.admin.now())["history"]]

    def test_its_history_is_what_the_queue_keeps(self, store: StoreUnderTest) -> None:
        queue = overloaded(store)
        assert self.events(queue, "letter") == [
            "put", "first claimed", "became a dead letter, after 1 attempt",
        ]  # fmt: skip
        assert self.events(queue, "held") == [
            "put", "first claimed", "deadline", "lease expires",
        ]  # fmt: skip
        assert self.events(queue, "later")[:1] == ["put"]
        assert "due" in self.events(queue, "later")
        queue.put("work", task_id="lost")
        store.clock.advance(MAX_AGE_SECONDS + 1)
        assert self.events(queue, "lost") == ["put", "shed: its deadline passed"]

    def test_a_retry_is_in_it(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=100)
        queue.put("work", task_id="a")
        queue.retry(queue.claim()[0], delay_seconds=5)
        store.clock.advance(1)
        assert self.events(queue, "a") == [
            "put", "first claimed", "returned to its line after 1 attempt", "due", "deadline",
        ]  # fmt: skip

    def test_payload_and_token_are_not_shown(self, store: StoreUnderTest) -> None:
        queue = overloaded(store)
        task = known(queue, "held")
        shown = details(task, queue.admin.now()) | listed_row(task, queue.admin.now())
        assert not {"payload", "result", "lease_token", "request_token"} & shown.keys()
        assert not shown["has_result"]

    def test_a_long_error_is_cut_in_lists(self, store: StoreUnderTest) -> None:
        queue = overloaded(store)
        task = known(queue, "letter")
        assert len(listed_row(replace(task, error="x" * 1000), queue.admin.now())["error"]) == 301


def test_schedules_say_how_far_they_got(store: StoreUnderTest) -> None:
    queue = store.queue()
    schedules = [
        Schedule.of("often", Every(10), "work"),
        Schedule.of("daily", Cron("0 17 * * *", "Europe/Berlin"), "work"),
    ]
    assert [row["started"] for row in schedule_rows(queue, schedules)] == [False, False]
    scheduler = Scheduler(queue, schedules)
    scheduler.fire()
    store.clock.advance(10)
    scheduler.fire()
    often, daily = schedule_rows(queue, schedules)
    assert (often["when"], daily["when"]) == ("every 10 s", "0 17 * * * (Europe/Berlin)")
    assert often["up_to"] == pytest.approx(queue.admin.now(), abs=10)
    assert often["next"] == pytest.approx(often["up_to"] + 10)
    assert daily["failed"] == 0
