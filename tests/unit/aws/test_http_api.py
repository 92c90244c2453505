"""The function of the HTTP interface: its answers are those of `freshq serve`, whatever the event."""

import base64
import io
import json
import math
from typing import Any, Final

import pytest

from freshq import Queue
from freshq.aws.environment import QueueSettings
from freshq.aws.http_events import metric_of, receipts_of, request_of
from freshq.feeds.http_api import MAX_BODY_BYTES, MAX_WAIT_SECONDS, ApiRequest, HttpApi
from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.queue.polling import answer_of
from freshq.testing import FaultyStore
from tests.support.functions import PROJECT, Context, load_event
from tests.support.http_events import event_of, event_of_vector
from tests.support.refusals import refused
from tests.unit.aws.test_function_logs import log
from tests.unit.aws.test_function_metrics import emitted
from tests.unit.conftest import Application

__all__ = ["log"]  # a fixture
VECTORS: Final = json.loads((PROJECT / "examples/http/vectors.json").read_text("utf-8"))
# Powertools warns of an invocation that counts nothing, such as of a read.
pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")


def invoked(application: Application, *request: Any, **more: Any) -> dict[str, Any]:
    return application.invoke("http_api", event_of(*request, **more))


def content(answer: dict[str, Any]) -> Any:
    return json.loads(answer["body"])


def test_the_answers_are_those_of_the_server(application: Application) -> None:
    """Bodies and headers, besides the ids that are made and the times."""
    made = {"created", "updated", "deadline", "put_at", "version"}
    api = HttpApi(Queue.memory(max_age_seconds=3600))
    for vector in VECTORS:
        event = event_of_vector(vector)
        expected, found = answer_of(api.poll(request_of(event))), application.invoke("http_api", event)
        headers = {"Content-Type": "application/json", **expected.headers}
        assert (found["statusCode"], found["headers"]) == (expected.status, headers), vector["name"]
        bodies = [
            {name: value for name, value in each.items() if name not in made}
            for each in (content(found), dict(expected.content))
        ]
        if "task_id" not in vector["request"].get("body", {"task_id": None}):
            bodies = [{**each, "task_id": None} for each in bodies]
        if vector["name"] not in ("stats", "JSON with a charset"):  # what a store does not count; a made id
            assert bodies[0] == bodies[1], vector["name"]


class TestEvents:
    @pytest.mark.parametrize(
        ("stage", "raw_path", "path"),
        [
            ("$default", "/v1/tasks", "/v1/tasks"),
            ("dev", "/dev/v1/tasks", "/v1/tasks"),
            ("dev", "/v1/tasks", "/v1/tasks"),  # through a domain of one's own
            ("v1", "/v1/tasks", "/v1/tasks"),
            ("v1", "/v1/v1/tasks", "/v1/tasks"),
            ("dev", "/dev", "/dev"),
            ("dev", "/devil/v1/tasks", "/devil/v1/tasks"),
            ("$default", "/x/v1/tasks", "/x/v1/tasks"),
            ("$default", "/$default/v1/tasks", "/v1/tasks"),
            ("$default", "//v1/tasks", "//v1/tasks"),
        ],
    )
    def test_the_path_is_below_the_stage(self, stage: str, raw_path: str, path: str) -> None:
        event = event_of("GET", raw_path)
        event["requestContext"]["stage"] = stage
        assert request_of(event).path == path

    def test_the_query_is_decoded_once(self, application: Application) -> None:
        """`queryStringParameters` is decoded already, and joins repeated names by commas."""
        event = event_of("GET", "/v1/tasks?task_id=a%2Bb%2525%20c+d")
        event["queryStringParameters"] = {"task_id": "another"}
        assert content(application.invoke("http_api", event))["task_id"] == "a+b%25 c d"

    def test_a_repeated_argument_is_refused(self, application: Application) -> None:
        answer = invoked(application, "GET", "/v1/tasks?task_id=a&task_id=b")
        assert (answer["statusCode"], content(answer)["field"]) == (422, "query")

    def test_names_of_headers_have_no_case(self) -> None:
        event = event_of("POST", "/v1/tasks", {})
        event["headers"] = {"Content-Type": "application/json", "X-Request-TTL-Ms": "5"}
        assert request_of(event).headers == {"content-type": "application/json", "x-request-ttl-ms": "5"}

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ('{"payload": "é"}', 201),
            ('{"payload": "\ud800"}', 400),
            ("", 400),
            (" " * (MAX_BODY_BYTES + 1), 413),
        ],
        ids=["text", "surrogate", "empty", "large"],
    )
    def test_a_body_as_text(self, application: Application, body: str, status: int) -> None:
        event = event_of("POST", "/v1/tasks", {}) | {"body": body}
        assert application.invoke("http_api", event)["statusCode"] == status

    @pytest.mark.parametrize(("body", "status"), [(b'{"payload": "\xc3\xa9"}', 201), (b"\xff\xfe", 400)])
    def test_a_body_in_base64(self, application: Application, body: bytes, status: int) -> None:
        event = event_of("POST", "/v1/tasks", {})
        event |= {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}
        assert application.invoke("http_api", event)["statusCode"] == status

    @pytest.mark.parametrize("authorization", ["iam", "jwt"])
    def test_the_document_says_what_the_gateway_checks(
        self, application: Application, authorization: str
    ) -> None:
        event = event_of("GET", "/openapi.json")
        event["requestContext"]["authorizer"] = {authorization: {}}
        assert content(application.invoke("http_api", event))["security"] == [{authorization: []}]

    def test_a_head_has_no_body(self, application: Application) -> None:
        answer = invoked(application, "HEAD", "/v1/stats")
        assert (answer["statusCode"], answer["body"]) == (200, "")

    @pytest.mark.parametrize("authorizer", [None, {}])
    def test_a_caller_whom_nobody_has_checked_gets_nothing(
        self, application: Application, authorizer: Any
    ) -> None:
        event = event_of("POST", "/v1/tasks", {"task_id": "a"})
        event["requestContext"]["authorizer"] = authorizer
        with refused("event: requestContext.authorizer"):
            application.invoke("http_api", event)
        assert application.queue.get("a") is None

    @pytest.mark.parametrize("event", [None, [], {}, {"version": "1.0"}, {"Records": []}])
    def test_another_event_is_refused(self, event: Any) -> None:
        with refused("event"):
            request_of(event)

    def test_no_value_of_a_wrong_event_is_told(self) -> None:
        event = event_of("POST", "/v1/tasks") | {"body": {"secret": "hunter2"}}
        with pytest.raises(ValueError, match="body: ") as error:
            request_of(event)
        assert "hunter2" not in str(error.value)


class TestWaits:
    def test_a_wait_ends_before_the_function_does(self, application: Application) -> None:
        application.queue.put("work", task_id="a")
        context = Context(remaining_seconds=5.1)
        left = iter([5.1, 4.9])
        context.get_remaining_time_in_millis = lambda: int(next(left) * 1000)  # type: ignore[method-assign]
        event = event_of("GET", f"/v1/tasks?task_id=a&wait_seconds={MAX_WAIT_SECONDS}")
        answer = application.invoke("http_api", event, context)
        assert (answer["statusCode"], content(answer)["status"]) == (200, "PENDING")
        assert list(left) == []


class TestOutages:
    def test_a_store_that_does_not_answer_is_told_as_by_the_server(
        self, application: Application, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store = FaultyStore()
        queue = store.queue()
        application.patch.setattr(QueueSettings, "queue", lambda *_: queue)
        with store.down():
            answer = invoked(application, "POST", "/v1/tasks", {"payload": 1})
        assert (answer["statusCode"], content(answer)["error"]) == (503, "Unreachable")
        assert answer["headers"]["Retry-After"] == "1"
        assert counted(capsys) == {"TasksNotWritten": 1}

    def test_a_task_that_is_put_is_answered_in_an_outage_of_the_options(
        self, application: Application
    ) -> None:
        store = FaultyStore()
        down = store.queue()

        class Options:
            def current(self) -> None:
                with store.down():
                    down.stats()

        application.patch.setattr(QueueSettings, "pass_options", lambda *_: Options())
        assert invoked(application, "POST", "/v1/tasks", {"payload": 1})["statusCode"] == 201

    def test_an_unexpected_error_fails_the_invocation(self, application: Application) -> None:
        application.patch.setattr(Queue, "stats", lambda *_args, **_more: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            invoked(application, "GET", "/v1/stats")


def counted(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """Return the sums of the metrics that were written."""
    sums: dict[str, float] = {}
    for line in emitted(capsys.readouterr().out):
        for metric in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]:
            sums[metric["Name"]] = sums.get(metric["Name"], 0) + sum(line[metric["Name"]])
    return sums


class TestMetrics:
    def test_each_outcome_of_a_put_is_counted(
        self, application: Application, capsys: pytest.CaptureFixture[str]
    ) -> None:
        application.configure(backlog=BacklogLimit(2, WhenFull.REFUSE_NEWEST))
        invoked(application, "POST", "/v1/tasks", {"task_id": "a"})
        invoked(application, "POST", "/v1/tasks", {"task_id": "a"})
        invoked(application, "POST", "/v1/tasks?duplicates=refuse", {"task_id": "a"})
        invoked(application, "POST", "/v1/tasks", {"task_id": "a", "payload": "new", "on_conflict": "update"})
        invoked(application, "POST", "/v1/tasks", {"priority": 10})
        invoked(application, "POST", "/v1/batch", {"tasks": [{"task_id": "b"}, {"task_id": "c"}]})
        invoked(application, "GET", "/v1/tasks?task_id=nobody")
        invoked(application, "POST", "/v1/cancel", {"task_id": "nobody"})
        assert counted(capsys) == {
            "TasksCreated": 2,
            "TasksDuplicate": 2,
            "TasksUpdated": 1,
            "TasksRefused": 1,
            "TasksTurnedAway": 1,
        }

    def test_what_a_batch_did_not_write_is_counted(self) -> None:
        api, request = HttpApi(FaultyStore().queue()), ApiRequest("POST", "/v1/batch", body=b"{}")
        response = answer_of(api.poll(request))
        assert [metric_of(each, response.status) for each in receipts_of(request, response)] == [
            "TasksRefused"
        ]


class TestLog:
    def test_a_request_and_the_tasks_that_it_put_are_logged_without_payload_and_query(
        self, application: Application, log: io.StringIO
    ) -> None:
        invoked(application, "POST", "/v1/tasks?duplicates=refuse", {"task_id": "a", "payload": "s3cr3t"})
        answered, put = map(json.loads, log.getvalue().splitlines())
        assert {"method": "POST", "path": "/v1/tasks", "status": 201}.items() <= answered.items()
        assert (put["message"], put["task_id"]) == ("task put", "a")
        assert "s3cr3t" not in log.getvalue()
        assert "duplicates" not in log.getvalue()

    def test_an_outage_is_an_error_line_with_its_cause_and_a_refusal_has_only_its_name(
        self, application: Application, log: io.StringIO
    ) -> None:
        store = FaultyStore()
        queue = store.queue()
        application.patch.setattr(QueueSettings, "queue", lambda *_: queue)
        invoked(application, "POST", "/v1/tasks", {"payload": 1, "s3cr3t": 2})
        with store.down():
            invoked(application, "GET", "/v1/stats")
        lines = [json.loads(line) for line in log.getvalue().splitlines()]
        refusal, outage = [line for line in lines if line["message"] == "request answered"]
        assert (refusal["level"], refusal["error"]) == ("INFO", "InvalidValue")
        assert (outage["level"], outage["status"]) == ("ERROR", 503)
        assert "store" in outage["error"]
        assert "s3cr3t" not in log.getvalue()

    def test_the_share_of_logged_tasks_is_an_option(self, application: Application, log: io.StringIO) -> None:
        application.configure(log_sample_ratio=0)
        invoked(application, "POST", "/v1/batch", {"tasks": [{}, {}]})
        messages = [json.loads(line)["message"] for line in log.getvalue().splitlines()]
        assert "request answered" in messages
        assert "task put" not in messages


def test_a_canary_stays_out_of_the_queue(application: Application) -> None:
    event = {"canary": "canary-1", "event": event_of("POST", "/v1/tasks", {"task_id": "a"})}
    assert application.invoke("http_api", event)["statusCode"] == 201
    assert application.queue.get("a") is None


def test_the_deadline_of_the_caller_limits_the_max_age(application: Application) -> None:
    application.invoke("http_api", load_event("http_api-put"))
    task = application.queue.get("order-7")
    assert task is not None
    assert task.deadline is not None
    assert math.isclose(task.deadline - task.created, 30, abs_tol=0.01)
