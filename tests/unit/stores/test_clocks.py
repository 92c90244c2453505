"""Clocks that jump, stand still or are wrong, and their correction."""

from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

import pytest

from freshq.errors import Unreachable
from freshq.stores.clocks import CONFIRM_SECONDS, MachineClock
from freshq.stores.dynamodb.clock import ServerTime
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


def answered(server: ServerTime, machine: Machine, sent: float, received: float, at: float) -> None:
    """Note an answer whose header shows the time `at`, between two times of the steady clock."""
    machine.now = sent
    server.sending()
    machine.now = received
    server.received({"headers": {"Date": formatdate(at, usegmt=True)}})


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


class TestServerTime:
    def of(self, machine: Machine) -> ServerTime:
        return ServerTime(machine.steady, machine.wall)

    @pytest.mark.parametrize(
        ("shown", "answer"), [(9.74, 10.65), (9.76, 9.76), (12.54, 12.54), (12.56, 10.65)]
    )
    def test_one_answer_shows_the_time_to_two_seconds_and_its_round_trip(
        self, shown: float, answer: float
    ) -> None:
        machine = Machine(now=10.5, wrong_by=START + shown - 10.5)
        server = self.of(machine)
        answered(server, machine, 10.2, 10.5, START + 10)
        assert server.now(unasked) == pytest.approx(START + answer, abs=1e-6)

    @pytest.mark.parametrize("skew", [33.0, -33.0, 1.6, -0.5])
    def test_answers_at_many_parts_of_a_second_show_it_better(self, skew: float) -> None:
        machine = Machine(wrong_by=START + skew)
        server = self.of(machine)
        for _ in range(200):
            sent = machine.now
            answered(server, machine, sent, sent + 0.013, START + machine.now + 0.008)
        assert server.now(unasked) == pytest.approx(START + machine.now, abs=0.05)

    @pytest.mark.parametrize(("skew", "said"), [(33.0, "32.5 s ahead of"), (-33.0, "33.5 s behind")])
    def test_a_wrong_clock_is_said_to_be_wrong_once(
        self, skew: float, said: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        machine = Machine(wrong_by=START + skew)
        server = self.of(machine)
        answered(server, machine, 0.0, 0.0, START)
        for _ in range(3):
            server.now(unasked)
        (message,) = caplog.messages
        assert f"{said} the store's" in message

    def test_a_clock_that_was_wrong_is_right_again_well_within_the_bounds(self) -> None:
        machine = Machine(wrong_by=START + 2.3)
        server = self.of(machine)
        is_used = []
        for shown in (2.3, 2.0, 1.6, 2.0):
            machine.wrong_by = START + shown
            answered(server, machine, 0.0, 0.0, START)
            is_used.append(server.now(unasked) == machine.wall())
        assert is_used == [False, False, True, True]

    def test_a_server_whose_clock_was_set_is_followed(self) -> None:
        machine = Machine(now=1.0)
        server = self.of(machine)
        answered(server, machine, 0.9, 1.0, START)
        answered(server, machine, 0.9, 1.0, START + 60)
        assert START + 59 < server.now(unasked) < START + 62

    @pytest.mark.parametrize("paused", [True, False], ids=["machine paused", "clock set"])
    def test_after_a_jump_of_the_machine_the_time_is_asked_for(self, *, paused: bool) -> None:
        machine = Machine()
        server = self.of(machine)
        answered(server, machine, 0.0, 0.0, START)
        machine.wrong_by += 600

        def ask() -> None:
            answered(server, machine, 0.0, 0.0, START + (600 if paused else 0))

        assert server.now(ask) == START + (600 if paused else 0.5)
        server.now(unasked)

    @pytest.mark.parametrize("jump_seconds", [600, -600])
    def test_after_a_jump_without_an_answer_the_later_time_counts(self, jump_seconds: int) -> None:
        machine, asked = Machine(), []
        server = self.of(machine)
        answered(server, machine, 0.0, 0.0, START)
        machine.wrong_by += jump_seconds

        def ask() -> None:
            asked.append(machine.now)
            raise Unreachable("nobody answers")

        for machine.now in (1.0, 1.5, 2.0):
            assert server.now(ask) == START + machine.now + max(0, jump_seconds)
        assert asked == [1.0, 2.0]
        machine.now = 3.0
        server.now(lambda: answered(server, machine, 3.0, 3.0, START + 3))
        server.now(unasked)
        machine.wrong_by += jump_seconds
        server.now(ask)
        assert asked == [1.0, 2.0, 3.0]

    def test_an_answer_without_a_date_leaves_the_clock_alone_and_is_not_repeated(self) -> None:
        asked: list[int] = []
        machine = Machine()
        server = self.of(machine)
        for machine.now in (0.0, 1.0, 29.0, 31.0):
            assert server.now(lambda: asked.append(1)) == machine.wall()
        assert len(asked) == 2

    def test_an_error_of_the_server_has_a_date_too(self) -> None:
        machine = Ticking(wrong_by=START + 60)
        server = self.of(machine)

        def ask() -> None:
            server.sending()
            server.received({"headers": {"Date": formatdate(START, usegmt=True)}})
            raise Unreachable("access denied")

        assert server.now(ask) == pytest.approx(START + 0.5, abs=0.01)

    def test_without_an_answer_there_is_no_time(self) -> None:
        def ask() -> None:
            raise Unreachable("nobody answers")

        with pytest.raises(Unreachable):
            ServerTime().now(ask)

    @pytest.mark.parametrize(
        "answer",
        [
            None,
            {"headers": {}},
            {"headers": {"Date": "nonsense"}},
            {"headers": {"Date": "Mon, 01 Jan 99999999999 00:00:00 GMT"}},
        ],
    )
    def test_what_has_no_date_is_passed_over(self, answer: dict[str, Any] | None) -> None:
        server = self.of(Machine())
        server.sending()
        server.received(answer)
        assert server.now(lambda: None) == START
