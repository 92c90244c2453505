"""`AsyncQueue`: it has the verbs of `Queue`, holds up no loop, and loses no claim when it is cancelled."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from freshq import AsyncQueue, AttachedQueue, Busy, MatchQueue, Queue, Task, TaskStatus
from freshq.errors import RefusedError, StoreError
from freshq.matching import AsyncMatchAdmin, AsyncMatchQueue, MatchAdmin
from freshq.queue import AsyncAdmin, AsyncAttachedQueue, AsyncRecords
from freshq.queue.admin import Admin
from freshq.queue.attached import AttachedStore, Records
from freshq.queue.core import core_of
from freshq.stores.dynamodb.batches import each_in_threads
from freshq.stores.lines import Choice, ClaimRequest
from freshq.stores.memory import MemoryStore
from freshq.stores.threads import Threads
from freshq.testing import FaultyStore
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, known, payloads
from tests.support.refusals import refused
from tests.support.statements import database_of

TWINS = [
    (AttachedQueue, AsyncAttachedQueue), (Admin, AsyncAdmin), (Records, AsyncRecords),
    (MatchQueue, AsyncMatchQueue), (MatchAdmin, AsyncMatchAdmin),
]  # fmt: skip


def public(kind: type) -> set[str]:
    """Return the public names of a class. Names that mutation testing adds are not ASCII."""
    return {name for name in dir(kind) if name.isascii() and not name.startswith("_")}


class HeldStore(MemoryStore):
    """A store whose claims wait until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.claiming = threading.Event()
        self.may_go_on = threading.Event()

    def take(self, request: ClaimRequest, choice: Choice) -> list[Task]:
        self.claiming.set()
        assert self.may_go_on.wait(PATIENCE_SECONDS)
        return super().take(request, choice)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class TestVerbs:
    @pytest.mark.parametrize(("own", "ours"), TWINS)
    def test_each_verb_is_the_one_of_its_name_with_its_arguments(self, own: type, ours: type) -> None:
        for name in public(own) - {"paused", "config"}:
            assert list(inspect.signature(getattr(ours, name)).parameters.values()) == list(
                inspect.signature(getattr(own, name)).parameters.values()
            ), name
        openers = {"memory", "sql", "dynamodb"}
        assert public(ours) - openers == public(own) - openers

    def test_name_and_options_are_not_awaited(self) -> None:
        queue = AsyncQueue.memory(name="mail", max_age_seconds=7, lease_seconds=3)
        assert queue.name == queue.admin.name == "mail"
        assert queue.admin.config is queue.queue.admin.config

    def test_only_a_queue_and_a_number_of_threads_will_do(self) -> None:
        with refused("queue"):
            AsyncQueue("sqlite://")  # type: ignore[arg-type]  # the mistake under test
        with refused("max_threads"):
            AsyncQueue(Queue.memory(), max_threads=0)

    def test_a_queue_of_records_will_do(self) -> None:
        records = AttachedQueue(cast("AttachedStore", MemoryStore()))
        assert AsyncAttachedQueue(records).queue is records
        with refused("max_threads"):
            AsyncAttachedQueue(records, max_threads=0)


class TestUse:
    async def _life(self, queue: AsyncQueue) -> TaskStatus:
        async with queue:
            await queue.create_table()
            await queue.put("work", task_id="a")
            (claim,) = await queue.claim(wait_seconds=None)
            await queue.complete(claim, result=42)
            return (await queue.wait("a", timeout_seconds=5)).status

    def test_it_is_opened_like_a_queue(self, tmp_path: Path) -> None:
        assert asyncio.run(self._life(AsyncQueue.memory())) is TaskStatus.SUCCESS
        assert asyncio.run(self._life(AsyncQueue.sql(f"sqlite:///{tmp_path}/tasks.db"))) is TaskStatus.SUCCESS

    def test_many_calls_at_a_time_share_a_few_threads(self) -> None:
        async def put_all() -> set[str]:
            async with AsyncQueue(Queue.memory(), max_threads=3) as queue:
                await asyncio.gather(*(queue.put(number) for number in range(200)))
                assert (await queue.stats()).pending == 200
                return {each.name for each in threading.enumerate() if each.name.startswith("freshq-async")}

        assert 1 <= len(asyncio.run(put_all())) <= 3

    def test_many_that_wait_leave_threads_for_the_others(self) -> None:
        async def wait_and_put() -> list[object]:
            async with AsyncQueue(Queue.memory(), max_threads=1) as queue, asyncio.timeout(PATIENCE_SECONDS):
                polls = [asyncio.create_task(queue.claim(wait_seconds=None)) for _ in range(20)]
                for number in range(20):
                    await queue.put(number)
                return [claim.task.payload for claims in await asyncio.gather(*polls) for claim in claims]

        assert sorted(map(int, map(str, asyncio.run(wait_and_put())))) == list(range(20))

    def test_a_poll_ends_with_a_put_of_this_process(self, tmp_path: Path) -> None:
        async def poll_and_put() -> list[object]:
            async with AsyncQueue.sql(f"sqlite:///{tmp_path}/tasks.db") as queue:
                await queue.create_table()
                poll = asyncio.create_task(queue.claim(wait_seconds=None))
                await asyncio.sleep(0.05)
                await queue.put("new")
                async with asyncio.timeout(PATIENCE_SECONDS):
                    return payloads(await poll)

        assert asyncio.run(poll_and_put()) == ["new"]

    def test_the_context_variables_of_the_caller_are_those_of_the_call(self) -> None:
        variable = contextvars.ContextVar("variable", default="none")
        seen: list[str] = []

        def clock() -> float:
            seen.append(variable.get())
            return 1_700_000_000.0

        async def put() -> None:
            async with AsyncQueue.memory(clock=clock) as queue:
                variable.set("mine")
                await queue.put("work")

        asyncio.run(put())
        assert "mine" in seen

    def test_a_closed_queue_refuses_verbs(self) -> None:
        async def use_twice() -> None:
            async with AsyncQueue.memory() as queue:
                await queue.put("work")
            await queue.close()  # no error
            await queue.stats()

        with pytest.raises(RefusedError):
            asyncio.run(use_twice())


class TestCancelling:
    @pytest.mark.parametrize("wait_seconds", [0, None])
    def test_what_a_cancelled_claim_took_is_released(self, wait_seconds: float | None) -> None:
        async def cancel() -> tuple[dict[str, int], int]:
            store = HeldStore()
            async with AsyncQueue(Queue(store)) as queue:
                await queue.put("work", task_id="a")
                claim = asyncio.create_task(queue.claim(wait_seconds=wait_seconds))
                await until(store.claiming.is_set)
                await cancelled(claim)
                store.may_go_on.set()
            left = Queue(store)
            return counts(left.stats()), known(left, "a").attempts

        assert asyncio.run(cancel()) == ({"pending": 1}, 0)

    def test_a_claim_that_is_over_when_it_is_cancelled_is_released_too(self) -> None:
        async def cancel() -> dict[str, int]:
            store = MemoryStore()
            async with AsyncQueue(Queue(store)) as queue:
                await queue.put("work")
                claim = asyncio.create_task(queue.claim())
                await asyncio.sleep(0)
                while not queue.queue.stats().taken:  # the blocked loop cannot see that the call has ended
                    pass
                await cancelled(claim)
            return counts(Queue(store).stats())

        assert asyncio.run(cancel()) == {"pending": 1}

    def test_a_claim_that_did_not_begin_takes_nothing(self) -> None:
        async def cancel() -> tuple[dict[str, int], int]:
            store = HeldStore()
            async with AsyncQueue(Queue(store), max_threads=1) as queue:
                await queue.put("work")
                first = asyncio.create_task(queue.claim())
                await until(store.claiming.is_set)
                second = asyncio.create_task(queue.claim())
                await asyncio.sleep(0)
                await cancelled(second)
                store.may_go_on.set()
                claims = await first
            return counts(Queue(store).stats()), len(claims)

        assert asyncio.run(cancel()) == ({"taken": 1}, 1)

    def test_a_release_that_fails_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        async def cancel() -> None:
            store = HeldStore()
            faulty = FaultyStore(store)
            async with AsyncQueue(faulty.queue()) as queue:
                await queue.put("work", task_id="a")
                claim = asyncio.create_task(queue.claim())
                await until(store.claiming.is_set)
                await cancelled(claim)
                with faulty.down():
                    store.may_go_on.set()
                    await until(lambda: "stays TAKEN" in caplog.text)

        asyncio.run(cancel())
        assert "task a stays TAKEN until its lease expires" in caplog.text

    def test_what_cannot_be_undone_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        began, may_go_on = threading.Event(), threading.Event()

        def call() -> int:
            began.set()
            assert may_go_on.wait(PATIENCE_SECONDS)
            return 1

        def undo(_answer: int) -> None:
            raise KeyError("broken")

        async def cancel() -> None:
            threads = Threads(1, "test")
            task = asyncio.create_task(threads.run(call, undo))
            await until(began.is_set)
            await cancelled(task)
            may_go_on.set()
            await until(lambda: bool(caplog.records))
            await threads.finish()

        asyncio.run(cancel())
        assert caplog.messages == ["could not undo a call that is no longer awaited"]

    def test_the_end_of_the_program_waits_for_what_was_cancelled(self) -> None:
        store = HeldStore()
        queue = Queue(store)
        queue.put("work")

        async def program() -> None:
            async with AsyncQueue(queue) as async_queue, asyncio.TaskGroup() as group:
                group.create_task(async_queue.claim())
                await until(store.claiming.is_set)
                threading.Timer(0.05, store.may_go_on.set).start()
                raise KeyError("the program fails")

        with pytest.raises(BaseExceptionGroup):
            asyncio.run(program())
        assert counts(Queue(store).stats()) == {"pending": 1}


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """Return a database with a queue and a table of orders."""
    url = f"sqlite:///{tmp_path}/tasks.db"
    Queue.sql(url).create_table()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (id TEXT)"))
    engine.dispose()
    return url


def insert(connection: sa.Connection) -> None:
    connection.execute(sa.text("INSERT INTO orders VALUES ('7')"))


async def standing(queue: AsyncQueue) -> tuple[dict[str, int], int, int]:
    """Return the tasks by status, the attempts of the only one, and the number of orders."""
    task = await queue.get("a")
    assert task is not None
    async with queue.transaction() as held:
        assert held is None
    engine = sa.create_engine(str(database_of(queue.queue).engine.url))
    with engine.connect() as connection:
        orders = connection.execute(sa.text("SELECT count(*) FROM orders")).scalar_one()
    engine.dispose()
    return counts(await queue.stats()), task.attempts, orders


class TestTransaction:
    def _after(
        self, url: str, work: Callable[[AsyncQueue], Awaitable[None]]
    ) -> tuple[dict[str, int], int, int]:
        """Return what stands after some work on a task, with claims paused for a last look."""

        async def run() -> tuple[dict[str, int], int, int]:
            async with AsyncQueue.sql(url) as queue:
                await queue.put("work", task_id="a")
                await work(queue)
                await queue.pause()
                return await standing(queue)

        return asyncio.run(run())

    def test_its_writes_and_the_task_are_committed_together(self, orders: str) -> None:
        async def work(queue: AsyncQueue) -> None:
            async with queue.transaction() as held:
                assert held is not None
                await held.run(insert)
                thread = await held.run(lambda _connection: threading.current_thread().name)
                assert thread.startswith("freshq-held")  # not one that may wait for a connection
                held.result = held.task.payload
                assert held.result == "work"

        assert self._after(orders, work) == ({"success": 1}, 1, 1)

    def test_an_error_undoes_the_writes_and_counts_the_attempt(self, orders: str) -> None:
        async def work(queue: AsyncQueue) -> None:
            async def fail() -> None:
                async with queue.transaction() as held:
                    assert held is not None
                    await held.run(insert)
                    raise KeyError("broken")

            with pytest.raises(KeyError):
                await fail()
            assert "broken" in (core_of(queue.queue).found("a").error or "")

        standing, attempts, orders_made = self._after(orders, work)
        assert sum(standing.values()) == 1
        assert (attempts, orders_made) == (1, 0)

    def test_cancelled_it_is_as_if_it_had_not_begun(self, orders: str) -> None:
        async def work(queue: AsyncQueue) -> None:
            inside = asyncio.Event()

            async def hold() -> None:
                async with queue.transaction() as held:
                    assert held is not None
                    await held.run(insert)
                    inside.set()
                    await asyncio.sleep(PATIENCE_SECONDS)

            task = asyncio.create_task(hold())
            await inside.wait()
            await cancelled(task)

        assert self._after(orders, work) == ({"pending": 1}, 0, 0)

    def test_cancelled_while_it_writes_it_waits_for_the_write(self, orders: str) -> None:
        writing, may_go_on = threading.Event(), threading.Event()

        def slowly(connection: sa.Connection) -> None:
            writing.set()
            assert may_go_on.wait(PATIENCE_SECONDS)
            insert(connection)

        async def work(queue: AsyncQueue) -> None:
            async def hold() -> None:
                async with queue.transaction() as held:
                    assert held is not None
                    await held.run(slowly)

            task = asyncio.create_task(hold())
            await until(writing.is_set)
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
            may_go_on.set()
            await cancelled(task)

        assert self._after(orders, work) == ({"pending": 1}, 0, 0)

    def test_a_block_that_fails_in_the_way_it_says_raises_nothing(self, orders: str) -> None:
        async def work(queue: AsyncQueue) -> None:
            async with queue.transaction():
                raise Busy

        assert self._after(orders, work) == ({"pending": 1}, 0, 0)


class TestShortageOfThreads:
    """The system starts no more threads than a test allows."""

    @pytest.fixture(autouse=True, params=[0, 1])
    def allowed(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[None]:
        """Have threads start while there is an entry in the list, which each takes."""
        start, allowed = threading.Thread.start, [None] * int(request.param)

        def start_if_allowed(thread: threading.Thread) -> None:
            if not allowed:
                raise RuntimeError("can't start new thread")
            allowed.pop()
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_if_allowed)
        return allowed

    def test_a_verb_waits_for_a_thread_or_changes_nothing(self, allowed: list[None]) -> None:
        async_queue, has_thread = AsyncQueue.memory(), bool(allowed)

        async def program() -> tuple[int, list[Any]]:
            puts = [async_queue.put("work", task_id=name) for name in "abc"]
            answers = await asyncio.gather(*puts, return_exceptions=True)
            allowed.extend([None] * 3)
            async with async_queue:
                return (await async_queue.stats()).pending, answers

        pending, answers = asyncio.run(program())
        assert pending == (3 if has_thread else 0)
        for answer in () if has_thread else answers:
            assert isinstance(answer, StoreError)
            assert "can't start new thread" in str(answer)

    def test_calls_of_the_store_on_dynamodb_are_all_made(self) -> None:
        def call(number: int) -> int:
            if number == 3:
                raise KeyError(number)
            return 2 * number

        assert each_in_threads(call, [0, 1, 2]) == [0, 2, 4]
        with pytest.raises(KeyError):
            each_in_threads(call, range(5))

    def test_an_interrupt_ends_the_calls_of_the_store(self, allowed: list[None]) -> None:
        allowed.clear()
        made = []

        def call(number: int) -> None:
            made.append(number)
            if number == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            each_in_threads(call, range(100))
        assert made == [0, 1, 2, 3]
