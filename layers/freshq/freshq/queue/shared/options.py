"""Share the options of a queue: they are stored with it, and every process follows them."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from freshq.errors import RefusedError, StoreError, TableMissing, plain
from freshq.model.checks import checked_count
from freshq.model.options import QueueConfig, checked_options
from freshq.model.storable_options import MAX_SHARDS, QueueRules, StoredOptions, as_text
from freshq.model.validation import first_problem
from freshq.queue.shared.measures import MAX_TRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from freshq.stores.base import SharedRecord, Store

logger = logging.getLogger(__name__)
RECORD: Final = "freshq#options"
SHARDS: Final = "shards"
# A verb reads the record again after this time.
CHECK_SECONDS: Final = 4.0


class SharedOptions:
    """The options of a queue in one process: the stored ones, otherwise the named ones, otherwise defaults.

    Thread-safe. Reads nothing before the first verb.

    Attributes:
        named: The options as the process named them.
        storable: The names of the options that can be stored with this queue, in order.
        stored: The stored options as JSON values, as last read.
        check_at: Monotonic time at which a verb reads the record again.
    """

    def __init__(
        self,
        store: Store,
        named: QueueConfig,
        defaults: Mapping[str, Any],
        storable: Iterable[str],
        use: Callable[[QueueConfig], None],
    ) -> None:
        """Read nothing yet.

        Args:
            store: Home of the queue.
            named: The options that the process named.
            defaults: Where the defaults of this queue differ from other queues' defaults.
            storable: The names of the options that can be stored with this queue.
            use: Called with the options to follow, at first and after each change. Raises ValueError if the
                queue cannot follow them.
        """
        self.storable = tuple(storable)
        names = named.model_fields_set.intersection(self.storable)
        self._claims = names if store.named_shards is None else names | {SHARDS}
        # The options of a process that names none.
        fields = QueueRules.model_fields
        self._unnamed = named.model_copy(update={name: fields[name].default for name in names} | {**defaults})
        self.named = self._unnamed.model_copy(update={name: getattr(named, name) for name in names})
        self.stored: dict[str, Any] = {}
        self.check_at = -math.inf
        self._store = store
        self._use = use
        self._lock = threading.RLock()
        self._is_known = False

    def follow(self) -> None:
        """Read the stored options, and use them if they are new.

        An error ends the first call only. Later the queue keeps its current options, and tries again.
        Without a table nothing is stored.

        Raises:
            ValueError: If the process named another value than the stored one, or a stored one is wrong.
            StoreError: If the store did not answer.
        """
        is_first = not self._is_known
        if not self._lock.acquire(blocking=is_first):
            return
        try:
            if is_first and self._is_known:
                return  # another thread was first
            self._follow(self._read())
        except (StoreError, ValueError) as error:
            if is_first and isinstance(error, TableMissing):
                self._use(self.named)  # nothing is stored, and the verb reports the missing table
                return
            if is_first:
                raise
            logger.warning("queue %r: keeps its options", self.named.name, exc_info=True)
            self.check_at = time.monotonic() + CHECK_SECONDS
        finally:
            self._lock.release()

    def refresh(self) -> None:
        """Read the stored options now, and use them.

        Raises:
            ValueError: As for `follow`.
            StoreError: If the store did not answer.
        """
        with self._lock:
            self._follow(self._read())

    def store_named(self) -> None:
        """Store the named options with the queue, unless `override` is set.

        Raises:
            ValueError: If another value is stored.
            StoreError: If the store did not answer.
        """
        if self._claims and not self.named.override:
            values = self.named.model_dump(mode="json", include=set(self._claims))
            if SHARDS in self._claims:
                values[SHARDS] = self._store.named_shards
            self._change(lambda stored: {**values, **stored})

    def source(self, name: str) -> str:
        """Return where the value of an option comes from in this process, as last read."""
        if name in self._claims and (self.named.override or name not in self.stored):
            return "named"
        return "stored" if name in self.stored else "default"

    def change(self, options: Mapping[str, Any], *, forget: bool) -> None:
        """Store options with the queue, and use them.

        Args:
            options: The options by name.
            forget: Whether to forget the options stored before. The number of shards is kept.

        Raises:
            ValueError: If an option is wrong, or cannot be stored with this queue; nothing was written.
            RefusedError: If other processes changed the options at each try.
            StoreError: If the store did not answer.
        """
        values = self._checked(options)
        named = self._claims
        # Options that this queue stores do not contradict the options that it named.
        self._claims = named - values.keys()

        def changed(stored: Mapping[str, Any]) -> dict[str, Any]:
            kept = {name: stored[name] for name in stored if name == SHARDS or not forget}
            shards = max(kept.get(SHARDS, 1), self._store.shards or 1)
            if values.get(SHARDS, shards) < shards:
                msg = f"shards: can only grow, from {shards}: claims would never find the tasks in the others"
                raise ValueError(msg)
            new = {**kept, **values}
            self._over(self._unnamed, self._parsed(new)).rules()
            return new

        try:
            self._change(changed)
        except BaseException:
            self._claims = named
            raise

    def _change(self, changed: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
        with self._lock:
            for _ in range(MAX_TRIES):
                record = self._read()
                before = {} if record is None else record.values
                values = changed(before)
                config, shards = self._resolved(values)
                version = None if record is None else record.version
                if values == before or self._store.write_record(self.named.name, RECORD, values, version):
                    self._apply(values, config, shards)
                    return
        msg = f"queue {self.named.name!r}: other processes changed its options; try again"
        raise RefusedError(msg)

    def _read(self) -> SharedRecord | None:
        record = self._store.read_record(self.named.name, RECORD)
        self.check_at = time.monotonic() + CHECK_SECONDS
        return record

    def _follow(self, record: SharedRecord | None) -> None:
        values = {} if record is None else dict(record.values)
        if not self._is_known or values != self.stored:
            self._apply(values, *self._resolved(values))

    def _apply(self, values: Mapping[str, Any], config: QueueConfig, shards: int | None) -> None:
        self._use(config)
        if shards is not None:
            self._store.use_shards(shards)
        self.stored = dict(values)
        self._is_known = True

    def _resolved(self, values: Mapping[str, Any]) -> tuple[QueueConfig, int | None]:
        """Return the options to follow, given the stored ones, and the number of shards (None: unchanged).

        Raises:
            ValueError: If the process named another value when it opened the queue, or a stored one is wrong.
        """
        theirs = self._parsed(values)
        ours = {name: self._named(name) for name in self._claims & theirs.keys()}
        if self.named.override:
            theirs |= ours
        elif not self._is_known:
            for name in sorted(ours):
                if theirs[name] != ours[name]:
                    raise ValueError(_contradiction(self.named.name, name, theirs[name], ours[name]))
        config = self._over(self.named, theirs)
        config.rules()
        return config, theirs.get(SHARDS)

    @staticmethod
    def _over(config: QueueConfig, options: Mapping[str, Any]) -> QueueConfig:
        return config.model_copy(update={name: options[name] for name in options if name != SHARDS})

    def _parsed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored options; ignore the names that a later version of freshq stored.

        Raises:
            ValueError: If a value is wrong.
        """
        try:
            stored = StoredOptions.model_validate_json(json.dumps(dict(values)))
        except ValidationError as error:
            problem = first_problem(error, StoredOptions)
            msg = f"{problem}; it is stored with queue {self.named.name!r}: correct it by freshq configure"
            raise ValueError(msg) from None
        return {name: getattr(stored, name) for name in stored.model_fields_set.intersection(self.storable)}

    def _named(self, name: str) -> object:
        return self._store.named_shards if name == SHARDS else getattr(self.named, name)

    def _checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options as JSON values.

        Raises:
            ValueError: If an option is wrong, or cannot be stored with this queue.
        """
        for name in options:
            if name not in self.storable:
                known = ", ".join(self.storable)
                msg = f"{plain(name)}: cannot be stored with this queue; use one of {known}"
                raise ValueError(msg)
        if SHARDS in options:
            checked_count(SHARDS, options[SHARDS], MAX_SHARDS)
        config = checked_options({name: value for name, value in options.items() if name != SHARDS})
        values = config.model_dump(mode="json", include=set(options))
        return {**values, SHARDS: options[SHARDS]} if SHARDS in options else values


def _contradiction(queue: str, name: str, theirs: object, ours: object) -> str:
    flag = f"--{name.replace('_', '-')} {as_text(ours)}"
    return (
        f"{name}: queue {queue!r} has {as_text(theirs)} stored, and {as_text(ours)} was named; leave it out, "
        f"change the queue by queue.configure({name}=...) or freshq configure {flag}, or open it with "
        "override=True (in an address, override=on)"
    )
