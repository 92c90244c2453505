"""Every interleaving of producers, claimers and upkeep on one line, under the rules of the DynamoDB store.

The model has one line and whole seconds. Its actors do one call at a time, and may pause between any two, for
ever if they die. What one that dies has sent takes effect within `landing_seconds`; a call that takes longer
is only made by a process that lives until it has noticed. A put is visible to upkeep after any time up to
`index_lag_seconds`. Claimers close the line whenever they like, whether they looked into it or not.

It follows one task, that of the first producer. The other tasks could only help: upkeep announces the line
for them as well. So the other producer only announces the line, as often as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from typing_extensions import override

from freshq.stores.dynamodb.line_records import RULES, LineRules

TICKS = LineRules(trust_seconds=1, send_seconds=1, landing_seconds=1, index_lag_seconds=1)
LAG = int(TICKS.index_lag_seconds)
# Ages that differ beyond this make no difference.
OLD = int(TICKS.trust_seconds + TICKS.landing_seconds) + 1
LATE = int(TICKS.landing_seconds) + 1


class Producer(NamedTuple):
    """A process that puts the task, or only announces the line.

    Attributes:
        step: What it does next: "check", "read", "announce", "put" or "reply" (the put is under way).
        puts: Whether it is still to put the task.
        check_age: How long ago its look at the record began, if it is still to put the task.
        sent_age: How long ago the put that is under way was sent.
        owes_check: Whether the put took long, so that it looks at the record again.
    """

    step: str
    puts: bool
    check_age: int = 0
    sent_age: int = 0
    owes_check: bool = False

    def later(self) -> Producer:
        if not self.puts or self.step == "check":
            return self
        sent_age = min(LATE, self.sent_age + 1) if self.step == "reply" else 0
        return self._replace(check_age=min(OLD, self.check_age + 1), sent_age=sent_age)


TO_PUT = Producer("check", puts=True)
# From then on it only announces the line.
DONE = Producer("read", puts=False)


class Claimer(NamedTuple):
    """A process that closes the line.

    Attributes:
        step: What it does next: "close", "delete", "reply" (a deletion is under way) or "close again".
        closings: How often it may still begin to close the line.
        closing_age: How long ago it wrote the closing of the records that it is to delete.
        sent_age: How long ago the deletion that is under way was sent.
    """

    step: str
    closings: int
    closing_age: int = 0
    sent_age: int = 0

    def later(self) -> Claimer:
        if self.step in ("close", "close again"):
            return self
        sent_age = min(LATE, self.sent_age + 1) if self.step == "reply" else 0
        return self._replace(closing_age=min(OLD, self.closing_age + 1), sent_age=sent_age)


class World(NamedTuple):
    """The table and the actors.

    Attributes:
        announced: Whether the line has a record.
        closings: In how many seconds each closing in the table is due; 0: it is.
        task: In how many seconds the task becomes visible in the index; 0: it is. None: it was not put yet.
        producers: The producers, sorted.
        claimers: The claimers, sorted.
    """

    announced: bool
    closings: frozenset[int]
    task: int | None
    producers: tuple[Producer, ...]
    claimers: tuple[Claimer, ...]

    def producer(self, index: int, after: Producer) -> World:
        """Return the world after a step of a producer."""
        others = (*self.producers[:index], *self.producers[index + 1 :])
        return self._replace(producers=tuple(sorted((*others, after))))

    def claimer(self, index: int, after: Claimer) -> World:
        """Return the world after a step of a claimer."""
        others = (*self.claimers[:index], *self.claimers[index + 1 :])
        return self._replace(claimers=tuple(sorted((*others, after))))

    def later(self) -> World:
        """Return the world a second later."""
        return World(
            self.announced,
            frozenset(max(0, due - 1) for due in self.closings),
            None if self.task is None else max(0, self.task - 1),
            tuple(sorted(producer.later() for producer in self.producers)),
            tuple(sorted(claimer.later() for claimer in self.claimers)),
        )


def producer_steps(rules: LineRules, world: World, index: int) -> Iterator[World]:
    """Yield what may happen next to a producer."""
    producer = world.producers[index]
    if producer.step == "check":
        yield world.producer(index, Producer("read", puts=True))
    elif producer.step == "read" and world.announced:
        yield world.producer(index, producer._replace(step="put") if producer.puts else DONE)
    elif producer.step == "read":
        yield world.producer(index, producer._replace(step="announce"))
    elif producer.step == "announce":
        after = producer._replace(step="put") if producer.puts else DONE
        yield world.producer(index, after)._replace(announced=True)
    elif producer.step == "put":
        may_put = rules.may_put(producer.check_age)
        yield world.producer(index, producer._replace(step="reply") if may_put else TO_PUT)
    else:
        yield from replies(rules, world, index)


def replies(rules: LineRules, world: World, index: int) -> Iterator[World]:
    """Yield the effects of the put that is under way; a producer that died does not look again."""
    producer = world.producers[index]
    for lag in (0, LAG):
        if rules.put_was_late(producer.check_age):
            yield world.producer(index, Producer("read", puts=False, owes_check=True))._replace(task=lag)
        if producer.sent_age <= rules.landing_seconds or not rules.put_was_late(producer.check_age):
            yield world.producer(index, DONE)._replace(task=lag)


def claimer_steps(rules: LineRules, world: World, index: int) -> Iterator[World]:
    """Yield what may happen next to a claimer."""
    claimer = world.claimers[index]
    closings = world.closings | {int(rules.recheck_after_seconds)}
    if claimer.step == "close" and claimer.closings:
        yield world.claimer(index, Claimer("delete", claimer.closings - 1))._replace(closings=closings)
    elif claimer.step == "delete":
        after = Claimer("close", claimer.closings)
        if rules.may_delete(claimer.closing_age):
            after = claimer._replace(step="reply")
        yield world.claimer(index, after)
    elif claimer.step == "reply":
        late = rules.deletion_was_late(claimer.closing_age)
        if late:
            yield world.claimer(index, Claimer("close again", claimer.closings))._replace(announced=False)
        if claimer.sent_age <= rules.landing_seconds or not late:
            yield world.claimer(index, Claimer("close", claimer.closings))._replace(announced=False)
    elif claimer.step == "close again":
        yield world.claimer(index, Claimer("close", claimer.closings))._replace(closings=closings)


def upkeep_steps(world: World) -> Iterator[World]:
    """Yield the look into the line of a closing that is due, with and without a death before the end."""
    if 0 in world.closings:
        after = world._replace(announced=world.announced or world.task == 0)
        yield after
        yield after._replace(closings=world.closings - {0})


def steps(rules: LineRules, world: World) -> Iterator[World]:
    """Yield every state that may come next."""
    for index in range(len(world.producers)):
        yield from producer_steps(rules, world, index)
    for index in range(len(world.claimers)):
        yield from claimer_steps(rules, world, index)
    yield from upkeep_steps(world)
    yield world.later()


def strands_the_task(world: World) -> bool:
    """Return whether the task waits in a line that is not announced, and never will be if all actors die now.

    Upkeep announces it if it looks once the task is visible.
    """
    if world.announced or world.task is None:
        return False
    if any(producer.step == "reply" or producer.owes_check for producer in world.producers):
        return False
    if any(claimer.step in ("reply", "close again") for claimer in world.claimers):
        return False
    return all(due < world.task for due in world.closings)


def explore(rules: LineRules, world: World) -> World | None:
    """Return a state in which a task is stranded; None if no interleaving leads to one."""
    seen = {world}
    left = [world]
    while left:
        current = left.pop()
        if strands_the_task(current):
            return current
        for after in steps(rules, current):
            if after not in seen:
                seen.add(after)
                left.append(after)
    return None


def start(*, closings: tuple[int, ...]) -> World:
    """Return the start: two producers, and claimers that close the line so many times."""
    claimers = tuple(Claimer("close", count) for count in closings)
    return World(
        announced=False, closings=frozenset(), task=None, producers=(TO_PUT, DONE), claimers=claimers
    )


def test_no_interleaving_strands_a_task() -> None:
    assert explore(TICKS, start(closings=(1, 1))) is None


class TrustsForEver(LineRules):
    @override
    def may_put(self, check_age_seconds: float) -> bool:
        return True


class NeverLooksAfterALatePut(LineRules):
    @override
    def put_was_late(self, check_age_seconds: float) -> bool:
        return False


class DeletesAtAnyTime(LineRules):
    @override
    def may_delete(self, closing_age_seconds: float) -> bool:
        return True


class NeverClosesAgain(LineRules):
    @override
    def deletion_was_late(self, closing_age_seconds: float) -> bool:
        return False


class LooksAtOnce(LineRules):
    @property
    @override
    def recheck_after_seconds(self) -> float:
        return 0


class LooksTooEarly(LineRules):
    @property
    @override
    def recheck_after_seconds(self) -> float:
        return super().recheck_after_seconds - self.trust_seconds


@pytest.mark.parametrize(
    "planted",
    [TrustsForEver, NeverLooksAfterALatePut, DeletesAtAnyTime, NeverClosesAgain, LooksAtOnce, LooksTooEarly],
)
def test_the_model_finds_a_planted_bug(planted: type[LineRules]) -> None:
    rules = planted(TICKS.trust_seconds, TICKS.send_seconds, TICKS.landing_seconds, TICKS.index_lag_seconds)
    assert explore(rules, start(closings=(1,))) is not None


def test_the_store_looks_into_a_closed_line_within_ten_seconds() -> None:
    assert RULES.recheck_after_seconds <= 10
