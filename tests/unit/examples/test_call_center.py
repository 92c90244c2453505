"""examples/matching/call_center.py, in memory and on a table of DynamoDB Local."""

import io
import json
import random
from collections import Counter
from typing import Any

import pytest
from examples.matching import call_center
from examples.matching.call_center import Clock, Floor, app, jain_index, report
from rich.console import Console
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import MatchQueue
from freshq.cli.people import LEASE_SECONDS, Agent, MadeUpCaller, made_up_agents, made_up_callers
from tests.support.matching import join

run = CliRunner().invoke
SMALL = ["--agents", "5", "--callers", "20"]


def result_of(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    answer = run(app, [*arguments, "--json"], env=env)
    assert answer.exit_code == 0, answer.output
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def calling(name: str, called: float, language: str = "English", *, lost: bool = False) -> MadeUpCaller:
    return MadeUpCaller(name, language, {"language": [language]}, called, call_seconds=100, lost=lost)


def floor_of(people: list[MadeUpCaller], *speakers: str) -> Floor:
    clock = Clock(start=1_700_000_000)
    queue = MatchQueue.memory(lease_seconds=LEASE_SECONDS, clock=clock)
    staff = [Agent(f"{number}", {"language": {language}}) for number, language in enumerate(speakers)]
    return Floor(queue, staff, people, clock, random.Random(1))


def test_every_caller_is_served_and_counted() -> None:
    found = result_of("--agents", "50", "--callers", "200")
    assert (found["agents"], found["callers"], found["served"], found["never_served"]) == (50, 200, 200, 0)
    waits = found["waits_by_language"].values()
    assert sum(wait["callers"] for wait in waits) == 200
    assert max(wait["longest_seconds"] for wait in waits) == found["longest_wait_seconds"] > 0
    assert 0 < sum(wait["at_once"] for wait in waits) < 200
    assert sum(found["share_by_language_served_in"].values()) == pytest.approx(1, abs=0.01)
    assert found["calls_by_agent"]["mean"] == 4
    assert found["connections_lost"] == found["agents_recovered"]


def test_the_same_seed_gives_the_same_report() -> None:
    assert result_of(*SMALL, "--seed", "3") == result_of(*SMALL, "--seed", "3")
    assert result_of(*SMALL, "--seed", "3") != result_of(*SMALL, "--seed", "4")


def test_fifo_spreads_the_work_more_evenly_than_lifo() -> None:
    fifo, lifo = (result_of("--order", order) for order in ("fifo", "lifo"))
    assert (fifo["order"], lifo["order"]) == ("fifo", "lifo")
    assert fifo["fairness_among_agents"] > lifo["fairness_among_agents"]
    assert fifo["longest_idle_seconds"] < lifo["longest_idle_seconds"]


def test_the_report_is_a_table_for_people() -> None:
    shown = run(app, SMALL, env={"COLUMNS": "100"})
    assert shown.exit_code == 0
    for text in ("waits by language", "20 of 20 callers served", "longest wait of a caller", "fifo"):
        assert text in shown.output


def test_the_live_table_shows_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        call_center, "Console", lambda: Console(file=screen, force_terminal=True, width=100, height=40)
    )
    monkeypatch.setattr(call_center, "FRAMES_PER_SECOND", 1000)
    assert run(app, [*SMALL, "--show-seconds", "0.2"]).exit_code == 0
    shown = screen.getvalue()
    assert "callers waiting" in shown
    assert "talking" in shown
    assert "longest wait of a caller" in shown


def test_on_a_table_the_report_is_the_same_and_nothing_is_left(
    dynamodb_local: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", dynamodb_local.meta.endpoint_url)
    assert result_of(*SMALL, "--table", "CallCenter") == result_of(*SMALL)
    queue = MatchQueue.dynamodb("CallCenter")
    assert list(queue._store.resources()) == []
    assert queue.depths() == {}
    assert list(queue.callers()) == []
    join(queue, "someone", {"language": "Greek"})
    refused = run(app, [*SMALL, "--table", "CallCenter"])
    assert refused.exit_code == 2
    assert "'CallCenter' is in use (1 resources waiting)" in refused.output
    assert queue.waiting() == 1


@pytest.mark.parametrize(
    "arguments", [["--agents", "0"], ["--order", "adaptive"], ["--table", "a b"], ["--show-seconds", "-1"]]
)
def test_wrong_use(arguments: list[str]) -> None:
    assert run(app, [*arguments]).exit_code == 2


def test_the_longest_waiting_caller_is_served_first() -> None:
    floor = floor_of([calling("a", 1), calling("b", 2), calling("c", 3)], "English")
    list(floor.run())
    waited = [caller.waited_seconds for caller in floor.callers]
    assert waited[0] == 0
    assert None not in waited
    assert 98 < (waited[1] or 0) < (waited[2] or 0)


def test_a_caller_who_cannot_be_served_blocks_no_one() -> None:
    floor = floor_of([calling("a", 1), calling("b", 2, "French"), calling("c", 3)], "English")
    list(floor.run())
    assert list(floor.waiting) == ["b"]
    assert [caller.caller_id for caller in floor.queue.callers()] == ["b"]
    found = report(floor, "fifo")
    assert (found["served"], found["never_served"]) == (2, 1)


def test_the_agent_of_a_lost_connection_is_recovered_when_the_lease_expires() -> None:
    floor = floor_of([calling("a", 1, lost=True), calling("b", 2)], "English")
    list(floor.run())
    assert floor.callers[1].waited_seconds == LEASE_SECONDS - 1
    assert (floor.lost, floor.recovered) == (1, 1)


def test_made_up_people() -> None:
    staff = made_up_agents(200, random.Random(1))
    assert len({agent.agent_id for agent in staff}) == 200
    assert {len(agent.attributes["language"]) for agent in staff} == {1, 2, 3}
    people = made_up_callers(500, 50, random.Random(1))
    assert [caller.called for caller in people] == sorted(caller.called for caller in people)
    spoken = Counter(caller.language for caller in people)
    assert spoken["English"] > spoken["Spanish"] > spoken["French"] > 0
    assert all(caller.call_seconds < LEASE_SECONDS for caller in people)


def test_jain_index() -> None:
    assert jain_index([3, 3, 3]) == 1
    assert jain_index([4, 0, 0, 0]) == 0.25
    assert jain_index([0, 0]) == 1
