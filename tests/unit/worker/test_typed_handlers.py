"""Handlers that put what their functions take, run inside middleware, and get arguments by type."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, assert_type

import pytest

from freshq import AsyncQueue, Backoff, Handlers, Queue, Reject, Retry, Task, TaskStatus
from freshq.errors import PutIncomplete, RefusedError, WaitTimeout
from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.testing import ManualClock, drain, make_task
from freshq.worker.handlers import Handler, PutOptions
from tests.support.readings import known
from tests.support.refusals import refused


@dataclass
class Quote:
    symbol: str


@dataclass
class Price:
    amount: int


class Half(Random):
    """Draws the middle."""

    def random(self) -> float:
        return 0.5


class Session:
    """Middleware that records its calls."""

    def __init__(self) -> None:
        self.log: list[str] = []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> Queue:
    return Queue.memory(clock=clock, max_attempts=9)


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def quote(handlers: Handlers) -> Handler[Quote, Price]:
    @handlers.on("quote")
    def quote(task: Task[Quote], payload: Quote) -> Price:
        assert task.payload == payload
        return Price(len(payload.symbol))

    return quote


class TestPut:
    def test_a_receipt_waits_for_the_result(
        self, quote: Handler[Quote, Price], queue: Queue, handlers: Handlers
    ) -> None:
        receipt = quote.put(queue, Quote("ABC"), group="desk-1", task_id="a")
        assert [(fate.task.group, fate.task.kind) for fate in drain(queue, handlers)] == [("desk-1", "quote")]
        assert receipt.task_id == "a"
        assert assert_type(receipt.wait(queue), Price) == Price(3)

    def test_several(self, quote: Handler[Quote, Price], queue: Queue, handlers: Handlers) -> None:
        receipts = quote.put_many(queue, [Quote("A"), Quote("AB")], priority=3)
        assert {fate.task.priority for fate in drain(queue, handlers)} == {3}
        assert [receipt.wait(queue) for receipt in receipts] == [Price(1), Price(2)]

    def test_coroutines_wait_too(
        self, quote: Handler[Quote, Price], queue: Queue, handlers: Handlers
    ) -> None:
        async def run() -> list[Price]:
            async with AsyncQueue(queue) as coroutines:
                receipts = [
                    await quote.put(coroutines, Quote("ABCD")),
                    *await quote.put_many(coroutines, [Quote("A")]),
                ]
                drain(queue, handlers)
                return [await receipt.wait(coroutines, timeout_seconds=5) for receipt in receipts]

        assert asyncio.run(run()) == [Price(4), Price(1)]

    def test_a_kind_has_defaults_that_a_put_may_replace(self, queue: Queue) -> None:
        handlers = Handlers()

        @handlers.on("bid", value=40, max_age_seconds=2, priority=3, group="market", decay="linear")
        def bid(_task: Task) -> None: ...

        receipts = [bid.put(queue, None), bid.put(queue, None, value=7, group=None)]
        receipts += bid.put_many(queue, [None], priority=0)
        first, second, third = (known(queue, receipt.task_id) for receipt in receipts)
        assert (first.value, first.decay, first.priority, first.group) == (40, "linear", 3, "market")
        assert (second.value, second.decay, second.priority, second.group) == (7, "linear", 3, None)
        assert (third.value, third.priority) == (40, 0)
        assert third.deadline == pytest.approx(third.created + 2)

    @pytest.mark.parametrize(
        ("defaults", "named"),
        [
            ({"value": 0}, "value"),
            ({"priority": 10}, "priority"),
            ({"decay": "fast"}, "decay"),
            ({"max_age_seconds": -1}, "max_age_seconds"),
            ({"task_id": "a"}, "task_id: has no default"),
            ({"delay_seconds": 1}, "delay_seconds: has no default"),
        ],
    )
    def test_a_wrong_default_is_refused_at_the_registration(
        self, defaults: dict[str, Any], named: str
    ) -> None:
        with pytest.raises(ValueError, match=named):
            Handlers().on("bid", **defaults)

    @pytest.mark.parametrize(
        ("put", "names"),
        [
            (lambda quote, queue: quote.put(queue, {"symbol": 7}), "payload.symbol"),
            (lambda quote, queue: quote.put(queue, {1, 2}), "payload"),
            (lambda quote, queue: quote.put_many(queue, [Quote("A"), None]), "payloads[1]"),
            (lambda quote, queue: quote.put_many(queue, [Quote("A")], task_id="a"), "task_id"),
            (lambda quote, queue: quote.put(queue, Quote("A"), priority=10), "priority"),
        ],
    )
    def test_what_does_not_fit_is_not_put(
        self, quote: Handler[Quote, Price], queue: Queue, put: Callable[..., object], names: str
    ) -> None:
        with refused(names):
            put(quote, queue)
        assert queue.stats().pending == 0

    def test_a_task_without_a_result_says_how_it_ended(self, handlers: Handlers, queue: Queue) -> None:
        @handlers.on("never")
        def never(_task: Task) -> None:
            raise Reject("no such share")

        receipt = never.put(queue, None)
        with pytest.raises(WaitTimeout):
            receipt.wait(queue, timeout_seconds=0)
        drain(queue, handlers)
        with pytest.raises(RefusedError, match="no such share") as refused:
            receipt.wait(queue)
        assert (refused.value.task_id, refused.value.status) == (receipt.task_id, TaskStatus.FAILURE)

    def test_refused_tasks_raise_as_the_queue_does(
        self, quote: Handler[Quote, Price], clock: ManualClock
    ) -> None:
        full = Queue.memory(clock=clock, backlog=BacklogLimit(1, WhenFull.REFUSE_NEWEST))
        quote.put(full, Quote("A"))
        with pytest.raises(PutIncomplete):
            quote.put_many(full, [Quote("B"), Quote("C")])

    def test_its_options_are_those_of_put(self) -> None:
        of_put = inspect.signature(Queue.put).parameters.keys()
        assert {*PutOptions.__annotations__, "self", "payload", "kind"} == of_put


class TestPayloadOfTheTask:
    def test_one_parameter_is_enough(self, handlers: Handlers, queue: Queue) -> None:
        @handlers.on("quote")
        def quote(task: Task[Quote]) -> str:
            task.progress(0.5)
            return task.payload.symbol

        quote.put(queue, Quote("ABC"))
        (fate,) = drain(queue, handlers)
        assert (fate.task.result, fate.task.payload) == ("ABC", {"symbol": "ABC"})
        assert fate.task.progress_fraction == 0.5

    def test_two_types_contradict_each_other(self, handlers: Handlers) -> None:
        def quote(_task: Task[Quote], _payload: Price) -> None: ...

        with pytest.raises(ValueError, match="two types of payload"):
            handlers.on("quote")(quote)


class TestCall:
    def test_it_runs_as_a_worker_runs_it(self, quote: Handler[Quote, Price]) -> None:
        assert quote.call(Quote("AB")) == Price(2)

    def test_a_call_of_it_calls_the_function(self, handlers: Handlers) -> None:
        @handlers.on("count")
        def count(_task: Task, payload: int) -> int:
            return payload + 1

        assert count(make_task(), 4) == 5

    def test_it_has_the_task_that_it_is_given(self, handlers: Handlers) -> None:
        @handlers.on("group")
        def group(task: Task[Quote]) -> tuple[str, str | None]:
            task.progress(1, "all")
            return task.payload.symbol, task.group

        assert group.call(Quote("A"), make_task(group="desk")) == ("A", "desk")

    def test_an_async_function_runs_to_its_end(self, handlers: Handlers) -> None:
        @handlers.on("double")
        async def double(_task: Task, payload: int) -> int:
            await asyncio.sleep(0)
            return 2 * payload

        assert assert_type(double.call(4), int) == 8

    def test_what_does_not_fit_is_refused(self, quote: Handler[Quote, Price]) -> None:
        with refused("payload"):
            quote.call("ABC")  # type: ignore[arg-type]  # the wrong type is the point

    def test_type_checkers_know_the_payload(self, quote: Handler[Quote, Price], queue: Queue) -> None:
        """Type checking fails on an ignore that ignores nothing."""
        for put in (
            lambda: quote.put(queue, "ABC"),  # type: ignore[call-overload]  # a string is not a Quote
            lambda: quote.put_many(queue, ["ABC"]),  # type: ignore[list-item]  # likewise
            lambda: quote.put(queue, Quote("A"), grp="desk"),  # type: ignore[call-overload]  # group
        ):
            with pytest.raises((ValueError, TypeError)):
                put()

    def test_a_function_may_serve_two_kinds(self, handlers: Handlers) -> None:
        @handlers.on("a")
        @handlers.on("b")
        def length(_task: Task, payload: str) -> int:
            return len(payload)

        assert (length.kind, length.call("abc")) == ("a", 3)
        assert handlers(make_task("ab", kind="b")) == 2


class TestMiddleware:
    def test_it_runs_around_the_function(self, queue: Queue) -> None:
        log: list[object] = []

        def outer(call: Callable[[], Any], task: Task) -> Any:
            log.append(f"outer {task.kind}")
            return call()

        def inner(call: Callable[[], Any], _task: Task) -> Any:
            try:
                return call()
            finally:
                log.append("inner")

        handlers = Handlers(middleware=[outer, inner])
        handlers.on("ping")(lambda _task: log.append("run"))
        queue.put(None, kind="ping")
        drain(queue, handlers)
        assert log == ["outer ping", "run", "inner"]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_coroutines_have_it_too(self, *, is_async: bool) -> None:
        log: list[str] = []

        def passes_on(call: Callable[[], Awaitable[Any]], _task: Task) -> Any:
            return call()

        async def awaits(call: Callable[[], Awaitable[Any]], _task: Task) -> Any:
            result = await call()
            log.append("after")
            return result

        handlers = Handlers(middleware=[passes_on, awaits, passes_on])

        async def double(_task: Task, payload: int) -> int:
            return 2 * payload

        def plain(_task: Task, payload: int) -> int:
            return 2 * payload

        handler: Any = handlers.on("double")(double if is_async else plain)
        assert handler.call(4) == 8
        assert log == ["after"]

    def test_it_sees_a_payload_that_does_not_fit(self) -> None:
        seen: list[str] = []

        def around(call: Callable[[], Any], _task: Task) -> Any:
            try:
                return call()
            except Reject as reject:
                seen.append(str(reject))
                raise

        handlers = Handlers(middleware=[around])
        handlers.on("count")(_count)
        with pytest.raises(Reject):
            handlers(make_task("x", kind="count"))
        assert len(seen) == 1

    def test_it_must_be_functions(self) -> None:
        with refused("middleware"):
            Handlers(middleware=["log"])  # type: ignore[list-item]  # the wrong type is the point


def _count(_task: Task, payload: int) -> int:
    return payload


class TestProvided:
    def test_a_generator_closes_after_the_run(self) -> None:
        session = Session()

        def open_session() -> Iterator[Session]:
            session.log.append("open")
            try:
                yield session
            except Retry:
                session.log.append("rollback")
                raise
            session.log.append("commit")

        handlers = Handlers(provide={Session: open_session})

        @handlers.on("save")
        def save(_task: Task, payload: int, session: Session) -> int:
            session.log.append("run")
            if payload:
                raise Retry
            return payload

        assert save.call(0) == 0
        with pytest.raises(Retry):
            save.call(1)
        assert session.log == ["open", "run", "commit", "open", "run", "rollback"]

    def test_a_function_makes_it(self) -> None:
        handlers = Handlers(provide={Session: Session})

        @handlers.on("look")
        def look(_task: Task, payload: int, *, session: Session) -> int:
            return payload + len(session.log)

        assert look.call(7) == 7

    def test_coroutines_get_both_kinds(self) -> None:
        closed: list[str] = []

        async def open_session() -> AsyncIterator[Session]:
            yield Session()
            closed.append("session")

        async def connect() -> Quote:
            return Quote("ABC")

        handlers = Handlers(provide={Session: open_session, Quote: connect, Price: lambda: Price(7)})

        @handlers.on("all")
        async def look(
            _task: Task, payload: str, session: Session, quote: Quote, price: Price
        ) -> list[object]:
            return [payload, session.log, quote.symbol, price.amount, *closed]

        assert look.call("x") == ["x", [], "ABC", 7]
        assert closed == ["session"]

    def test_a_plain_function_cannot_await(self) -> None:
        async def connect() -> Session:
            return Session()

        def look(_task: Task, _payload: None, session: Session) -> None: ...

        with pytest.raises(ValueError, match="session"):
            Handlers(provide={Session: connect}).on("look")(look)

    def test_the_payload_comes_before_it(self) -> None:
        def look(_task: Task, session: Session) -> None: ...

        with pytest.raises(ValueError, match="provided arguments"):
            Handlers(provide={Session: Session}).on("look")(look)

    def test_its_function_takes_no_arguments(self) -> None:
        with refused("provide"):
            Handlers(provide={Session: lambda name: name})  # type: ignore[dict-item, misc]  # the point


class TestBackoff:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_handler_has_its_own(self, handlers: Handlers, clock: ManualClock, *, is_async: bool) -> None:
        queue = Queue.memory(clock=clock, rng=Half())
        fail: Any = _fails_async if is_async else _fails
        handlers.on("fails", backoff=Backoff(40, 60))(fail)
        queue.put(None, kind="fails", task_id="a")
        for delay_seconds in (20, 30):  # half of 40, half of the cap
            drain(queue, handlers)
            task = queue.get("a")
            assert task is not None
            assert task.not_before == clock.now + delay_seconds
            clock.advance(delay_seconds)

    def test_a_delay_of_the_function_counts_more(
        self, handlers: Handlers, queue: Queue, clock: ManualClock
    ) -> None:
        @handlers.on("later", backoff=Backoff(40, 60))
        def later(_task: Task) -> None:
            raise Retry(delay_seconds=7)

        later.put(queue, None, task_id="a")
        drain(queue, handlers)
        task = queue.get("a")
        assert task is not None
        assert task.not_before == clock.now + 7

    def test_it_must_be_one(self, handlers: Handlers) -> None:
        with refused("backoff"):
            handlers.on("a", backoff=2)  # type: ignore[call-overload]  # the wrong type is the point


def _fails(_task: Task) -> None:
    raise OSError


async def _fails_async(_task: Task) -> None:
    raise OSError


def test_a_type_of_payload_that_cannot_be_read_is_refused(handlers: Handlers) -> None:
    def of_missing(_task: Task, payload: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
        """Name a type that no module has."""

    def of_lock(_task: Task, payload: threading.Lock) -> None:
        """Take what no codec decodes."""

    for function in (of_missing, of_lock):
        with pytest.raises(ValueError, match="handler of 'work': the type of its payload cannot be read"):
            handlers.on("work")(function)
