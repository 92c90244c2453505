"""The cost of a match: transaction actions and reads, counted on DynamoDB Local."""

from typing import Any

import pytest
from benchmarks import capacity
from benchmarks.capacity import cycle, match_metered
from types_boto3_dynamodb import DynamoDBClient

from tests.support.matching import Desk, join, names


@pytest.mark.parametrize("languages", [1, 2, 3, 5])
def test_a_cycle(dynamodb_local: DynamoDBClient, languages: int) -> None:
    meters = cycle(dynamodb_local, languages)
    match = meters["match"]
    assert match.calls == {"Query": 1, "TransactWriteItems": 1}
    assert match.actions == 2 * languages + 1
    assert match.write_units == 4 * languages + 2
    assert match.read_units == 1
    assert meters["offer"].write_units == 4 * languages + 2
    # A look at the line of callers before and after.
    assert meters["offer"].calls == {"GetItem": 2, "Query": 2, "TransactWriteItems": 1}
    assert (meters["complete"].write_units, meters["complete"].calls) == (1, {"PutItem": 1})
    assert meters["match without a result"].calls == {"Query": 2}
    # The line of callers, as docs/matching.md has it: write units, read units, calls.
    line = {
        "request: joins the line": (6, 5, 6),
        "request: asks again in vain": (0, 3, 3),
        "offer, matched to a waiting caller": (7, 2, 4),
        "complete after request": (4, 0, 1),
        "release": (4 * languages + 2, 3, 4),
        "request: takes a queued resource": (4 * languages + 4, 2, 3),
    }
    for step, figures in line.items():
        meter = meters[step]
        assert (meter.write_units, meter.read_units, meter.calls.total()) == figures, step


def test_recovery_by_callers_is_rare(table_desk: Desk) -> None:
    assert table_desk.client is not None
    queue = table_desk.queue(lease_seconds=60)
    join(queue, "Ellen", {"language": "English"})
    (match,) = queue.match({})
    with match_metered(table_desk.client) as meter:
        for _ in range(60):
            assert queue.match({"language": "English"}) == []
            table_desk.clock.advance(1)
    assert meter.calls == {"Query": 60 * 2 + 8}  # one recovery in a minute
    queue.extend(match)


@pytest.mark.parametrize(
    ("criteria", "queries", "found"),
    [
        ({"language": "Spanish", "gender": "F"}, 1, "0"),
        ({"language": "Spanish"}, 1, "0"),
        ({"language": ["Spanish", "English"]}, 1, "0"),
        ({"language": ["German", "Spanish"]}, 3, "0"),
        ({"language": {"English", "Spanish"}, "gender": "F"}, 2, "0"),
        ({"gender": "F"}, 4, "0"),
        ({}, 3, "0"),
    ],
)
def test_queries_have_a_limit_however_many_resources_wait(
    table_desk: Desk, criteria: Any, queries: int, found: str
) -> None:
    """Two languages with 30 agents each: a name left out costs one query per group and one to end."""
    assert table_desk.client is not None
    queue = table_desk.queue()
    for number in range(30):
        join(queue, str(number), {"language": {"English", "Spanish"}, "gender": "F"})
    with match_metered(table_desk.client) as meter:
        assert names(queue.match(criteria)) == [found]
    assert meter.calls == {"Query": queries, "TransactWriteItems": 1}
    sent = [arguments for operation, arguments in meter.sent if operation == "Query"]
    assert all(arguments["Limit"] <= 10 and arguments["ConsistentRead"] for arguments in sent)


@pytest.mark.parametrize(("at_most", "units"), [(None, 3), (13, 1)])
def test_depths_are_counted_by_the_store(table_desk: Desk, at_most: int | None, units: int) -> None:
    """One query for the combinations, and one for each; no entry is returned."""
    assert table_desk.client is not None
    queue = table_desk.queue()
    for number in range(30):
        join(queue, str(number), {"language": {"English", "Spanish"}, "gender": "F"})
    with match_metered(table_desk.client) as meter:
        depths = queue.depths(limit=at_most)
    depth = 30 if at_most is None else at_most
    assert depths == {"gender=F&language=English": depth, "gender=F&language=Spanish": depth}
    assert meter.calls == {"Query": 3}
    counts = [arguments for _operation, arguments in meter.sent if arguments.get("Select") == "COUNT"]
    assert len(counts) == 2
    assert meter.read_units <= 1 + 2 * units


def test_the_figures_are_those_of_the_cycles(dynamodb_local: DynamoDBClient) -> None:
    found = capacity.matching(dynamodb_local)
    in_vain = [each for each in found if each["step"] == "match without a result"]
    assert [(each["languages"], each["write_units"], each["calls"]) for each in in_vain] == [
        (1, 0, 2),
        (2, 0, 2),
        (3, 0, 2),
    ]
