"""The base of every queue: all verbs, and how a queue is opened and closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from freshq.model.options import QueueOptions, parse_options
from freshq.queue.admin import Admin, Reading, Tending
from freshq.queue.claim import Claiming
from freshq.queue.core import Core
from freshq.queue.put import Putting
from freshq.queue.settle import Settling

if TYPE_CHECKING:
    from typing import Self, Unpack

    from freshq.stores.base import Store


class BaseQueue(Reading, Tending, Settling, Claiming, Putting):
    """A queue of tasks that lose value with age, on any store. Thread-safe.

    Invalid arguments raise ValueError before any write. A store that does not answer raises StoreError; it
    never looks like an empty queue.

    Attributes:
        name: Name of the queue.
        admin: What operators, workers and functions call.
    """

    _core_class: ClassVar[type[Core]] = Core

    def __init__(self, store: Store, **options: Unpack[QueueOptions]) -> None:
        """Use a store.

        Args:
            store: Home of the tasks.
            **options: See `freshq.model.options.QueueConfig`.

        Raises:
            ValueError: If an option is wrong.
        """
        core = self._core_class(store, parse_options(options))
        super().__init__(core)
        self.admin: Admin = Admin(core)

    def create_table(self) -> None:
        """Create the tables that the store needs, unless they exist; return once they can be used."""
        self._core.store.create_table()

    def close(self) -> None:
        """Flush, and close the connections of this process. Its leases stay valid.

        Later verbs raise RefusedError; a second `close` does nothing. `with queue:` closes it at the end.
        """
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
