"""Clocks that jump, stand still or are wrong, and their correction."""

from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

import pytest

from freshq.errors import Unreachable
from freshq.stores.clocks import CONFIRM_SECONDS, MachineClock
from freshq.stores.dynamodb.clock import ComparedClock, ServerTime, TimeRange
from tests.conftest import START


@dataclass
class Machine:
    """The two clocks of a machine."""

    now: float = 0.0
    wrong_by: float = START

    def steady(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.wrong_by


class Ticking(Machine):
    """A machine whose time goes on a little whenever it is read, and never otherwise."""

    def steady(self) -> float:
        self.now += 1e-5
        return self.now

    def wall(self) -> float:
        return self.steady() + self.wrong_by


def unasked() -> object:
    raise AssertionError("the time was known")


class TestMachineClock:
    def test_a_jump_of_a_moment_is_not_followed(self) -> None:
        machine = Machine()
        clock = MachineClock(machine.wall, machine.steady)
        assert clock() == START
        machine.now, machine.wrong_by = 1.0, START + 3600
        assert clock() == START + 1
        machine.now, machine.wrong_by = 2.0, START
        assert clock() == START + 2

    @pytest.mark.parametrize("jump", [3600.0, -3600.0])
    def test_a_jump_that_lasts_is_followed(self, jump: float) -> None:
        machine = Machine()
        clock = MachineClock(machine.wall, machine.steady)
        clock()
        machine.wrong_by += jump
        assert clock() == START
        machine.now = CONFIRM_SECONDS - 0.1
        assert clock() == START + machine.now
        machine.now = CONFIRM_SECONDS
        assert clock() == START + machine.now + jump

    def test_a_small_step_is_followed_at_once(self) -> None:
        machine = Machine()
        clock = MachineClock(machine.wall, machine.steady)
        clock()
        machine.wrong_by -= 0.5
        assert clock() == START - 0.5


class TestComparedClock:
    @pytest.fixture
    def machine(self) -> Machine:
        return Ticking()

    def exact(self, machine: Machine) -> Callable[[], TimeRange]:
        return lambda: TimeRange(machine.wall() - 0.1, machine.wall() + 0.1, machine.wall())

    @pytest.mark.parametrize("skew", [33.0, -33.0, 0.5])
    def test_a_wrong_clock_is_corrected_and_said_to_be_wrong_once(
        self, machine: Machine, skew: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = ComparedClock(lambda: machine.wall() + skew, self.exact(machine), machine.steady)
        for _ in range(3):
            assert clock() == pytest.approx(machine.wall(), abs=0.2)
        (message,) = caplog.messages
        assert f"{abs(skew)} s {'ahead of' if skew > 0 else 'behind'} the store's" in message

    def test_a_right_clock_is_used_as_it_is(self, machine: Machine) -> None:
        readings: list[float] = []

        def read() -> float:
            readings.append(machine.wall())
            return readings[-1]

        clock = ComparedClock(read, self.exact(machine), machine.steady)
        assert clock() == readings[-1]


class TestServerTime:
    def known(self, server: ServerTime) -> TimeRange:
        return server.now(unasked)

    def test_one_answer_shows_the_time_to_two_seconds_and_its_round_trip(self) -> None:
        machine = Machine(now=10.5)
        server = ServerTime(machine.steady, machine.wall)
        server.observe(10.2, 10.5, START + 10)
        found = self.known(server)
        assert found.earliest == pytest.approx(START + 10 - 0.25)
        assert found.latest == pytest.approx(START + 12 + 0.3 + 0.25)
        assert found.earliest < machine.wall() < found.latest

    def test_answers_at_many_parts_of_a_second_show_it_better(self) -> None:
        machine = Machine()
        server = ServerTime(machine.steady, machine.wall)
        for _ in range(200):
            sent, machine.now = machine.now, machine.now + 0.013
            server.observe(sent, machine.now, float(int(machine.wall() - 0.005)))
        found = self.known(server)
        assert found.likely == pytest.approx(machine.wall(), abs=0.05)
        assert found.latest - found.earliest < 1.6

    def test_a_server_whose_clock_was_set_is_followed(self) -> None:
        machine = Machine(now=1.0)
        server = ServerTime(machine.steady, machine.wall)
        server.observe(0.9, 1.0, START)
        server.observe(0.9, 1.0, START + 60)
        assert self.known(server).earliest > START + 59

    @pytest.mark.parametrize("paused", [True, False], ids=["machine paused", "clock set"])
    def test_after_a_jump_of_the_machine_the_time_is_asked_for(self, *, paused: bool) -> None:
        machine = Machine()
        server = ServerTime(machine.steady, machine.wall)
        server.observe(0.0, 0.0, START)
        machine.wrong_by += 600

        def ask() -> None:
            server.observe(machine.now, machine.now, START + (600 if paused else 0))

        assert (server.now(ask).latest > START + 600) is paused
        self.known(server)

    def test_an_answer_without_a_date_leaves_the_clock_alone_and_is_not_repeated(self) -> None:
        asked: list[int] = []
        machine = Machine()
        server = ServerTime(machine.steady, machine.wall)
        for machine.now in (0.0, 1.0, 29.0, 31.0):
            assert server.now(lambda: asked.append(1)).latest == float("inf")
        assert len(asked) == 2

    def test_an_error_of_the_server_has_a_date_too(self) -> None:
        machine = Ticking()
        server = ServerTime(machine.steady, machine.wall)

        def ask() -> None:
            server.sending()
            server.received({"headers": {"Date": formatdate(machine.wall(), usegmt=True)}})
            raise Unreachable("access denied")

        found = server.now(ask)
        assert found.earliest < machine.wall() < found.latest

    def test_without_an_answer_there_is_no_time(self) -> None:
        def ask() -> None:
            raise Unreachable("nobody answers")

        with pytest.raises(Unreachable):
            ServerTime().now(ask)

    @pytest.mark.parametrize("answer", [None, {"headers": {}}, {"headers": {"Date": "nonsense"}}])
    def test_what_has_no_date_is_passed_over(self, answer: dict[str, Any] | None) -> None:
        server = ServerTime()
        server.sending()
        server.received(answer)
        assert server.now(lambda: None).latest == float("inf")
