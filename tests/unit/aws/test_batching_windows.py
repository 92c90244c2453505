"""The emulator's changes to ministack: batching windows, filters, layers, concurrency, deliveries."""

import json
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from local.emulator import BatchingWindows, Deliveries, limit_all_versions, mend_filters, unpack_once

from freshq.testing import ManualClock
from tests.support.patience import PATIENCE_SECONDS


class Emulator:
    """The two modules of the emulator that know mappings and streams, with one stream."""

    def __init__(self, *mappings: dict[str, Any]) -> None:
        self.records: list[int] = []
        self.mappings = SimpleNamespace(
            _esm_wake=threading.Event(),
            _iter_all_esms=lambda: iter([("account", "region", one) for one in mappings]),
        )
        self.streams = SimpleNamespace(
            stream_records_since=lambda _table, position, limit: self.records[position : position + limit]
        )
        self.clock = ManualClock()
        BatchingWindows(self.mappings, self.streams, self.clock)

    def poll(self, position: int = 0, limit: int = 10) -> dict[str, list[int]]:
        """Return the records that each mapping gets."""
        return {
            mapping["UUID"]: self.streams.stream_records_since("table", position, limit)
            for _, _, mapping in self.mappings._iter_all_esms()
        }


def test_records_wait_for_the_window_of_their_own_mapping() -> None:
    emulator = Emulator(
        {"UUID": "slow", "MaximumBatchingWindowInSeconds": 5},
        {"UUID": "quick", "MaximumBatchingWindowInSeconds": 0},
        {"UUID": "plain"},
    )
    assert emulator.poll() == {"slow": [], "quick": [], "plain": []}
    emulator.records = [1, 2]
    emulator.clock.advance(60)
    assert emulator.poll() == {"slow": [], "quick": [1, 2], "plain": [1, 2]}
    emulator.clock.advance(4.9)
    emulator.records.append(3)
    assert emulator.poll()["slow"] == []
    emulator.clock.advance(0.1)
    assert emulator.poll()["slow"] == [1, 2, 3]


def test_the_next_batch_has_a_window_of_its_own_and_a_full_one_does_not_wait() -> None:
    emulator = Emulator({"UUID": "slow", "MaximumBatchingWindowInSeconds": 5})
    emulator.records = [1]
    emulator.poll()
    emulator.clock.advance(5)
    assert emulator.poll()["slow"] == [1]
    emulator.records = [1, 2]
    assert emulator.poll(position=1)["slow"] == []
    emulator.records = list(range(11))
    assert emulator.poll(position=1)["slow"] == list(range(1, 11))


def test_the_emulator_is_woken_when_a_window_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[float, Any]] = []

    def timer(seconds: float, action: Any) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: started.append((seconds, action)))

    monkeypatch.setattr("threading.Timer", timer)
    emulator = Emulator({"UUID": "slow", "MaximumBatchingWindowInSeconds": 5})
    emulator.records = [1]
    for _ in range(3):
        emulator.poll()
    ((seconds, action),) = started
    action()
    assert (seconds, emulator.mappings._esm_wake.is_set()) == (5.0, True)


def test_what_a_client_reads_meanwhile_is_not_held_back() -> None:
    emulator = Emulator({"UUID": "slow", "MaximumBatchingWindowInSeconds": 5})
    emulator.records = [1, 2]
    with ThreadPoolExecutor(1) as client:
        for _mapping in emulator.mappings._iter_all_esms():
            assert emulator.streams.stream_records_since("table", 0, 10) == []
            asked = client.submit(emulator.streams.stream_records_since, "table", 0, 10)
            assert asked.result(PATIENCE_SECONDS) == [1, 2]


@pytest.mark.parametrize(
    ("record", "matches"),
    [
        ({"old": {}, "new": {"status": {"S": "PENDING"}}}, True),
        ({"new": {"status": {"S": "PENDING"}}}, True),
        ({"old": {"status": {"S": "TAKEN"}}, "new": {"status": {"S": "PENDING"}}}, False),
        ({"old": {}, "new": {}}, False),
        ({"old": {}}, False),
    ],
)
def test_what_is_not_there_does_not_exist_whatever_else_is_missing(
    record: dict[str, Any], *, matches: bool
) -> None:
    from ministack.services import lambda_svc  # type: ignore[import-untyped]  # noqa: PLC0415 - it is large

    mappings = SimpleNamespace(_match_esm_filter=lambda_svc._match_esm_filter)
    mend_filters(mappings)
    pattern = {"old": {"status": {"S": [{"exists": False}]}}, "new": {"status": {"S": ["PENDING"]}}}
    assert mappings._match_esm_filter(record, pattern) is matches


def test_a_package_is_unpacked_once_for_all_processes(tmp_path: Path) -> None:
    runtime = SimpleNamespace()
    (tmp_path / "kept").mkdir()
    unpack_once(runtime, tmp_path / "kept")

    def unpack(text: str, name: str) -> Path:
        with zipfile.ZipFile(tmp_path / "layer.zip", "w") as layer:
            layer.writestr("python/module/a.py", text)
            layer.writestr("b.py", "b")
        process = tmp_path / name
        process.mkdir()
        with runtime.zipfile.ZipFile(tmp_path / "layer.zip") as layer:
            layer.extractall(process)
        assert (process / "python/module/a.py").read_text() == text
        assert (process / "b.py").read_text() == "b"
        return (process / "python").resolve()

    first, second, changed = unpack("1", "first"), unpack("1", "second"), unpack("2", "changed")
    assert first == second
    assert changed != first
    assert {path.parent.parent for path in (first, changed)} == {tmp_path / "kept"}
    (tmp_path / "broken.zip").write_text("no package")
    with pytest.raises(runtime.zipfile.BadZipFile):
        runtime.zipfile.ZipFile(tmp_path / "broken.zip")


def test_reserved_concurrency_counts_for_the_versions_of_a_function() -> None:
    lambdas = SimpleNamespace(
        _functions={"worker": {"concurrency": 3}},
        _reserved_concurrency=lambda function, _config: function.get("concurrency"),
    )
    limit_all_versions(lambdas)
    assert lambdas._reserved_concurrency({}, {"FunctionName": "worker", "Version": "1"}) == 3
    assert lambdas._reserved_concurrency({"concurrency": 1}, {"FunctionName": "gone"}) == 1


ARN = "arn:aws:lambda:us-east-1:000000000000:function:worker:live"
OPTIONS = {
    "MaximumRetryAttempts": 2,
    "MaximumEventAgeInSeconds": 60,
    "DestinationConfig": {"OnFailure": {"Destination": "the failed-event queue"}},
}
THROTTLED: dict[str, Any] = {"throttle": True}
FAILED: dict[str, Any] = {"error": True, "body": {"errorMessage": "Worker process died"}}
DONE: dict[str, Any] = {"body": {"claimed": 1}}


class Functions:
    """The two modules of the emulator that know topics and functions, with one function."""

    def __init__(self, *results: dict[str, Any], options: Any = None) -> None:
        self._results = iter(results)
        self._result: dict[str, Any] = {}
        self.invoked: list[tuple[str, str]] = []
        self.running = 0
        self.failed: list[tuple[Any, ...]] = []
        self.clock = ManualClock()
        self.topics = SimpleNamespace()
        record = {"config": {"FunctionName": "worker"}}
        lambdas = SimpleNamespace(
            new_uuid=iter(["request-1", "request-2"]).__next__,
            _get_base_func_record_for_ref=lambda _arn: (record, record["config"], "worker"),
            _get_func_record_for_ref=lambda arn: (
                (record, record["config"], "worker") if arn == ARN else [None] * 3
            ),
            _lambda_function_name_and_qualifier_from_arn=lambda _arn: ("worker", "live"),
            _event_invoke_config=lambda _function, qualifier: options if qualifier == "live" else None,
            _acquire_execution_slot=self._acquire,
            _execute_function_dispatch=self._dispatch,
            _release_execution_slot=self._release,
            _route_async_failure=lambda *failure: self.failed.append(failure),
        )
        Deliveries(self.topics, lambdas, self.clock, self.clock.advance)

    def _acquire(self, *_: Any) -> tuple[str | None, str | None]:
        self._result = next(self._results)
        if self._result is THROTTLED:
            return None, "function"
        self.running += 1
        return "slot", None

    def _dispatch(
        self, _record: Any, _config: Any, event: Any, request_id: str, _begun: float
    ) -> dict[str, Any]:
        self.invoked.append((request_id, event["Records"][0]["Sns"]["Message"]))
        return self._result

    def _release(self, slot: str) -> None:
        assert slot == "slot"
        self.running -= 1

    def deliver(self, arn: str = ARN) -> None:
        """Deliver a message."""
        self.topics._deliver_to_lambda(
            arn, json.dumps({"Message": "ring"}), "topic", "subscription", "", "", {}
        )


def test_a_message_waits_while_its_function_is_throttled() -> None:
    functions = Functions(*[THROTTLED] * 9, DONE, options=OPTIONS)
    functions.deliver()
    assert functions.invoked == [("request-1", "ring")]
    assert functions.failed == []


def test_a_message_whose_invocation_failed_is_tried_again_as_the_same_request() -> None:
    functions = Functions(FAILED, THROTTLED, FAILED, DONE, options=OPTIONS)
    functions.deliver()
    assert functions.invoked == [("request-1", "ring")] * 3
    assert (functions.failed, functions.running) == ([], 0)


@pytest.mark.parametrize("results", [[FAILED] * 3, [THROTTLED] * 1000])
def test_what_is_never_done_goes_to_the_failed_event_queue(results: list[dict[str, Any]]) -> None:
    functions = Functions(*results, options=OPTIONS)
    functions.deliver()
    ((target, name, event, failure),) = functions.failed
    assert (target, name) == ("the failed-event queue", "worker")
    assert event["Records"][0]["EventSource"] == "aws:sns"
    assert failure["error"]
    assert failure.get("throttle", False) is (results[0] is THROTTLED)


def test_without_options_a_message_is_tried_three_times() -> None:
    functions = Functions(*[FAILED] * 3)
    functions.deliver()
    assert (len(functions.invoked), functions.failed) == (3, [])


def test_a_message_for_a_function_that_was_deleted_is_dropped() -> None:
    functions = Functions()
    functions.deliver(ARN.replace("worker", "gone"))
    assert functions.invoked == []
