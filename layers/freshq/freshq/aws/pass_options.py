"""Options of worker passes, in the form in which they are stored beside the queue's."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from freshq.errors import RefusedError, StoreError, quoted
from freshq.model.pass_options import STACK_RECORD, PassOptions
from freshq.model.validation import problem_of
from freshq.stores.dynamodb.calls import TableCalls
from freshq.stores.dynamodb.items import record_id, record_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.queue.base import BaseQueue
    from freshq.stores.dynamodb.schema import Names

logger = logging.getLogger(__name__)
# A change counts in every function after this time at most; a read of the record costs half a unit.
FRESH_SECONDS: Final = 5.0


def parse_pass_options(values: Mapping[str, Any]) -> PassOptions:
    """Return the options of passes from their stored values.

    Raises:
        ValueError: If a value is wrong; names the first.
    """
    try:
        return PassOptions.model_validate(values)
    except ValidationError as error:
        problem = problem_of(error)
        name = ".".join(map(str, problem.path))
        msg = f"{name}: {problem.reason}; change it with freshq configure --stack"
        raise ValueError(msg) from None


def stored_pass_options(queue: BaseQueue) -> dict[str, Any]:
    """Return the options of the passes that are stored with a queue, by name."""
    from freshq.queue.core import core_of

    record = core_of(queue).store.read_record(queue.name, STACK_RECORD)
    return {} if record is None else dict(record.values)


def store_pass_options(queue: BaseQueue, options: Mapping[str, Any], *, forget: bool = False) -> None:
    """Store options of the passes with a queue; other stored options are kept, unless they are forgotten.

    Raises:
        ValueError: If an option is wrong; nothing was written.
        RefusedError: If other processes changed them during every attempt.
    """
    # The trigger starts without these.
    from freshq.queue.core import core_of
    from freshq.queue.shared.measures import change_record

    def changed(values: Mapping[str, Any]) -> dict[str, Any]:
        merged = dict(options) if forget else {**values, **options}
        parse_pass_options(merged)
        return merged

    changed(stored_pass_options(queue))
    if not change_record(core_of(queue).store, queue.name, STACK_RECORD, changed):
        msg = f"queue {quoted(queue.name)}: other processes changed its options; try again"
        raise RefusedError(msg)


def configure_stack(queue: BaseQueue, *, forget: bool = False, **options: Any) -> None:
    """Store options of a stack's queue and of its worker passes, by name.

    Args:
        queue: The queue.
        forget: Forget the options stored before, except the number of shards.
        **options: The options.

    Raises:
        ValueError: If an option is wrong; nothing was written.
        RefusedError: If other processes changed the options during every attempt.
    """
    of_passes = {name: value for name, value in options.items() if name in PassOptions.model_fields}
    of_queue: Any = {name: value for name, value in options.items() if name not in of_passes}
    parse_pass_options(of_passes)
    if of_queue or forget:
        queue.configure(forget=forget, **of_queue)
    if of_passes or forget:
        store_pass_options(queue, of_passes, forget=forget)


class StoredPassOptions:
    """Reads the options of a queue's passes, and keeps them for `FRESH_SECONDS`. Thread-safe."""

    def __init__(
        self,
        table: str,
        queue: str,
        client: DynamoDBClient,
        names: Names | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read from a table.

        Args:
            table: Name of the table.
            queue: Name of the queue.
            client: A low-level boto3 client.
            names: The names in an attached table; None for a table of freshq's own.
            monotonic: Returns a time in seconds that never goes back.
        """
        self._calls = TableCalls(client, table, names)
        self._queue = queue
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._read: tuple[float, PassOptions] | None = None

    def current(self) -> PassOptions:
        """Return the options, at most `FRESH_SECONDS` old.

        Raises:
            StoreError: If DynamoDB did not answer.
            ValueError: If a stored option is wrong.
        """
        with self._lock:
            now = self._monotonic()
            if self._read is None or now - self._read[0] >= FRESH_SECONDS:
                self._read = (now, self._parsed())
            return self._read[1]

    def _parsed(self) -> PassOptions:
        item = self._calls.get(record_id(self._queue, STACK_RECORD))
        return parse_pass_options({} if item is None else record_values(item))

    @contextmanager
    def watched(self, options: PassOptions, on_change: Callable[[], None]) -> Iterator[None]:
        """Call `on_change` if the stored options differ from these, once, during a `with` block."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(FRESH_SECONDS):
                try:
                    changed = self.current() != options
                except (StoreError, ValueError):
                    # The pass continues with the options it knows, and the next one reads again.
                    logger.warning("the options of the passes could not be read", exc_info=True)
                    continue
                if changed:
                    logger.info("the options of the passes changed: this pass ends")
                    on_change()
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
