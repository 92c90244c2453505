"""A bill is the counted usage at its price, and the page states the counts."""

import tomllib
from typing import Any

import pytest
from benchmarks import costs_page
from benchmarks.costs_page import (
    PRICES,
    WINDOW_SECONDS,
    bill,
    by_load,
    needs,
    rough,
    sqs_bill,
    standing,
)
from benchmarks.figures import figures_of

# Defaults of the template and of the passes that the page names; the test below compares them.
DEFAULTS = (
    "BatchingWindowSeconds",
    "idle_exit_seconds",
    "log_sample_ratio",
    "MemorySize",
    "worker_passes",
)
FUNCTIONS = ("Trigger", "ProcessTasks", "Archive", "CreateTasks", "Sweep")
COUNTED: dict[str, Any] = {
    "load": "trickle",
    "rate_per_second": 0.25,
    "tasks": 100,
    "invocations": dict.fromkeys(FUNCTIONS, 10),
    "run_seconds": dict.fromkeys(FUNCTIONS, 50.0),
    "log_bytes": dict.fromkeys(FUNCTIONS, 10_000),
    "write_units": 500,
    "metrics": 20,
    "parameters": {"MemorySize": "512", "idle_exit_seconds": 1, "task_seconds": 0.01},
}


@pytest.fixture(name="prices")
def _prices() -> dict[str, Any]:
    return tomllib.loads(PRICES.read_text("utf-8"))


def test_a_bill_is_the_sum_of_what_was_counted_at_its_price(prices: dict[str, Any]) -> None:
    made = bill(COUNTED, 2.0, prices, buffer_seconds=300, buffer_bytes=64 * 2**20)
    assert made.dollars == {
        "DynamoDB": pytest.approx(5 * 0.625 + 2 * 0.125),
        "Lambda": pytest.approx(0.3 * 0.20 + 1.5 * 0.5 * 13.3334),  # the producer and the sweep are not on it
        "SNS": pytest.approx(0.1 * 0.50),
        "logs": pytest.approx(300 * 1e6 / 1e9 * 0.50),
        "Firehose": pytest.approx(0.25 * 5_000 * 1e6 / 1e9 * 0.029),
        "S3": pytest.approx(4e6 / 300 / 1000 * 0.005),  # an object every five minutes
    }
    assert made.total == pytest.approx(sum(made.dollars.values()))


def test_a_fast_load_fills_the_objects_of_the_archive(prices: dict[str, Any]) -> None:
    made = bill(COUNTED | {"rate_per_second": 1000}, 2.0, prices, buffer_seconds=300, buffer_bytes=10**6)
    assert made.dollars["S3"] == pytest.approx(1250 / 1000 * 0.005)


def test_sqs_is_asked_in_vain_only_where_messages_come_alone(prices: dict[str, Any]) -> None:
    run = 0.01 * 0.5 * 13.3334
    alone, often = (sqs_bill(COUNTED | {"load": load}, prices).dollars for load in ("trickle", "steady"))
    assert alone == {"SQS": pytest.approx((3 + 15 / 60 / 0.25) * 0.40), "Lambda": pytest.approx(0.2 + run)}
    assert often == {"SQS": pytest.approx(0.3 * 0.40), "Lambda": pytest.approx(0.02 + run)}


def test_a_stack_that_stands_still_is_watched(prices: dict[str, Any]) -> None:
    still = standing([COUNTED, COUNTED | {"metrics": 30}], 21, prices)
    assert still["sweeps"] == pytest.approx(43_200 / 1e6 * (0.2 + 5 * 0.5 * 13.3334 + 1000 * 1e6 / 1e9 * 0.5))
    assert still["metrics"] == pytest.approx(30 * 0.30)
    assert still["alarms"] == pytest.approx(21 * 0.10)


def test_the_alarms_are_those_of_a_stack_in_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    def alarm(condition: str | None = None, watched: int = 0) -> dict[str, Any]:
        metrics = [{"Expression": "a"}, *({"MetricStat": {}} for _ in range(watched))]
        properties = {"Metrics": metrics} if watched else {}
        named = {"Condition": condition} if condition else {}
        return {"Type": "AWS::CloudWatch::Alarm", "Properties": properties, **named}

    alarms = [alarm(), alarm("InAccount", 3), alarm("HasArchive"), alarm("IsAttached")]
    resources = {f"A{number}": each for number, each in enumerate(alarms)}
    monkeypatch.setattr(costs_page, "template", lambda: {"Resources": resources | {"T": {"Type": "other"}}})
    assert costs_page.alarm_metrics() == 5


@pytest.mark.parametrize(
    "one", figures_of("invocations"), ids=lambda one: f"{one['load']}-{one['window_seconds']}"
)
def test_what_was_counted_has_the_defaults_that_the_page_names(one: dict[str, Any]) -> None:
    given = one["parameters"]
    assert int(given["BatchingWindowSeconds"]) == one["window_seconds"]
    named = [name for name in DEFAULTS if one["window_seconds"] or name != "BatchingWindowSeconds"]
    assert {name: float(given[name]) for name in named} == {
        name: float(costs_page.default(name)) for name in named
    }
    for name in ("concurrency", "Archive"):
        assert str(given[name]) != costs_page.default(name), "the page says that it is not the default"


def test_the_window_of_the_bills_is_the_templates() -> None:
    assert float(costs_page.default("BatchingWindowSeconds")) == WINDOW_SECONDS


def test_loads_that_were_counted_differently_make_no_page(prices: dict[str, Any]) -> None:
    counted = by_load()
    counted["steady"]["parameters"] |= {"MemorySize": "1024"}
    with pytest.raises(ValueError, match="parameters"):
        costs_page.bill_sections(counted, by_load(0), prices)


KNOWN: dict[str, float] = {
    "write_units": 5.0,
    "read_units": 0.1,
    "others_dollars": 3.0,
    "worker_second_dollars": 1e-5,
    "reader_dollars": 1e-6,
    "event_bytes": 400,
    "events": 1_000_000,
    "spark_seconds": 18.0,
    "spark_cores": 2,
    "shards": 64,
}


def test_what_a_rate_needs_comes_from_the_constants() -> None:
    found = needs(1_000, KNOWN)
    assert (found["passes"], found["partitions"], found["queues"]) == (40, 5, 1)
    assert found["used"]["concurrency"] == 40 + 2 * 5
    assert found["used"]["archive_megabytes"] == pytest.approx(1.2)
    assert found["spark_cores"] == 3  # 259.2 million events at 36 core-seconds a million, in 3,600 s
    # 86.4 million tasks, forty workers all day, and five rings a second.
    assert found["dollars_day"] == pytest.approx(86.4 * 3 + 86_400 * (40 * 1e-5 + 5 * 1e-6))


def test_the_constants_are_those_of_the_files() -> None:
    large, known = figures_of("pipeline_large"), costs_page.constants()
    assert (known["spark_seconds"], known["events"]) == (large["spark_cold_seconds"], large["events"])
    assert 300 < known["event_bytes"] < 600


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        (3.7891, "3.8"),
        (3.96, "4.0"),
        (9.97, "10"),
        (0.7249, "0.72"),
        (31.7, "32"),
        (319.9, "320"),
        (32_174.0, "32,000"),
    ],
)
def test_figures_on_paper_have_two_digits(figure: float, shown: str) -> None:
    assert rough(figure) == shown
