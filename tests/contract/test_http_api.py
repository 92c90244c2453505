"""The HTTP interface on every store: no id and no value is an unexpected error."""

import json
from typing import Any
from urllib.parse import quote

import pytest

from freshq.feeds.http_api import ApiRequest, ApiResponse, HttpApi
from freshq.queue.polling import answer_of
from tests.conftest import StoreUnderTest

TYPE = {"content-type": "application/json"}


def called(api: HttpApi, method: str, path: str, query: str = "", body: Any = None) -> ApiResponse:
    text = b"" if body is None else json.dumps(body).encode()
    return answer_of(api.poll(ApiRequest(method, path, query, TYPE, text)))


@pytest.fixture
def api(store: StoreUnderTest) -> HttpApi:
    return HttpApi(store.queue(max_age_seconds=60))


@pytest.mark.parametrize(
    "encoded", ["a%00b", "%ff", "%ED%A0%80", "x%0A", "%E2%80%A8", "q" * 256, "%C3%A9" * 200]
)
def test_no_id_is_an_unexpected_error(api: HttpApi, encoded: str) -> None:
    for wait in ("", "&wait_seconds=1"):
        assert called(api, "GET", "/v1/tasks", f"task_id={encoded}{wait}").status in (404, 422)


@pytest.mark.parametrize(
    "task_id", ["a\0b", "\ud800", "é" * 200, "line\n"], ids=["nul", "surrogate", "long", "line"]
)
def test_nothing_is_cancelled_by_a_hard_id(api: HttpApi, task_id: str) -> None:
    assert called(api, "POST", "/v1/cancel", body={"task_id": task_id}).status in (404, 422)


@pytest.mark.parametrize(
    "body",
    [
        {"payload": 10**60},
        {"payload": [1e308, -5e-324, -0.0]},
        {"payload": {"": {"\0": "\0"}}},
        {"value": 1e12, "decay": "linear"},
        {"group": "a\0"},
        {"kind": "\ud800"},
        {"at": 253_402_300_800},
        {"at": 0},
        {"delay_seconds": 3_153_600_000},
        {"task_id": "k\u2028 é", "priority": 9},
        {"on_conflict": "update", "task_id": "again"},
        {"max_age_seconds": 1e-9},
    ],
    ids="-".join,
)
def test_no_value_is_an_unexpected_error(api: HttpApi, body: dict[str, Any]) -> None:
    one = called(api, "POST", "/v1/tasks", body=body)
    two = called(api, "POST", "/v1/batch", body={"tasks": [body, body]})
    assert (one.status, two.status) in ((201, 200), (422, 422)), (one.content, two.content)
    assert called(api, "GET", "/v1/stats").status == 200
    if one.status == 201:
        found = called(api, "GET", "/v1/tasks", f"task_id={quote(one.content['task_id'])}")
        assert found.status == 200
        assert found.content["payload"] == body.get("payload")
