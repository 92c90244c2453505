"""Codecs: which values a queue and its handlers take, and how they are stored."""

import asyncio
import base64
import json
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from unittest import mock

import pytest
from pydantic import Field, TypeAdapter

from freshq import AsyncQueue, Handlers, Queue, Task, TaskStatus, Worker
from freshq.aws import traces, worker_pass
from freshq.errors import FreshqError, PutIncomplete
from freshq.model import JsonCodec
from freshq.model.codec import DoesNotFit
from freshq.telemetry import Outcome
from freshq.testing import drain
from tests.support.readings import known
from tests.support.refusals import refused


@dataclass
class Quote:
    symbol: str
    limit: Decimal = Decimal(1)


class Packed:
    """Stores everything compressed."""

    def __init__(self) -> None:
        self.inner = JsonCodec()
        self.down = False

    def encode(self, value: Any) -> str:
        text = json.dumps(self.inner.encode(value))
        return base64.b85encode(zlib.compress(text.encode())).decode()

    def decoder(self, annotation: Any) -> Callable[[Any], Any]:
        read = self.inner.decoder(annotation)

        def decode(stored: Any) -> Any:
            if self.down:
                raise ConnectionError("no dictionary")
            try:
                text = zlib.decompress(base64.b85decode(stored))
            except (TypeError, ValueError, zlib.error):
                raise ValueError("is not packed") from None
            return read(json.loads(text))

        return decode


@pytest.fixture
def codec() -> Packed:
    return Packed()


@pytest.fixture
def handlers(codec: Packed) -> Handlers:
    handlers = Handlers(codec=codec)

    @handlers.on("quote")
    def quote(_task: Task, payload: Quote) -> Quote:
        return Quote(payload.symbol.lower(), payload.limit + 1)

    return handlers


class TestStored:
    def test_payload_and_result_are_encoded_once(self, codec: Packed, handlers: Handlers) -> None:
        queue = Queue.memory(codec=codec)
        queue.put(Quote("ABC"), task_id="a", kind="quote")
        assert known(queue, "a").payload == codec.encode(Quote("ABC"))
        Worker(queue, handlers, idle_exit_seconds=0.05).run()
        assert queue.admin.config.codec.decoder(Quote)(known(queue, "a").result) == Quote("abc", Decimal(2))

    def test_handlers_encode_results_for_a_queue_without_a_codec(
        self, codec: Packed, handlers: Handlers
    ) -> None:
        queue = Queue.memory()
        queue.put(codec.encode(Quote("ABC")), task_id="a", kind="quote")
        (fate,) = drain(queue, handlers)
        assert fate.task.result == codec.encode(Quote("abc", Decimal(2)))

    def test_a_plain_runner_has_the_codec_of_the_queue(self, codec: Packed) -> None:
        queue = Queue.memory(codec=codec)
        queue.put(Quote("ABC"))
        (fate,) = drain(queue, lambda task: Quote(str(len(task.payload))))
        assert codec.decoder(Quote)(fate.task.result) == Quote(str(len(codec.encode(Quote("ABC")))))

    def test_runs_that_are_traced_have_the_codec_of_the_handlers(
        self, codec: Packed, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tracer = mock.Mock()
        monkeypatch.setattr(worker_pass, "IS_TRACED", True)
        monkeypatch.setattr(traces, "_TRACER", tracer)
        queue = Queue.memory()
        queue.put(codec.encode(Quote("ABC")), task_id="a", kind="quote")
        Worker(queue, worker_pass.traced(handlers), idle_exit_seconds=0.05).run()
        assert known(queue, "a").result == codec.encode(Quote("abc", Decimal(2)))
        tracer.provider.begin_subsegment.assert_called_once_with(name="## runner")

    def test_a_runner_whose_codec_is_something_else(self) -> None:
        class Film:
            codec = "h264"

            def __call__(self, task: Task) -> Any:
                return task.payload

        queue = Queue.memory()
        queue.put(1)
        (fate,) = drain(queue, Film())
        assert fate.task.result == 1

    def test_every_verb_that_takes_values_encodes_them(self, codec: Packed) -> None:
        queue = Queue.memory(codec=codec)
        queue.put_many([{"payload": number, "task_id": f"t{number}"} for number in range(3)])
        assert queue.admin.check({"payload": 7}).payload == codec.encode(7)
        queue.put_many([queue.admin.check({"payload": 3, "task_id": "t3"})])
        assert [known(queue, f"t{number}").payload for number in range(4)] == [*map(codec.encode, range(4))]
        for result in "xyz":
            queue.complete(queue.claim()[0], result=result)
        assert [known(queue, f"t{number}").result for number in (3, 2, 1)] == [*map(codec.encode, "xyz")]
        assert queue.complete(queue.claim()[0]).result is None

    def test_in_a_transaction_too(self, codec: Packed, tmp_path: Path) -> None:
        queue = Queue.sql(f"sqlite:///{tmp_path}/tasks.db", codec=codec)
        queue.create_table()
        queue.put(Quote("ABC"), task_id="a")
        with queue.transaction() as held:
            assert held is not None
            held.result = Quote("abc")
        assert known(queue, "a").result == codec.encode(Quote("abc"))
        queue.close()

    def test_of_coroutines(self, codec: Packed) -> None:
        async def stored() -> Any:
            async with AsyncQueue.memory(codec=codec) as queue:
                assert queue.admin.config.codec is codec
                await queue.put(1, task_id="a")
                return await queue.get("a")

        assert asyncio.run(stored()).payload == codec.encode(1)


class TestRefused:
    def test_what_is_not_encoded_so_is_a_dead_letter(self, handlers: Handlers) -> None:
        queue = Queue.memory()
        queue.put(Quote("ABC"), kind="quote")
        (fate,) = drain(queue, handlers)
        assert (fate.outcome, fate.error) == (Outcome.FAILED, "payload: is not packed")

    def test_another_error_of_the_codec_is_tried_again(self, codec: Packed, handlers: Handlers) -> None:
        queue = Queue.memory(codec=codec)
        queue.put(Quote("ABC"), kind="quote")
        codec.down = True
        (fate,) = drain(queue, handlers)
        assert (fate.outcome, fate.error) == (Outcome.RETRIED, "ConnectionError: no dictionary")

    def test_a_result_that_cannot_be_encoded_is_a_dead_letter(self, codec: Packed) -> None:
        queue = Queue.memory(codec=codec)
        queue.put(1, task_id="a")
        (fate,) = drain(queue, lambda _task: {"found": [{1, 2}]})
        assert fate.task.status is TaskStatus.FAILURE
        assert (fate.error or "").startswith("result: not a JSON value (Object of type set is not JSON")
        assert "found[0]" in (fate.error or "")

    def test_a_payload_that_cannot_be_encoded_is_refused_with_its_place(self, codec: Packed) -> None:
        queue = Queue.memory(codec=codec)
        with refused("payload"):
            queue.put({"legs": [{}, {7: 1}]})
        with refused("tasks[1].payload"):
            queue.put_many([{"payload": 1}, {"payload": {7: 1}}])
        assert queue.stats().pending == 0

    def test_a_result_that_cannot_be_encoded_settles_nothing(self, codec: Packed) -> None:
        queue = Queue.memory(codec=codec)
        queue.put(1, task_id="a")
        claims = queue.claim()
        with refused("result"):
            queue.complete(claims[0], result={7: 1})
        assert known(queue, "a").status is TaskStatus.TAKEN

    def test_handlers_that_could_not_read_the_queue_are_refused(self, codec: Packed) -> None:
        queue = Queue.memory(codec=codec)
        with refused("codec"):
            Worker(queue, Handlers())
        with refused("codec"):
            drain(queue, Handlers())

    @pytest.mark.parametrize("codec", [None, "json", JsonCodec])
    def test_what_is_no_codec(self, codec: Any) -> None:
        with refused("codec"):
            Queue.memory(codec=codec)
        with refused("codec"):
            Handlers(codec=codec)


class TestKinds:
    @pytest.mark.parametrize("with_codec", [False, True])
    def test_a_payload_that_does_not_fit_is_refused_at_the_put(
        self,
        codec: Packed,
        with_codec: bool,
    ) -> None:
        handlers = Handlers(codec=codec) if with_codec else Handlers()
        queue = Queue.memory(kinds=handlers)
        handlers.on("quote")(lambda _task, _payload: None)

        @handlers.on("typed")
        def typed(_task: Task, _payload: Quote) -> None: ...

        @handlers.on("ping")
        def ping(_task: Task) -> None: ...

        for arguments, message in (
            ({"payload": {"limit": 1}, "kind": "typed"}, r"^payload\.symbol: field required$"),
            ({"payload": Quote("ABC"), "kind": "type"}, r"^kind: no handler for 'type'; there are ping, "),
            ({"payload": 1}, r"^kind: no handler for None"),
        ):
            with pytest.raises(ValueError, match=message):
                queue.put(**arguments)
            with pytest.raises(ValueError, match=message):
                queue.admin.check(arguments)
            with pytest.raises(ValueError, match=message.replace("^", r"^tasks\[1\]\.")):
                queue.put_many([{"payload": None, "kind": "ping"}, arguments])
        assert queue.stats().pending == 0
        queue.put({"symbol": "ABC", "limit": "1.5"}, kind="typed")
        queue.put({"anything": 1}, kind="quote")
        assert [fate.outcome for fate in drain(queue, handlers)] == [Outcome.SUCCEEDED] * 2

    def test_the_codec_is_that_of_the_handlers_unless_there_is_another(
        self, codec: Packed, handlers: Handlers
    ) -> None:
        assert Queue.memory(kinds=handlers).admin.config.codec is codec
        other = Packed()
        assert Queue.memory(kinds=handlers, codec=other).admin.config.codec is other

    def test_errors_are_no_refusals_of_the_queue(self, handlers: Handlers) -> None:
        queue = Queue.memory(kinds=handlers)
        with pytest.raises(ValueError, match="kind") as raised:
            queue.put(1)
        assert not isinstance(raised.value, FreshqError | PutIncomplete)

    def test_what_has_no_kinds_is_refused(self) -> None:
        wrong: Any = len
        with pytest.raises(ValueError, match="kinds"):
            Queue.memory(kinds=wrong)


@dataclass
class Limit:
    kind: Literal["limit"]
    legs: list[Decimal]


@dataclass
class Market:
    kind: Literal["market"]


Order = Annotated[Limit | Market, Field(discriminator="kind")]


class TestTypes:
    @pytest.mark.parametrize(
        ("kind", "stored", "path", "problem"),
        [
            (Quote, {"limit": 1}, ("symbol",), "field required"),
            (int, "x", (), "input should be a valid integer, unable to parse string as an integer"),
            (Order, {"kind": "s3cr3t"}, (), "the tag must be one of 'limit', 'market'"),
            (
                Order,
                {"kind": "limit", "legs": [1, "s3cr3t"]},
                ("limit", "legs", 1),
                "input should be a valid decimal",
            ),
        ],
    )
    def test_what_does_not_fit_is_said_without_the_value(
        self, kind: Any, stored: Any, path: tuple[str | int, ...], problem: str
    ) -> None:
        with pytest.raises(DoesNotFit) as raised:
            JsonCodec().decoder(kind)(stored)
        assert (raised.value.path, raised.value.problem) == (path, problem)
        place = ".".join(map(str, path))
        assert str(raised.value) == (f"{place}: {problem}" if path else problem)

    def test_what_fits_has_its_type(self) -> None:
        found = JsonCodec().decoder(Order)({"kind": "limit", "legs": ["1.5"]})
        assert found == Limit("limit", [Decimal("1.5")])


class ByPydantic(JsonCodec):
    """Lets the errors of pydantic pass, whose texts print the value."""

    def encode(self, value: Any) -> Any:
        return TypeAdapter(dict[str, int]).validate_python(value) if isinstance(value, dict) else value

    def decoder(self, annotation: Any) -> Callable[[Any], Any]:
        decode: Callable[[Any], Any] = TypeAdapter(annotation).validate_python
        return decode


class TestErrorsOfPydantic:
    SECRET = "s3cr3t-payload"

    def test_a_payload_is_neither_in_the_error_nor_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("DEBUG")
        codec = ByPydantic()
        handlers = Handlers(codec=codec)

        @handlers.on("count")
        def count(_task: Task, payload: int) -> int:
            return payload

        queue = Queue.memory(codec=codec)
        queue.put(self.SECRET, task_id="a", kind="count")
        (fate,) = drain(queue, handlers)
        assert fate.outcome is Outcome.FAILED
        problem = "payload: input should be a valid integer, unable to parse string as an integer"
        assert known(queue, "a").error == problem
        with refused("payload") as raised:
            handlers.check("count", self.SECRET)
        assert self.SECRET not in str(raised.value)
        assert self.SECRET not in caplog.text

    def test_a_put_names_the_field_alone(self) -> None:
        queue = Queue.memory(codec=ByPydantic())
        with refused("payload.n") as raised:
            queue.put({"n": self.SECRET})
        assert self.SECRET not in "".join(traceback.format_exception(raised.value))
