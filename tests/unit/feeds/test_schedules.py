"""Recurring tasks."""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice, product, takewhile
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from freshq import Queue, StoreError, Worker
from freshq.feeds.relay import Relay
from freshq.feeds.schedules import Cron, Every, HighWaterMarks, Schedule, Scheduler
from freshq.policy import BacklogLimit, WhenFull
from freshq.queue.core import core_of
from freshq.queue.stopping import StopRequest
from freshq.stores.memory import MemoryStore
from tests.conftest import START, Clock
from tests.support.readings import payloads, total
from tests.support.refusals import refused

BERLIN = ZoneInfo("Europe/Berlin")
WEEK_SECONDS = 7 * 86_400.0


def instant(*fields: int, fold: int = 0) -> float:
    return datetime(*fields, tzinfo=BERLIN, fold=fold).timestamp()  # type: ignore[misc,arg-type]


def ticks(expression: str, after: float, number: int) -> list[str]:
    """Return the first ticks, as Berlin's clocks and UTC's show them."""
    found = islice(Cron(expression, "Europe/Berlin").ticks(after), number)
    return [
        f"{datetime.fromtimestamp(tick, BERLIN):%d %H:%M}={datetime.fromtimestamp(tick, UTC):%H:%M}"
        for tick in found
    ]


class TestCron:
    def test_when_the_clocks_skip_an_hour_no_tick_is_lost(self) -> None:
        before = instant(2026, 3, 29, 1, 0)  # at 02:00 it is 03:00
        assert ticks("30 2 * * *", before, 2) == ["29 03:00=01:00", "30 02:30=00:30"]
        assert ticks("15 3 * * *", before, 1) == ["29 03:15=01:15"]
        assert ticks("30 * * * *", before, 3) == ["29 01:30=00:30", "29 03:30=01:30", "29 04:30=02:30"]

    def test_when_the_clocks_repeat_an_hour_no_tick_fires_twice(self) -> None:
        before = instant(2026, 10, 25, 1, 0)  # at 03:00 it is 02:00 again
        assert ticks("30 2 * * *", before, 2) == ["25 02:30=00:30", "26 02:30=01:30"]
        assert ticks("30 * * * *", before, 4) == [
            *("25 01:30=23:30", "25 02:30=00:30", "25 02:30=01:30", "25 03:30=02:30"),
        ]
        within = instant(2026, 10, 25, 2, 45, fold=1)
        assert ticks("30 2 * * *", within, 1) == ["26 02:30=01:30"]

    def test_every_tick_is_later_than_the_one_before(self) -> None:
        for expression in ("*/20 1-3 * * *", "5,35 2 * * *", "0 0 1 * *"):
            found = list(islice(Cron(expression, "Europe/Berlin").ticks(instant(2026, 3, 27, 0, 0)), 30))
            assert found == sorted(set(found))

    @pytest.mark.parametrize(
        ("expression", "same"),
        [
            ("0 9-9/2 * * *", "0 9 * * *"),
            ("0 0 * * MON-MON/2", "0 0 * * 1"),
            ("@daily", "0 0 * * *"),
            (" @daily\n", "0 0 * * *"),
            ("\t0 9 * * * ", "0 9 * * *"),
            ("0 0 1 jan-JAN/2 *", "0 0 1 1 *"),
            ("0 0 1 jan-1/2 *", "0 0 1 1 *"),
            ("0 0 1 01-Jan/2 *", "0 0 1 1 *"),
            ("0 0 01-1/2 * *", "0 0 1 * *"),
            ("0 0 * * MON-1/2", "0 0 * * 1"),
            ("0 0 * * 0-sun/3", "0 0 * * 0"),
            ("00-0/30 * * * *", "0 * * * *"),
            ("1-01/30,5-005/2 * * * *", "1,5 * * * *"),
            ("0-30/30 * * * *", "0,30 * * * *"),
            ("0 0 0 1 dec-12/2 *", "0 0 0 1 12 *"),
        ],
    )
    def test_ranges_of_one_value_and_names_are_those_of_crontab(self, expression: str, same: str) -> None:
        start = instant(2026, 3, 27, 0, 0)
        assert ticks(expression, start, 30) == ticks(same, start, 30)

    @pytest.mark.parametrize(
        "expression",
        [
            "",
            "* * *",
            "61 * * * *",
            "0 0 31 2 x",
            "@often",
            None,
            5,
            "9-9/0 * * * *",
            "jan-1/2 * * * *",
            "@daily 5",
            "1-jan/2 * * * *",
            "9" * 5_000 + " * * * *",
            "9" * 5_000 + "-1/2 * * * *",
            "² * * * *",
        ],
    )
    def test_a_wrong_expression(self, expression: Any) -> None:
        with refused("expression"):
            Cron(expression)

    @pytest.mark.parametrize("zone", ["", "Berlin", "../etc/passwd", None])
    def test_a_wrong_zone(self, zone: Any) -> None:
        with refused("zone"):
            Cron("* * * * *", zone)


LORD_HOWE = ZoneInfo("Australia/Lord_Howe")


class TestHalfHourShift:
    """Lord Howe's clocks change by half an hour: 02:00 is 02:30 in spring, and 01:30 in autumn."""

    @pytest.fixture(params=[(10, 4), (4, 5)], ids=["spring", "autumn"])
    def minutes(self, request: pytest.FixtureRequest) -> list[tuple[float, datetime]]:
        """Return every minute of the day, as an instant and as local clocks show it."""
        month, day = request.param
        start = datetime(2026, month, day, tzinfo=LORD_HOWE).timestamp()
        local = [(start + 60 * n, datetime.fromtimestamp(start + 60 * n, LORD_HOWE)) for n in range(1530)]
        return [(instant, shown) for instant, shown in local if shown.day == day]

    def ticks(self, expression: str, minutes: list[tuple[float, datetime]]) -> list[float]:
        found = Cron(expression, "Australia/Lord_Howe").ticks(minutes[0][0] - 1)
        return list(takewhile(lambda tick: tick <= minutes[-1][0], found))

    def test_a_time_fires_once_at_its_first_instant_or_after_the_gap(
        self, minutes: list[tuple[float, datetime]]
    ) -> None:
        first: dict[tuple[int, int], float] = {}
        for instant, shown in minutes:
            first.setdefault((shown.hour, shown.minute), instant)
        for hour, minute in product(range(24), range(60)):
            expected = first.get((hour, minute), first.get((2, 30)))
            assert self.ticks(f"{minute} {hour} * * *", minutes) == [expected], (hour, minute)

    @pytest.mark.parametrize("step", [1, 7, 10, 30])
    def test_minutes_follow_real_time_in_each_hour(
        self, minutes: list[tuple[float, datetime]], step: int
    ) -> None:
        for hour in range(24):
            expected = [at for at, shown in minutes if shown.hour == hour and shown.minute % step == 0]
            assert self.ticks(f"*/{step} {hour} * * *", minutes) == expected, hour

    def test_hours_follow_real_time_at_each_minute(self, minutes: list[tuple[float, datetime]]) -> None:
        for minute in range(60):
            expected = [instant for instant, shown in minutes if shown.minute == minute]
            assert self.ticks(f"{minute} * * * *", minutes) == expected, minute

    def test_ticks_are_the_same_from_wherever_they_are_asked(
        self, minutes: list[tuple[float, datetime]]
    ) -> None:
        every = self.ticks("*/10 * * * *", minutes)
        cron = Cron("*/10 * * * *", "Australia/Lord_Howe")
        for instant, _shown in minutes[:300]:
            assert next(cron.ticks(instant + 0.25)) == next(tick for tick in every if tick > instant)

    def test_a_year_with_ticks_far_apart(self) -> None:
        start = datetime(2026, 1, 1, tzinfo=LORD_HOWE).timestamp()
        found = islice(Cron("0 */12 1 */3 *", "Australia/Lord_Howe").ticks(start - 1), 9)
        shown = [f"{datetime.fromtimestamp(tick, LORD_HOWE):%m-%d %H:%M}" for tick in found]
        days = [f"{month:02}-01" for month in (1, 4, 7, 10)]
        expected = [f"{day} {hour}" for day in days for hour in ("00:00", "12:00")]
        assert shown == [*expected, "01-01 00:00"]


class TestEvery:
    def test_at_the_multiples_of_the_interval(self) -> None:
        assert list(islice(Every(0.25).ticks(10.1), 3)) == [10.25, 10.5, 10.75]
        assert next(Every(60).ticks(120.0)) == 180.0

    @pytest.mark.parametrize("seconds", [0, -1, 1e-9, "5", True])
    def test_a_wrong_interval(self, seconds: Any) -> None:
        with refused("seconds"):
            Every(seconds)


class Advance(StopRequest):
    """Advances a clock instead of waiting, and stops after a number of rounds."""

    def __init__(self, clock: Clock, rounds: int) -> None:
        super().__init__()
        self.clock, self.rounds, self.waits = clock, rounds, list[float]()

    def wait(self, seconds: float, ends: Callable[[], bool]) -> bool:
        self.waits.append(seconds)
        self.clock.advance(seconds)
        self.made = len(self.waits) == self.rounds
        return ends()


def run(node: Scheduler, stop: StopRequest) -> None:
    node._stop = stop
    node.run()


class TestScheduler:
    @pytest.fixture
    def queue(self, clock: Clock) -> Queue:
        return Queue(MemoryStore(), clock=clock, max_age_seconds=WEEK_SECONDS, retention_seconds=0)

    def test_many_nodes_put_one_task_per_tick(self, queue: Queue, clock: Clock) -> None:
        schedule = Schedule.of("m", Every(60), {"n": 1}, priority=2)
        nodes = [Scheduler(queue, cast("Any", iter([schedule]))) for _ in range(3)]
        assert [node.fire() for node in nodes] == [0, 0, 0]
        for _ in range(5):
            clock.advance(60)
            assert sorted(node.fire() for node in nodes) == [0, 0, 1]
            (claim,) = queue.claim(limit=5)
            assert (claim.task.payload, claim.task.priority) == ({"n": 1}, 2)
            queue.complete(claim)

    def test_a_slow_node_does_not_fire_a_tick_again_whose_task_is_gone(
        self, queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        schedule = Schedule.of("m", Every(60), "work")
        node = Scheduler(queue, [schedule])
        node.fire()
        clock.advance(60)
        node.fire()
        queue.complete(queue.claim()[0])
        clock.advance(10)
        queue.admin.recover()
        assert total(queue) == 0  # its id is free again
        monkeypatch.setattr(clock, "now", clock.now - 9)
        assert Scheduler(queue, [schedule]).fire() == 0

    def test_after_a_crash_between_the_task_and_the_mark_it_is_one_task(
        self, queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = Scheduler(queue, [Schedule.of("m", Every(60), "work")])
        node.fire()
        clock.advance(60)
        with monkeypatch.context() as patch:
            patch.setattr(core_of(queue).store, "write_record", lambda *_: False)
            with pytest.raises(StoreError):
                node.fire()
        assert node.fire() == 0
        assert payloads(queue.claim(limit=5)) == ["work"]

    @pytest.mark.parametrize("ahead_seconds", [2 * 86_400, 10 * 365 * 86_400])
    def test_a_clock_that_was_far_ahead_silences_no_schedule(
        self, queue: Queue, clock: Clock, caplog: pytest.LogCaptureFixture, ahead_seconds: float
    ) -> None:
        node, other = (Scheduler(queue, [Schedule.of("m", Every(60), "work")]) for _ in range(2))
        clock.advance(ahead_seconds)
        run(node, Advance(clock, rounds=2))
        clock.advance(-ahead_seconds)
        began = clock.now
        run(node, Advance(clock, rounds=3))
        ids = [task.task_id for task in queue.list() if task.created < began + ahead_seconds / 2]
        assert len(ids) == 2
        days = f"{ahead_seconds / 86_400:.1f} days ahead; it starts anew"
        assert [message.endswith(days) for message in caplog.messages] == [True]
        assert [other.fire(), other.fire()] == [1, 0]

    @pytest.mark.parametrize(("catch_up", "expected"), [(1, [4]), (3, [2, 3, 4]), (9, [1, 2, 3, 4])])
    def test_a_limited_number_of_missed_ticks_fire_late(
        self, queue: Queue, clock: Clock, caplog: pytest.LogCaptureFixture, catch_up: int, expected: list[int]
    ) -> None:
        clock.now = 60.0 * round(START / 60)
        start = clock.now

        def number(moment: datetime) -> int:
            return round((moment.timestamp() - start) / 60)

        node = Scheduler(queue, [Schedule.of("m", Every(60), number, catch_up=catch_up)])
        node.fire()
        clock.advance(4 * 60 + 1)
        assert node.fire() == len(expected)
        assert sorted(map(int, map(str, payloads(queue.claim(limit=9))))) == expected
        assert node.next_tick() == start + 300
        lines = {1: ["skipped 3 missed ticks, m@", " to m@"], 3: ["skipped missed tick m@"]}.get(catch_up, [])
        assert caplog.text.count("skipped") == len(lines[:1])
        assert all(each in caplog.text for each in lines)

    @pytest.mark.parametrize("catch_up", [1, 3])
    @pytest.mark.parametrize(
        ("when", "step_seconds", "down_seconds"),
        [
            (Every(1), 1, 3 * 86_400),
            (Every(0.5), 0.5, 7_200),
            (Cron("* * * * *"), 60, 30 * 86_400),
            (Cron("*/1 * * * *", "Europe/Berlin"), 60, 200 * 86_400),
            (Cron("* * * * * *"), 1, 86_400),
        ],
    )
    def test_after_a_long_downtime_the_latest_ticks_fire(
        self,
        queue: Queue,
        clock: Clock,
        caplog: pytest.LogCaptureFixture,
        when: Cron | Every,
        step_seconds: float,
        down_seconds: float,
        catch_up: int,
    ) -> None:
        clock.now = 60.0 * round(START / 60)

        def age(moment: datetime) -> float:
            return clock.now - moment.timestamp()

        node = Scheduler(queue, [Schedule.of("m", when, age, catch_up=catch_up)])
        node.fire()
        clock.advance(down_seconds)
        assert node.fire() == catch_up
        assert node.fire() == 0, "all older ticks were skipped"
        fired = sorted(map(float, map(str, payloads(queue.claim(limit=9)))))
        assert fired == [number * step_seconds for number in range(catch_up)]
        assert "skipped more than 10,000 missed ticks, m@" in caplog.text

    def test_a_failed_tick_is_replaced_by_the_latest_ones_after_a_long_downtime(
        self, queue: Queue, clock: Clock
    ) -> None:
        failing = True

        def payload(_moment: datetime) -> str:
            if failing:
                raise ValueError("not now")
            return "work"

        node = Scheduler(queue, [Schedule.of("m", Every(1), payload)])
        node.fire()
        clock.advance(1)
        with pytest.raises(ValueError, match="not now"):
            node.fire()
        failing = False
        clock.advance(20_000)
        assert node.fire() == 1
        assert node.fire() == 0

    def test_wrong_arguments(self, queue: Queue) -> None:
        twice = [Schedule.of("m", Every(60), 1), Schedule.of("m", Every(30), 2)]
        with refused("schedules"):
            Scheduler(queue, twice)
        with refused("name"):
            Schedule.of("", Every(1), 1)
        with refused("catch_up"):
            Schedule.of("m", Every(1), 1, catch_up=0)
        with refused("priority"):
            Schedule.of("m", Every(1), 1, priority=99)

    @pytest.mark.parametrize("argument", ["on_conflict", "task_id", "connection", "at", "colour"])
    def test_what_would_differ_for_each_tick_or_free_its_id_is_refused(self, argument: str) -> None:
        with refused(argument):
            Schedule.of("m", Every(1), 1, **{argument: "update"})  # type: ignore[arg-type]

    def test_run_retries_while_the_store_does_not_answer(
        self, queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock.now = 60.0 * round(START / 60) + 45
        node = Scheduler(queue, [Schedule.of("m", Every(60), "work")])
        node.fire()
        clock.advance(30)
        read = core_of(queue).store.read_record

        class Mending(Advance):
            def wait(self, seconds: float, ends: Callable[[], bool]) -> bool:
                monkeypatch.setattr(core_of(queue).store, "read_record", read)
                return super().wait(seconds, ends)

        def no_answer(*_arguments: object) -> None:
            raise StoreError("down")

        monkeypatch.setattr(core_of(queue).store, "read_record", no_answer)
        run(node, stop := Mending(clock, rounds=2))
        assert stop.waits == [1.0, 44.0]
        assert total(queue) == 1
        assert "schedule m: could not fire" in caplog.text

    @pytest.mark.parametrize("seconds", [1.0, 61.0])
    def test_a_schedule_that_takes_long_delays_no_other_beyond_its_own_time(
        self, queue: Queue, clock: Clock, seconds: float
    ) -> None:
        """The tick that comes while another schedule fires is fired next, not a minute later."""
        clock.now = start = 60.0 * round(START / 60)
        fired: list[float] = []

        def slow(instant: datetime) -> None:
            clock.advance(seconds if instant.timestamp() == start + 59 else 0)

        schedules = [
            Schedule.of("quick", Every(60), lambda _instant: fired.append(clock.now), catch_up=9),
            Schedule.of("slow", Cron("59 * * * * *"), slow),
        ]
        node = Scheduler(queue, schedules)
        node.fire()
        run(node, Advance(clock, rounds=3))
        assert fired[0] == pytest.approx(start + 59 + seconds, abs=0.01)

    def test_a_schedule_is_read_at_its_own_ticks_and_each_minute(
        self, queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise the reads would grow with the schedules times their ticks."""
        reads: Counter[str] = Counter()
        read = HighWaterMarks.read

        def counted(marks: HighWaterMarks, record_name: str) -> Any:
            reads[record_name] += 1
            return read(marks, record_name)

        monkeypatch.setattr(HighWaterMarks, "read", counted)
        seldom = [Schedule.of(f"s{n}", Cron("0 0 1 1 *"), None) for n in range(50)]
        clock.now = 60.0 * round(START / 60)
        run(Scheduler(queue, [Schedule.of("often", Every(1), None), *seldom]), Advance(clock, rounds=180))
        assert max(reads[schedule.record_name] for schedule in seldom) <= 4
        assert reads.total() <= 181 + 50 * 4

    def test_many_failed_ticks_are_recorded_together(
        self, queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each write has all of them: one write per tick would grow with the square of their number."""
        node = Scheduler(queue, [Schedule.of("m", Every(1), lambda _: object(), catch_up=200)])
        node.fire()
        writes: list[int] = []
        write = core_of(queue).store.write_record

        def counted(queue_name: str, name: str, values: Mapping[str, Any], version: Any) -> bool:
            writes.append(len(values["failed"]))
            return write(queue_name, name, values, version)

        monkeypatch.setattr(core_of(queue).store, "write_record", counted)
        clock.advance(200)
        with refused("payload"):
            node.fire()
        assert writes == [200]

    def test_the_trouble_of_one_schedule_is_its_own(
        self, queue: Queue, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is retried with backoff, and logged once for each of its ticks."""
        clock.now = 60.0 * round(START / 60)
        broken = [True]

        def fails(_instant: datetime) -> str:
            if broken:
                raise LookupError("no such report")
            return "mended"

        schedules = [
            Schedule.of("raises", Every(60), fails),
            Schedule.of("no-json", Every(60), lambda _instant: object()),
            Schedule.of("fine", Every(60), "work"),
        ]
        node = Scheduler(queue, schedules)
        node.fire()
        stop = Advance(clock, rounds=7)
        clock.advance(60)
        run(node, stop)
        assert stop.waits[:5] == [1, 2, 4, 8, 16]
        fired = [task.payload for task in queue.list()]
        assert fired == ["work"] * 2
        for name in ("raises", "no-json"):
            assert caplog.text.count(f"schedule {name}: could not fire") == 2
        assert caplog.text.count("skipped missed tick raises@") == 1
        assert "LookupError: no such report" in caplog.text
        assert "payload: " in caplog.text
        broken.clear()
        with refused("payload"):
            node.fire()
        assert "mended" in [task.payload for task in queue.list()]

    def test_a_tick_that_always_fails_delays_no_later_one(
        self, queue: Queue, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock.now = start = 60.0 * round(START / 60)
        poison = {start + 60}
        tried: list[float] = []

        def number(instant: datetime) -> int:
            tried.append(clock.now)
            if instant.timestamp() in poison:
                raise LookupError("no such report")
            return round((instant.timestamp() - start) / 60)

        schedules = [Schedule.of("m", Every(60), number, catch_up=4)]
        Scheduler(queue, schedules).fire()
        clock.advance(60)
        run(Scheduler(queue, schedules), Advance(clock, rounds=8))
        assert clock.now == start + 180
        assert [task.payload for task in queue.list()] == [2]
        assert [moment - start for moment in tried] == [60, 61, 63, 67, 75, 91, 120, 123]
        assert caplog.text.count("could not fire tick m@") == 1
        run(Scheduler(queue, schedules), Advance(clock, rounds=30))  # as after a restart
        assert {task.payload for task in queue.list()} >= {2, 3, 4, 5}
        assert caplog.text.count("skipped missed tick m@") == 1
        assert "m@" + datetime.fromtimestamp(start + 60, UTC).isoformat() in caplog.text

    def test_a_failed_tick_is_fired_once_by_whichever_node_tries_it_again(
        self, queue: Queue, clock: Clock
    ) -> None:
        broken = [True]

        def fails(_instant: datetime) -> str:
            if broken:
                raise LookupError("no such report")
            return "mended"

        nodes = [Scheduler(queue, [Schedule.of("m", Every(60), fails, catch_up=5)]) for _ in range(2)]
        nodes[0].fire()
        for _ in range(3):
            clock.advance(60)
            for node in nodes:
                with pytest.raises(LookupError):
                    node.fire()
        broken.clear()
        assert [node.fire() for node in nodes] == [3, 0]
        for claim in queue.claim(5):
            queue.complete(claim)
        clock.advance(10)
        queue.admin.recover()
        assert total(queue) == 0  # the ids are free again
        assert [node.fire() for node in nodes] == [0, 0]

    def test_an_overloaded_queue_delays_a_tick(self, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
        queue = Queue(MemoryStore(), clock=clock, backlog=BacklogLimit(1, WhenFull.REFUSE_NEWEST))
        node = Scheduler(queue, [Schedule.of("m", Every(60), "tick")])
        node.fire()
        queue.put("in the way")
        clock.advance(60)
        stop = Advance(clock, rounds=3)
        run(node, stop)
        assert "schedule m: could not fire" in caplog.text
        queue.complete(queue.claim()[0])
        assert node.fire() == 1

    @pytest.mark.parametrize("until", [float("nan"), "soon", True])
    def test_an_until_that_never_comes_is_refused(self, queue: Queue, until: Any) -> None:
        runs = [Scheduler(queue, []).run, Worker(queue, print).run, Relay(queue, Queue.memory()).run]
        for each in runs:
            with refused("until"):
                each(until=until)

    def test_without_schedules_there_is_no_tick(self, queue: Queue) -> None:
        node = Scheduler(queue, [])
        assert (node.fire(), node.next_tick()) == (0, None)
