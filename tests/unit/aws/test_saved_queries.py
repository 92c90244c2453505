"""The saved queries of the stack ask for fields that the functions' lines have."""

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from freshq import StoreError
from freshq.aws import observability
from freshq.policy.shedding import ShedReason
from freshq.queue.admin import Admin
from freshq.queue.core import core_of
from tests.support.function_chain import ring_event
from tests.support.functions import load_event
from tests.template.test_template import of_type
from tests.unit.aws.test_function_logs import log
from tests.unit.conftest import Application

Lines = Mapping[str, Sequence[dict[str, Any]]]

__all__ = ["log"]  # a fixture

WORDS: Final = {"fields", "filter", "sort", "limit", "asc", "desc"} | {
    *("and", "or", "not", "in", "like", "ispresent"),
}
# Lines that Lambda writes: the end of an invocation, and a function's exception.
OF_LAMBDA: Final = {"record.status", "errorMessage"}
FUNCTION_OF_LOGS: Final = {
    "CreateTasksLogs": "create_tasks",
    "TriggerLogs": "trigger",
    "ProcessTasksLogs": "process_tasks",
    "SweepLogs": "sweep",
}


def queries() -> dict[str, tuple[list[str], str]]:
    """Return the functions and the text of each saved query."""
    found = {}
    for name, properties in of_type("AWS::Logs::QueryDefinition").items():
        groups = [group["Ref"] for group in properties["LogGroupNames"] if "Ref" in group]
        found[name] = ([FUNCTION_OF_LOGS[group] for group in groups], properties["QueryString"])
    return found


def fields_of(query: str) -> set[str]:
    """Return the fields that a query names, except those that CloudWatch adds."""
    words = re.findall(r"[A-Za-z_@][\w.@]*", re.sub(r'"[^"]*"', "", query))
    return {word for word in words if word not in WORDS and not word.startswith("@")} - OF_LAMBDA


def messages_of(query: str) -> set[str]:
    """Return the messages that a query selects; none if it selects by something else."""
    return set(re.findall(r'message = "([^"]+)"', query))


def has(line: Any, path: str) -> bool:
    """Return whether a line has a field, as Logs Insights names it."""
    for name in path.split("."):
        if isinstance(line, list) and name.isdecimal() and int(name) < len(line):
            line = line[int(name)]
        elif isinstance(line, dict) and name in line:
            line = line[name]
        else:
            return False
    return True


@pytest.fixture
def lines(application: Application, log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Lines:
    """Return what each function writes: of work that succeeds, that is refused and that fails."""
    found: dict[str, list[dict[str, Any]]] = {}

    def invoke(function: str, event: Any) -> None:
        log.truncate(0)
        log.seek(0)
        application.invoke(function, event)
        found.setdefault(function, []).extend(map(json.loads, log.getvalue().splitlines()))

    def fail(_queue: Admin) -> int:
        raise StoreError("no answer")

    observability.set_log_levels("INFO")
    tasks = [{"payload": 1, "task_id": "a"}, {"payload": {"reject": True}, "task_id": "b"}]
    invoke("create_tasks", {"tasks": [*tasks, {"payload": 1, "priority": -1}]})
    invoke("trigger", load_event("trigger-insert"))
    invoke("process_tasks", ring_event({"chain": "c", "hop": 1}))
    application.set_switch("stop")
    invoke("trigger", load_event("trigger-insert"))
    invoke("process_tasks", ring_event({"chain": "c"}))
    monkeypatch.setattr(Admin, "recover", fail)
    with pytest.raises(StoreError, match="no answer"):
        invoke("sweep", {})
    found["sweep"] = list(map(json.loads, log.getvalue().splitlines()))
    return found


@pytest.mark.filterwarnings("ignore:No application metrics to publish")
def test_every_field_of_a_saved_query_is_in_a_line_that_it_selects(lines: Lines) -> None:
    assert len(queries()) >= 5
    for name, (functions, query) in queries().items():
        messages = messages_of(query)
        written = [line for function in functions for line in lines[function]]
        assert messages <= {line["message"] for line in written}, name
        selected = [line for line in written if not messages or line["message"] in messages]
        for field in fields_of(query):
            if field.startswith("report.turned_away."):
                assert ShedReason(field.rpartition(".")[2])
                field = "report.turned_away"  # noqa: PLW2901 - what a put without load has of it
            assert any(has(line, field) for line in selected), f"{name}: {field}"


def test_the_life_of_a_task_shows_lines_that_name_it_in_their_text_only(
    application: Application, log: io.StringIO
) -> None:
    """A task that cannot be read has no fields, and its end must be found all the same."""
    _functions, query = queries()["LifeOfATaskQuery"]
    assert 'filter task_id = "TASK_ID" or message like "TASK_ID"' in query
    application.queue.put(1, task_id="damaged")
    client: Any = core_of(application.queue).store.calls.client  # type: ignore[attr-defined]  # of the store on DynamoDB
    key = {"TableName": "QueueTable", "Key": {"taskId": {"S": "damaged"}}}
    client.update_item(**key, UpdateExpression="REMOVE payload")
    application.invoke("process_tasks", load_event("process_tasks-doorbell"))
    told = [json.loads(line)["message"] for line in log.getvalue().splitlines()]
    assert any("damaged" in message for message in told)
