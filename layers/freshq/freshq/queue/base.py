"""The base of every queue: all verbs, and how a queue is opened and closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from freshq.model.options import parse_options
from freshq.queue.admin import Admin, Operating, Reading
from freshq.queue.claim import Claiming
from freshq.queue.core import Core
from freshq.queue.hold import Holding
from freshq.queue.put import Putting
from freshq.queue.settle import Settling

if TYPE_CHECKING:
    from typing import Self, Unpack

    from freshq.model.options import QueueConfig, QueueOptions
    from freshq.stores.base import Store


class BaseQueue(Reading, Operating, Settling, Holding, Claiming, Putting):
    """A queue of tasks that lose value with age, on any store. Thread-safe.

    Invalid arguments raise ValueError before any write. A store that does not answer raises StoreError; it
    never looks like an empty queue.

    Attributes:
        name: Name of the queue.
        admin: The methods for operators, workers and functions.
    """

    _core_class: ClassVar[type[Core]] = Core

    def __init__(self, store: Store, **options: Unpack[QueueOptions]) -> None:
        """Use a store.

        Args:
            store: Home of the tasks.
            **options: See `freshq.model.options.QueueConfig`.

        Raises:
            ValueError: If an argument is wrong.
        """
        if not hasattr(store, "put_over"):
            msg = (
                f"store: must be a store, got {type(store).__name__}; to open a queue, call "
                'Queue.sql("sqlite:///tasks.db"), Queue.dynamodb("TableName") or Queue.memory()'
            )
            raise ValueError(msg)
        core = self._core_class(store, parse_options(options))
        super().__init__(core)
        self.admin: Admin = Admin(core)

    def create_table(self) -> None:
        """Create the tables that the store needs, unless they exist; return once they can be used.

        The options that this process named are stored with the queue, for every process that opens it.

        Raises:
            ValueError: If another value is stored.

        Examples:
            >>> queue = Queue.sql("sqlite:///tasks.db", max_age_seconds=60)
            >>> queue.create_table()
        """
        self._core.store.create_table()
        self._core.options.store_named()

    def configure(
        self, *, forget: bool = False, shards: int | None = None, **options: Unpack[QueueOptions]
    ) -> QueueConfig:
        """Store options with the queue; every process that uses it follows them within 5 s.

        Args:
            forget: Forget the options stored before, except the number of shards.
            shards: Partitions of the index of claimable tasks, on DynamoDB only; the number can only grow.
            **options: Any except a process's own, such as a clock. Without options nothing is written.

        Returns:
            The options that this process follows now.

        Raises:
            ValueError: If an option is wrong, does not go with the others, or belongs to a process; nothing
                was written.
            TableMissing: If the queue has no table; see `create_table`.

        Examples:
            >>> queue.configure(max_attempts=3).max_attempts
            3
        """
        changes = {**options} if shards is None else {**options, "shards": shards}
        if changes or forget:
            self._core.options.change(changes, forget=forget)
        else:
            self._core.options.refresh()
        return self._core.rules.config

    def close(self) -> None:
        """Flush, and close the connections of this process. Its leases stay valid.

        Later verbs raise RefusedError; a second `close` does nothing. `with queue:` closes it at the end.

        Examples:
            >>> queue.close()
            >>> queue.put("work")
            Traceback (most recent call last):
            freshq.errors.RefusedError: ...
        """
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def blocking_queue(queue: object, argument: str = "queue") -> BaseQueue:
    """Return a queue whose verbs block; for an AsyncQueue, the queue that it uses.

    Args:
        queue: The queue.
        argument: The name of the argument, for messages.

    Raises:
        ValueError: If it is no queue.
    """
    # Checking for the class would load asyncio, which is slow.
    own: Any = getattr(queue, "queue", queue)
    if not isinstance(own, BaseQueue):
        msg = f"{argument}: must be a queue, such as Queue.sql(...), got {type(queue).__name__}"
        raise ValueError(msg)
    return own
