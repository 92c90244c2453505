"""The table `chains` equals what plain Python says about random chains, run by run, and DuckDB's."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from freshq_pipeline.report.page import write_report
from freshq_pipeline.storage.folder import Folder
from tests.pipeline.conftest import Pipeline, table
from tests.pipeline.nights import DAY, assert_each_run_equals_duckdb, nights
from tests.pipeline.recording import START_SECONDS, Recording

# Each run takes seconds, on a busy machine half a minute.
PATIENCE_SECONDS = 900
MAX_AGE = 1800.0
Row: TypeAlias = dict[str, Any]


@dataclass
class Hop:
    """A task of a chain: its hop, and when it was put, claimed and ended, in seconds."""

    hop: int
    put: float
    claimed: float | None
    ended: float | None
    outcome: str

    @property
    def waited(self) -> float:
        until = self.ended if self.claimed is None else self.claimed
        return 0.0 if until is None else until - self.put

    @property
    def ran(self) -> float:
        return 0.0 if self.claimed is None or self.ended is None else self.ended - self.claimed


@dataclass
class Chain:
    """A chain as it was recorded."""

    queue: str
    root: str
    life: int
    begun: float
    hops: list[Hop] = field(default_factory=list)

    def expected(self) -> Row:
        """Return its row, computed from the times above."""
        depths = sorted({hop.hop for hop in self.hops})
        steps = [[hop for hop in self.hops if hop.hop == depth] for depth in depths]
        open_ = any(hop.ended is None for hop in self.hops)
        outcomes = [hop.outcome for hop in self.hops]
        worst = [one for one in ("shed", "failure", "cancelled", "success") if one in outcomes]
        shed = [hop.hop for hop in self.hops if hop.outcome == "shed"]
        ends = [hop.ended for hop in self.hops if hop.ended is not None]
        return {
            "queue": self.queue,
            "root_id": self.root,
            "life": self.life,
            "created_ms": epoch_ms(self.begun),
            "deadline_ms": epoch_ms(self.begun + MAX_AGE),
            "ended_ms": None if open_ else epoch_ms(max(ends)),
            "hops": depths[-1],
            "tasks": len(self.hops),
            "wait_seconds": total(hop.waited for hop in self.hops),
            "run_seconds": total(hop.ran for hop in self.hops),
            "outcome": "pending" if open_ else worst[0],
            "shed_hop": min(shed, default=None),
            "in_time": set(outcomes) == {"success"} and max(ends) <= self.begun + MAX_AGE,
            "by_hop": [
                {
                    "hop": depth,
                    "tasks": len(step),
                    "wait_seconds": total(hop.waited for hop in step),
                    "run_seconds": total(hop.ran for hop in step),
                    "shed": sum(hop.outcome == "shed" for hop in step),
                }
                for depth, step in zip(depths, steps, strict=True)
            ],
        }


def epoch_ms(seconds: float) -> float:
    return round((START_SECONDS + seconds) * 1000, 3)


def total(seconds: Iterable[float]) -> float:
    return round(sum(seconds), 6)


def record(tape: Recording, rng: random.Random, chain: Chain, last: float) -> bool:
    """Record a chain, each of whose runs may put two tasks; return whether its root succeeded."""
    puts: list[tuple[float, int, str | None]] = [(chain.begun, 1, None)]
    succeeded = False
    while puts:
        at, hop, parent = puts.pop(0)
        task = chain.root if hop == 1 else f"{chain.root}/{chain.life}/{len(chain.hops)}"
        of = {} if parent is None else {"parent": parent, "root": chain.root}
        deadline = chain.begun + MAX_AGE
        tape.put(at, task, queue=chain.queue, max_age=deadline - at, **of)
        claimed = at + rng.choice((1, 5, 60, 900))
        ended = claimed + rng.choice((1, 30, 600))
        fate = rng.choice(("success",) * 8 + ("failure", "overflow"))
        if fate == "overflow" or claimed >= deadline:
            shed = claimed if fate == "overflow" and claimed < deadline else None
            if shed is not None:
                tape.change(shed, task, "SHED", shedReason={"S": "overflow"})
            if shed is None and deadline > last:
                chain.hops.append(Hop(hop, at, None, None, "pending"))
            else:
                chain.hops.append(Hop(hop, at, None, deadline if shed is None else shed, "shed"))
            continue
        tape.take(claimed, task, holder=f"w:{task}")
        tape.settle(ended, task, fate.upper())
        chain.hops.append(Hop(hop, at, claimed, ended, fate))
        succeeded |= hop == 1 and fate == "success"
        if fate == "success" and hop < 4 and ended < deadline:
            puts += [(ended, hop + 1, task)] * rng.choice((0, 1, 1, 2) if hop > 1 else (1, 2))
    return succeeded


def recorded(seed: int) -> tuple[list[Row], list[Row]]:
    """Return the events of chains around three midnights, and the rows of these chains."""
    rng, chains, tapes = random.Random(seed), [], Recording()
    last = 5 * DAY
    for number in range(24):
        begun = DAY * rng.choice((1, 2, 3)) - rng.choice((30, 300, 1000))
        queue, root = rng.choice(("one", "two")), f"root-{number}"
        chain = Chain(queue, root, 1, float(begun))
        succeeded = record(tapes, rng, chain, last)
        chains.append(chain)
        if succeeded and number % 3 == 0:  # its id is used again, a day later
            again = Chain(queue, root, 2, begun + DAY)
            record(tapes, rng, again, last)
            chains.append(again)
    open_ = Chain("two", "open", 1, last - 100)
    chains.append(open_)
    tapes.put(last - 100, "open", queue="two", max_age=MAX_AGE)
    tapes.take(last - 90, "open")
    tapes.settle(last - 80, "open", "SUCCESS")
    tapes.put(last - 80, "open/1", queue="two", max_age=MAX_AGE, parent="open", root="open")
    open_.hops += [
        Hop(1, last - 100, last - 90, last - 80, "success"),
        Hop(2, last - 80, None, None, "pending"),
    ]
    tapes.put(last, "alone", queue="one")
    events = sorted(tapes.landed(), key=lambda event: event.get("updated_ms", event["stream_ms"]))
    rows = [chain.expected() for chain in chains if len(chain.hops) > 1]
    return events, sorted(rows, key=lambda row: (row["queue"], row["root_id"], row["life"]))


@pytest.mark.timeout(PATIENCE_SECONDS)
def test_the_chains_of_each_run_are_those_of_plain_python(pipeline: Pipeline, tmp_path: Path) -> None:
    events, expected = recorded(seed=7)
    parts = nights(events, 3, late=0.3, seed=3)
    summary = assert_each_run_equals_duckdb(pipeline, tmp_path, parts)
    found = table(summary, "chains", "queue, root_id, life")
    assert [{name: row[name] for name in expected[0]} for row in found] == expected
    assert {row["outcome"] for row in found} == {"success", "shed", "failure", "pending"}
    write_report(Folder(str(tmp_path / "out")))
    assert "<h2>Chains</h2>" in (tmp_path / "out/report.html").read_text()


@pytest.mark.timeout(PATIENCE_SECONDS)
def test_a_chain_without_its_root_is_known_by_its_children(pipeline: Pipeline, tmp_path: Path) -> None:
    tape = Recording()
    tape.put(DAY - 20, "a", parent="unknown", root="root", max_age=100)
    tape.take(DAY - 10, "a")
    tape.settle(DAY + 5, "a", "SUCCESS")
    tape.put(DAY + 5, "b", parent="a", root="root", max_age=75)
    tape.take(DAY + 6, "b")
    tape.settle(DAY + 7, "b", "FAILURE")
    # The same name in another queue is another chain.
    tape.put(DAY + 5, "c", parent="root", root="root", queue="other", max_age=75)
    events = tape.landed()
    before = [event for event in events if event["task_id"] == "a"]
    summary = assert_each_run_equals_duckdb(
        pipeline, tmp_path, [before, [event for event in events if event not in before]]
    )
    columns = ("queue", "life", "hops", "tasks", "wait_seconds", "run_seconds", "outcome", "in_time")
    rows = table(summary, "chains", "queue")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("default", None, 3, 2, 11.0, 16.0, "failure", False),
        ("other", None, 2, 1, 0.0, 0.0, "pending", False),
    ]
    assert [step["hop"] for step in rows[0]["by_hop"]] == [2, 3]
