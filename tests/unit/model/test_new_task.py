"""The checks of arguments: limits to the last byte, and the text of errors."""

import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

from freshq import Queue
from freshq.model import new_task
from freshq.model.answers import Busy, Reject, Retry
from freshq.model.checks import (
    checked_id,
)
from freshq.model.new_task import NewTask, parse_new_task
from freshq.model.validation import MAX_RESULT_AND_PAYLOAD_BYTES, json_text, result_and_text
from tests.support.patience import PATIENCE_SECONDS
from tests.support.refusals import refused


def nested(levels: int, inner: Any = ()) -> Any:
    """Return lists in each other, `inner` in the innermost."""
    value = list(inner)
    for _ in range(levels - 1):
        value = [value]
    return value


def named(levels: int) -> Any:
    """Return mappings in each other."""
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"inner": value}
    return value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"priority": 10}, "priority: input should be less than or equal to 9, got 10"),
        ({"task_id": "x" * 1025}, "task_id: 1025 bytes, at most 1024 are allowed; shorten it"),
        ({"group": "é" * 129}, "group: 258 bytes, at most 256 are allowed; shorten it"),
        ({"group": "a\0"}, "group: must not contain the character NUL; leave it out, got 'a\\x00'"),
        ({"at": 1.0, "delay_seconds": 5}, "at: cannot be combined with delay_seconds; use one of them"),
        ({"payload": nested(101)}, "payload: nested more than 100 levels deep; flatten it"),
        ({"payload": named(101)}, "payload: nested more than 100 levels deep; flatten it"),
        ({"payload": nested(60, [named(60)])}, "payload: nested more than 100 levels deep; flatten it"),
        ({"delay_seconds": -1}, "delay_seconds: input should be greater than or equal to 0, got -1"),
        ({"max_age_seconds": 0}, "max_age_seconds: input should be greater than 0, got 0"),
        ({"priority": "x" * 58}, f"priority: input should be a valid integer, got '{'x' * 58}'"),
        ({"priority": "x" * 59}, "priority: input should be a valid integer"),
        ({"x" * 60: 1}, f"{'x' * 60}: unknown field; use one of {', '.join(NewTask.model_fields)}"),
        ({"x" * 61: 1}, f"{'x' * 60}...: unknown field; use one of {', '.join(NewTask.model_fields)}"),
    ],
)
def test_an_error_names_the_field_the_limit_and_the_value(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_new_task(arguments)


def test_limits_are_inclusive() -> None:
    task = parse_new_task({"task_id": "x" * 1024, "group": "g" * 256, "payload": nested(100)})
    assert len(task.task_id or "") == 1024
    wide = [nested(99), named(99), *[[1, "a"]] * 200]
    assert parse_new_task({"payload": wide}).payload == wide


def test_a_payload_is_not_quoted() -> None:
    with refused("payload"):
        parse_new_task({"payload": {1, 2}})


def test_what_is_no_mapping_is_named_with_its_place() -> None:
    with refused("tasks[3]"):
        parse_new_task(5, "tasks[3].")  # type: ignore[arg-type]
    with refused("task"):
        parse_new_task([1])  # type: ignore[arg-type]


def test_json_has_no_spaces() -> None:
    assert json_text({"a": [1, "ü"]}) == '{"a":[1,"ü"]}'


def test_a_wrong_id_is_quoted() -> None:
    with refused("key"):
        checked_id("", "key")
    with pytest.raises(ValueError, match=r"got 'x{59}$"):
        checked_id("x" * 2000)


def test_a_result_must_fit_beside_its_payload() -> None:
    half = "x" * (MAX_RESULT_AND_PAYLOAD_BYTES // 2 - 2)
    assert result_and_text(half, half)[0] == half
    with pytest.raises(
        ValueError, match=rf"^result: {MAX_RESULT_AND_PAYLOAD_BYTES + 1} bytes with the payload"
    ):
        result_and_text(half + "x", half)
    with refused("result"):
        result_and_text({"found": {1: 2}}, None)


def test_the_wrong_argument_of_a_wait_is_named() -> None:
    with refused("wait_seconds"):
        Queue.memory().claim(wait_seconds=-1.0)


def test_outcomes_keep_what_they_were_given() -> None:
    assert str(Reject("no such customer")) == "no such customer"
    assert (str(Retry("later", delay_seconds=2)), Retry(delay_seconds=2).delay_seconds) == ("later", 2.0)
    assert (str(Retry()), Retry().delay_seconds) == ("the runner asked for a retry", None)
    assert str(Busy()) == "the runner is busy"
    with pytest.raises(
        TypeError, match=r"^reason: must be a string, got int; pass a delay as delay_seconds="
    ):
        Retry(5)  # type: ignore[arg-type]
    with refused("delay_seconds"):
        Retry(delay_seconds=-1)


def test_concurrent_first_puts_build_the_validator_once(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[str] = []
    second_entered = threading.Event()

    class Unbuilt(NewTask):
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
            entries.append(threading.current_thread().name)
            if len(entries) > 1:
                second_entered.set()
            else:
                second = pool.submit(parse_new_task, {"payload": "second"})
                pending.append(second)
                second_entered.wait(timeout=0.2)  # times out if the second put waits for this build
            return handler(source)

    pending: list[Future[NewTask]] = []
    monkeypatch.setattr(new_task, "NewTask", Unbuilt)
    with ThreadPoolExecutor(max_workers=1) as pool:
        assert parse_new_task({"payload": "first"}).payload == "first"
        assert [put.result(PATIENCE_SECONDS).payload for put in pending] == ["second"]
    assert len(entries) == 1
