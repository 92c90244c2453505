"""A bill is what was counted at its price."""

from __future__ import annotations

import tomllib

import pytest
from benchmarks.dollars import PRICES, bill


def test_a_bill_is_the_sum_of_what_was_counted_at_its_price() -> None:
    prices = tomllib.loads(PRICES.read_text("utf-8"))
    functions = ("Trigger", "ProcessTasks", "Archive", "CreateTasks", "Sweep")
    counted = {
        "load": "steady",
        "tasks": 100,
        "invocations": dict.fromkeys(functions, 10),
        "run_seconds": dict.fromkeys(functions, 50.0),
        "log_bytes": dict.fromkeys(functions, 10_000),
        "write_units": 500,
    }
    made = bill(counted, 2.0, prices)
    assert made.dollars == {
        "DynamoDB": pytest.approx(5 * 0.625 + 2 * 0.125),
        "Lambda": pytest.approx(0.3 * 0.20 + 1.5 * 0.5 * 13.3334),  # the producer and the sweep are not on it
        "SNS": pytest.approx(0.1 * 0.50),
        "logs": pytest.approx(300 * 1e6 / 1e9 * 0.50),
        "archive": pytest.approx(0.25 * 5_000 * 1e6 / 1e9 * 0.029),
    }
    assert made.total == pytest.approx(sum(made.dollars.values()))
