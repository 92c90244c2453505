"""The HTTP interface without a server: statuses, bodies, headers and the OpenAPI document."""

import gzip
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq import Queue
from freshq.errors import Overloaded, StoreError
from freshq.feeds.http_api import (
    MAX_BATCH_TASKS,
    MAX_BODY_BYTES,
    ROUTES,
    SECURITY_SCHEMES,
    ApiRequest,
    ApiResponse,
    HttpApi,
    openapi,
    response_to,
)
from freshq.model.new_task import NewTask
from freshq.model.task import MAX_SECONDS
from freshq.model.validation import MAX_JSON_DEPTH, MAX_PAYLOAD_BYTES
from freshq.policy import BacklogLimit, WhenFull
from freshq.queue.polling import Interval, answer_of
from freshq.testing import FaultyStore
from tests.conftest import Clock

VECTORS = json.loads((Path(__file__).parents[3] / "examples/http/vectors.json").read_text("utf-8"))
TYPE = {"content-type": "application/json"}
TOKEN = "a-token-of-this-test"
QUEUE: dict[str, Any] = {"max_age_seconds": 3600, "name": "mail"}


def called(
    api: HttpApi,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] = TYPE,
    authorization: Literal["iam", "jwt"] | None = None,
) -> ApiResponse:
    path, _, query = path.partition("?")
    text = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    response = answer_of(api.poll(ApiRequest(method, path, query, headers, text, authorization)))
    assert json.loads(response.body) == response.content
    return response


def put(api: HttpApi, body: Any, query: str = "", **headers: str) -> ApiResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return called(api, "POST", f"/v1/tasks?{query}", body, TYPE | named)


def test_the_vectors(store_queue: Callable[..., Queue]) -> None:
    api = HttpApi(store_queue(**QUEUE))
    for vector in VECTORS:
        asked = vector["request"]
        body = asked.get("body", asked.get("text", "").encode() or None)
        headers = TYPE if "body" in asked else {}
        answer = called(api, asked["method"], asked["path"], body, headers | asked.get("headers", {}))
        found = {name: answer.content.get(name) for name in vector["answer"]}
        assert (answer.status, found) == (vector["status"], vector["answer"]), vector["name"]


@pytest.fixture(params=["memory", "sqlite"])
def store_queue(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Queue]:
    def made(**options: Any) -> Queue:
        if request.param == "memory":
            return Queue.memory(**options)
        queue = Queue.sql(f"sqlite:///{tmp_path}/tasks.db", **options)
        request.addfinalizer(queue.close)
        queue.create_table()
        return queue

    return made


class TestDeadlines:
    @pytest.mark.parametrize(
        ("body", "headers", "seconds"),
        [
            ({}, {"x_request_ttl_ms": "1500"}, 1.5),
            ({}, {"grpc_timeout": "20S"}, 20),
            ({}, {"grpc_timeout": "2M"}, 120),
            ({}, {"grpc_timeout": "1500m"}, 1.5),
            ({}, {"grpc_timeout": "1500000u"}, 1.5),
            ({}, {"grpc_timeout": "99999999n"}, 0.1),
            ({}, {"x_request_ttl_ms": "2000", "grpc_timeout": "1S"}, 1),
            ({"max_age_seconds": 1}, {"x_request_ttl_ms": "1500"}, 1),
            ({"max_age_seconds": 2}, {"x_request_ttl_ms": "1500"}, 1.5),
            ({"max_age_seconds": None}, {"x_request_ttl_ms": "1500"}, 1.5),
            ({}, {"grpc_timeout": "10H"}, 3600),  # the queue's is shorter
            ({}, {"x_request_ttl_ms": "1e300"}, 3600),
        ],
    )
    def test_a_task_is_stale_when_its_caller_waits_no_longer(
        self, body: dict[str, Any], headers: dict[str, str], seconds: float, clock: Clock
    ) -> None:
        queue = Queue.memory(clock=clock, **QUEUE)
        batch = called(
            HttpApi(queue),
            "POST",
            "/v1/batch",
            {"tasks": [{"task_id": "b", **body}]},
            TYPE | {name.replace("_", "-"): value for name, value in headers.items()},
        )
        assert put(HttpApi(queue), {"task_id": "a", **body}, **headers).status == 201
        assert batch.status == 200
        for task_id in "ab":
            task = queue.get(task_id)
            assert task is not None
            assert task.deadline == pytest.approx(clock.now + seconds, abs=0.001)

    def test_a_queue_without_a_max_age_takes_any(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, max_age_seconds=None)
        put(HttpApi(queue), {"task_id": "a"}, grpc_timeout="99999999H")
        task = queue.get("a")
        assert task is not None
        assert task.deadline == pytest.approx(clock.now + MAX_SECONDS)

    @pytest.mark.parametrize("age", [0, -1, "5", True, math.nan])
    def test_a_wrong_max_age_stays_wrong(self, age: Any) -> None:
        answer = put(HttpApi(Queue.memory(**QUEUE)), {"max_age_seconds": age}, x_request_ttl_ms="1")
        assert (answer.status, answer.content["field"]) == (422, "max_age_seconds")

    @pytest.mark.parametrize(
        ("header", "value"),
        [
            *(("x-request-ttl-ms", value) for value in ("", "-5", "0", "nan", "inf", "soon", "1, 2")),
            *(("grpc-timeout", value) for value in ("", "0S", "5", "S", "5s", "123456789S", "1.5S", "-1S")),
        ],
    )
    def test_a_wrong_header_is_named(self, header: str, value: str) -> None:
        queue = Queue.memory(**QUEUE)
        answer = called(HttpApi(queue), "POST", "/v1/tasks", {}, TYPE | {header: value})
        assert (answer.status, answer.content["field"]) == (422, header)
        assert queue.stats().pending == 0


class TestRefusals:
    def full(self, **options: Any) -> HttpApi:
        return HttpApi(Queue.memory(backlog=BacklogLimit(1, WhenFull.REFUSE_NEWEST), **options))

    def test_a_full_queue_says_when_to_come_back(self) -> None:
        api = self.full()
        assert put(api, {"payload": 1}).status == 201
        answer = put(api, {"payload": 2, "task_id": "late"})
        assert (answer.status, answer.content["error"], answer.content["task_id"]) == (
            429,
            "Overloaded",
            "late",
        )
        assert int(answer.headers["Retry-After"]) == math.ceil(answer.content["retry_after_seconds"])
        assert answer.content["reason"] == "overflow"
        assert api.queue.get("late") is None

    def test_the_price_is_told(self) -> None:
        answer = response_to(Overloaded("a", "admission", 0.2, least_value=2.5))
        assert (answer.status, answer.content["least_value"]) == (429, 2.5)
        assert (answer.headers["Retry-After"], answer.content["retry_after_seconds"]) == ("1", 0.2)

    def test_a_batch_tells_what_became_of_each(self) -> None:
        api = self.full()
        tasks = [{"payload": 1, "task_id": "in"}, {"payload": 2, "task_id": "out"}]
        answer = called(api, "POST", "/v1/batch", {"tasks": tasks})
        assert (answer.status, answer.content["error"]) == (429, "PutIncomplete")
        created, refused = answer.content["receipts"]
        assert created == {"task_id": "in", "outcome": "CREATED"}
        assert (refused["task_id"], refused["error"]) == ("out", "Overloaded")
        assert int(answer.headers["Retry-After"]) >= 1

    def test_a_batch_may_refuse_duplicates(self) -> None:
        api = HttpApi(Queue.memory(**QUEUE))
        tasks = [{"task_id": "a"}, {"task_id": "b"}, {"task_id": "a"}]
        answer = called(api, "POST", "/v1/batch?duplicates=refuse", {"tasks": tasks})
        assert (answer.status, answer.content["error"]) == (409, "Duplicate")
        assert [receipt.get("outcome") for receipt in answer.content["receipts"]] == [
            "CREATED",
            "CREATED",
            None,
        ]

    def test_a_child_that_is_too_late_is_not_asked_to_come_back(self, clock: Clock) -> None:
        api = HttpApi(Queue.memory(clock=clock, **QUEUE))
        parent = {"task_id": "parent", "deadline": clock.now - 1}
        answer = put(api, {"payload": 1, "parent": parent})
        assert (answer.status, answer.content["reason"]) == (409, "deadline")
        assert "Retry-After" not in answer.headers
        assert "retry_after_seconds" not in answer.content

    @pytest.mark.parametrize(
        ("method", "path", "body"),
        [
            ("POST", "/v1/tasks", {}),
            ("POST", "/v1/batch", {"tasks": [{}, {}]}),
            ("GET", "/v1/tasks?task_id=a", None),
            ("GET", "/v1/tasks?task_id=a&wait_seconds=5", None),
            ("POST", "/v1/cancel", {"task_id": "a"}),
            ("GET", "/v1/stats", None),
        ],
    )
    def test_a_store_that_does_not_answer_is_not_an_empty_queue(
        self, method: str, path: str, body: Any
    ) -> None:
        store = FaultyStore()
        api = HttpApi(store.queue(**QUEUE))
        put(api, {"task_id": "a"})
        with store.down():
            answer = called(api, method, path, body)
        assert (answer.status, answer.content["error"]) == (503, "Unreachable")
        assert answer.headers["Retry-After"] == "1"

    def test_a_lost_answer_is_repeated_under_the_same_id(self) -> None:
        store = FaultyStore()
        api = HttpApi(store.queue(**QUEUE))
        put(api, {"task_id": "first"})
        store.lose_replies()
        assert put(api, {"task_id": "a", "payload": 1}).status == 503
        assert put(api, {"task_id": "a", "payload": 1}).content["outcome"] == "DUPLICATE"
        assert api.queue.stats().pending == 2

    def test_a_held_task_is_cancelled_by_force(self) -> None:
        api = HttpApi(Queue.memory(**QUEUE))
        put(api, {"task_id": "a"})
        api.queue.claim()
        assert called(api, "POST", "/v1/cancel", {"task_id": "a"}).status == 409
        assert called(api, "POST", "/v1/cancel", {"task_id": "a", "force": True}).status == 200


class TestTokens:
    @pytest.mark.parametrize(
        "given",
        ["", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer ", "Bearer wrong", f"Bearer {TOKEN}x", "Bearer né"],
    )
    @pytest.mark.parametrize("path", ["/v1/tasks", "/v1/stats", "/v1/nothing", "/"])
    def test_without_a_known_token_nothing_is_told(self, given: str, path: str) -> None:
        api = HttpApi(Queue.memory(), [TOKEN, "another-known-token"])
        for method in ("GET", "POST", "DELETE"):
            answer = called(api, method, path, {}, TYPE | {"authorization": given})
            assert (answer.status, answer.headers) == (401, {"WWW-Authenticate": "Bearer"})
            assert given in ("", "Bearer", "Bearer ") or given not in answer.body.decode()

    @pytest.mark.parametrize("token", [TOKEN, "another-known-token"])
    def test_each_known_token_is_accepted(self, token: str) -> None:
        api = HttpApi(Queue.memory(), [TOKEN, "another-known-token"])
        for scheme in ("Bearer", "bearer"):
            headers = {"authorization": f"{scheme} {token}"}
            assert called(api, "GET", "/v1/stats", headers=headers).status == 200

    @pytest.mark.parametrize("path", ["/healthz", "/openapi.json"])
    def test_what_tells_nothing_of_the_queue_needs_none(self, path: str) -> None:
        assert called(HttpApi(Queue.memory(), [TOKEN]), "GET", path).status == 200
        assert called(HttpApi(Queue.memory(), [TOKEN]), "HEAD", path).status == 200


class TestBodies:
    def test_the_largest_payload_is_put_and_read_back(self) -> None:
        api = HttpApi(Queue.memory(**QUEUE))
        payload = "x" * (MAX_PAYLOAD_BYTES - 2)
        assert put(api, {"task_id": "a", "payload": payload}).status == 201
        assert called(api, "GET", "/v1/tasks?task_id=a").content["payload"] == payload
        assert put(api, {"payload": payload + "x"}).content["field"] == "payload"

    def test_the_deepest_payload_is_put_and_read_back(self) -> None:
        api = HttpApi(Queue.memory(**QUEUE))
        deepest = json.loads("[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH)
        assert put(api, {"task_id": "a", "payload": deepest}).status == 201
        assert called(api, "GET", "/v1/tasks?task_id=a").content["payload"] == deepest
        assert put(api, {"payload": [deepest]}).status == 422

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            (b"", 400),
            (b"\xff", 400),
            (b"[" * 1_000_000, 400),
            (b'{"payload": {"a": 1, "a": 2}}', 400),
            (b'{"payload": 1' + b"0" * 5000 + b"}", 400),
            (b'{"task_id": "\\ud800"}', 422),
            (b'{"task_id": "a\\u0000"}', 422),
            (b'{"payload": "\\ud800"}', 422),
            (b'{"payload": 1e999}', 422),
            (b'{"priority": 5.5}', 422),
            (b'{"priority": true}', 422),
            (b"null", 422),
            (b" " * (MAX_BODY_BYTES + 1), 413),
        ],
    )
    @pytest.mark.parametrize("path", ["/v1/tasks", "/v1/batch", "/v1/cancel"])
    def test_a_wrong_body_is_refused(self, body: bytes, status: int, path: str) -> None:
        queue = Queue.memory(**QUEUE)
        answer = called(HttpApi(queue), "POST", path, body)
        assert answer.status == (404 if path == "/v1/cancel" and b"u0000" in body else status)
        assert queue.stats().pending == 0

    @pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, identity"])
    def test_a_compressed_body_is_refused(self, encoding: str) -> None:
        body, headers = gzip.compress(b'{"payload": 1}'), TYPE | {"content-encoding": encoding}
        answer = called(HttpApi(Queue.memory()), "POST", "/v1/tasks", body, headers)
        assert (answer.status, answer.content["field"]) == (415, "content-encoding")
        plain = put(HttpApi(Queue.memory()), {"payload": 1}, content_encoding="identity")
        assert plain.status == 201

    def test_a_batch_is_bounded(self) -> None:
        api = HttpApi(Queue.memory(**QUEUE))
        answer = called(api, "POST", "/v1/batch", {"tasks": [{}] * (MAX_BATCH_TASKS + 1)})
        assert (answer.status, answer.content["field"]) == (422, "tasks")
        assert called(api, "POST", "/v1/batch", {"tasks": [{}] * MAX_BATCH_TASKS}).status == 200

    def test_the_value_of_a_wrong_payload_is_not_told(self) -> None:
        answer = put(HttpApi(Queue.memory(**QUEUE)), b'{"payload": {"password": NaN, "secret": "hunter2"}}')
        assert "hunter2" not in answer.body.decode()


class TestWaits:
    def test_the_end_of_the_task_ends_the_wait(self) -> None:
        queue = Queue.memory(**QUEUE)
        queue.put("work", task_id="a")
        poll = HttpApi(queue).poll(ApiRequest("GET", "/v1/tasks", "task_id=a&wait_seconds=20"))
        assert isinstance(poll(), Interval)
        queue.complete(queue.claim()[0], result={"sum": 3})
        answer = answer_of(poll)
        assert (answer.content["status"], answer.content["result"]) == ("SUCCESS", {"sum": 3})

    def test_a_server_that_stops_answers(self) -> None:
        queue = Queue.memory(**QUEUE)
        queue.put("work", task_id="a")
        stopping = False
        api = HttpApi(queue, is_stopping=lambda: stopping)
        poll = api.poll(ApiRequest("GET", "/v1/tasks", "task_id=a&wait_seconds=20"))
        assert isinstance(poll(), Interval)
        stopping = True
        answer = poll()
        assert isinstance(answer, ApiResponse)
        assert (answer.status, answer.content["status"]) == (200, "PENDING")

    def test_a_task_that_is_gone_is_not_found(self) -> None:
        queue = Queue.memory(**QUEUE)
        queue.put("work", task_id="a")
        poll = HttpApi(queue).poll(ApiRequest("GET", "/v1/tasks", "task_id=a&wait_seconds=20"))
        assert isinstance(poll(), Interval)
        queue.purge(confirm="mail")
        answer = answer_of(poll)
        assert answer.status == 404


def test_an_unexpected_error_is_not_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue.memory(**QUEUE)
    monkeypatch.setattr(type(queue), "stats", lambda *_args, **_more: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        called(HttpApi(queue), "GET", "/v1/stats")


def test_an_error_of_the_store_is_no_server_error_of_its_own() -> None:
    assert response_to(StoreError("the disk is full")).status == 503


def test_the_document_is_made_from_the_models() -> None:
    document = openapi("token")
    jsonschema.Draft202012Validator.check_schema(document["components"]["schemas"]["NewTask"])
    properties = document["components"]["schemas"]["NewTask"]["properties"]
    assert properties.keys() == NewTask.model_fields.keys()
    assert all(each.get("description") for each in properties.values())
    assert document["paths"].keys() == ROUTES.keys()
    assert json.loads(json.dumps(document)) == document


@pytest.mark.parametrize("authorization", [None, *SECURITY_SCHEMES])
def test_the_document_says_how_to_authorize(authorization: str | None) -> None:
    api = HttpApi(Queue.memory(**QUEUE), tokens=["secret"] if authorization == "token" else [])
    of_gateway: Any = None if authorization == "token" else authorization
    document = called(api, "GET", "/openapi.json", authorization=of_gateway).content
    assert document.get("security") == (authorization and [{authorization: []}])
    assert document["components"].get("securitySchemes", {}).keys() == {authorization} - {None}
    is_open = "security" in document["paths"]["/healthz"]["get"]
    assert is_open == (authorization in (None, "token"))


def test_answers_are_as_documented() -> None:
    document = openapi(None)
    api = HttpApi(Queue.memory(**QUEUE))
    compared = set()
    for vector in VECTORS:
        asked = vector["request"]
        path, _, _ = asked["path"].partition("?")
        operation = document["paths"].get(path, {}).get(asked["method"].lower())
        if operation is None:
            continue
        body = asked.get("body", asked.get("text", "").encode() or None)
        answer = called(api, asked["method"], asked["path"], body, TYPE | asked.get("headers", {}))
        content = operation["responses"][str(int(answer.status))]["content"]["application/json"]
        schema = {**content["schema"], "components": document["components"]}
        jsonschema.validate(answer.content, schema, jsonschema.Draft202012Validator)
        compared.add(vector["name"])
    left_out = {vector["name"] for vector in VECTORS} - compared
    assert left_out == {"an unknown path", "a wrong method"}  # the document describes neither


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
BODIES = st.binary() | JSON_VALUES.map(lambda value: json.dumps(value).encode())
ARGUMENTS = st.dictionaries(st.sampled_from([*NewTask.model_fields, "tasks", "force"]), JSON_VALUES)
HEADERS = st.dictionaries(
    st.sampled_from(["content-type", "authorization", "x-request-ttl-ms", "grpc-timeout"]),
    st.text(st.characters(max_codepoint=255)) | st.just("application/json"),
)


@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "OPTIONS", "BREW"]),
    path=st.sampled_from([*ROUTES]) | st.text(),
    query=st.text(st.characters(max_codepoint=127))
    | st.sampled_from(["task_id=a", "task_id=%ff&wait_seconds=0"]),
    headers=HEADERS.map(lambda headers: {"content-type": "application/json"} | headers),
    body=BODIES | ARGUMENTS.map(lambda value: json.dumps(value).encode()),
)
def test_no_request_is_an_unexpected_error(
    method: str, path: str, query: str, headers: dict[str, str], body: bytes
) -> None:
    api = HttpApi(Queue.memory(**QUEUE))
    answer = answer_of(api.poll(ApiRequest(method, path, query, headers, body)))
    assert answer.status < 500
    assert isinstance(json.loads(answer.body), dict)
