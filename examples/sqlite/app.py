"""Answers: freshq work app:run --queue sqlite:///tasks.db."""

from freshq import Reject, Task

PRICES = {"ABC": 42, "DEF": 7}


def run(task: Task) -> dict[str, object]:
    """Return the price of a symbol; it is kept with the task."""
    symbol = task.payload["symbol"]
    if symbol not in PRICES:
        raise Reject("unknown symbol")
    return {"symbol": symbol, "price": PRICES[symbol]}
