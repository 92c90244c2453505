"""Share the options of a queue: they are stored with it, and every process follows them.

The stored options hold for every process; an option that is not stored has its default. A queue without a
record is new to its table: the first process that puts or claims stores the options that it named, even if it
named none. A put in a caller's transaction notes them there: for a record that it inserted itself, other
processes would have to wait until the transaction ends.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from freshq.errors import RefusedError, StoreError, TableMissing, plain
from freshq.model.checks import checked_count
from freshq.model.forks import new_rlock
from freshq.model.lifecycle import new_token
from freshq.model.options import QueueConfig, checked_options
from freshq.model.storable_options import (
    MAX_SHARDS,
    NOTE_PREFIX,
    RECORD,
    QueueRules,
    StoredOptions,
    as_text,
)
from freshq.model.validation import first_problem
from freshq.queue.shared.measures import MAX_TRIES, change_record
from freshq.stores.base import SharedRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from freshq.stores.base import Store

logger = logging.getLogger(__name__)
# Options that processes use, or named, instead of the stored ones; for `freshq doctor`.
DISSENT: Final = "freshq#dissent"
SHARDS: Final = "shards"
# A verb reads the record again after this time.
CHECK_SECONDS: Final = 4.0
# A process repeats its dissent after this time.
REPEAT_SECONDS: Final = 3600.0
# Dissent is forgotten if not repeated for this time, and the oldest beyond this number of processes.
DISSENT_SECONDS: Final = 86_400.0
MOST_DISSENTERS: Final = 50


@dataclass(frozen=True, slots=True)
class Dissent:
    """An option for which a process named another value than the queue has.

    Attributes:
        process: The machine, the process and the name of the worker.
        at: When the process last said so, in seconds since the epoch.
        name: The option.
        ours: The value of the queue, as flags write it.
        theirs: The value that the process named.
        is_used: Whether the process uses its own value, because it set `override`.
    """

    process: str
    at: float
    name: str
    ours: str
    theirs: str
    is_used: bool


class SharedOptions:
    """The options of a queue in one process: the stored ones, otherwise defaults.

    While nothing is stored, the process uses the options that it named. Thread-safe. Reads nothing before the
    first verb.

    Attributes:
        named: The options as the process named them.
        storable: The names of the options that can be stored with this queue, in order.
        stored: The stored options as JSON values, as last read.
        check_at: Monotonic time at which a verb reads the record again.
        is_settled: Whether `settle` and `note` have nothing to write.
    """

    def __init__(
        self,
        store: Store,
        named: QueueConfig,
        defaults: Mapping[str, Any],
        storable: Iterable[str],
        use: Callable[[QueueConfig], None],
        now: Callable[[], float],
    ) -> None:
        """Read nothing yet.

        Args:
            store: Home of the queue.
            named: The options that the process named.
            defaults: Where the defaults of this queue differ from other queues' defaults.
            storable: The names of the options that can be stored with this queue.
            use: Called with the options to follow, at first and after each change. Raises ValueError if the
                queue cannot follow them.
            now: Returns the time of the queue, in seconds since the epoch.
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
        self.is_settled = True
        self._store = store
        self._use = use
        self._now = now
        self._lock = new_rlock()
        self._is_known = False
        self._is_recorded = False
        self._is_noted = False  # whether the record is only a note
        self._refusal: str | None = None  # of each verb, if the queue has other options than named here
        self._told_at = -math.inf
        self._token = new_token()

    def follow(self) -> None:
        """Read the stored options, and use them if they are new.

        An error ends the call until this process follows a record of the queue. Later the queue keeps its
        current options, and tries again. Without a table nothing is stored.

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
            if not self._is_known:
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

    def check(self) -> None:
        """Check, without a call to the store, that the last read found no other options than the named ones.

        Raises:
            ValueError: If it did.
        """
        if self._refusal is not None:
            raise ValueError(self._refusal)

    def settle(self) -> None:
        """Store the named options if the queue is new; otherwise record where this process differs.

        Raises:
            ValueError: If the queue is not new, and has other values.
            StoreError: If the store did not answer, or did not permit to store options that were named.
        """
        with self._lock:
            if self._only_tells:
                self._tell()
                return
            try:
                self._store_first()
            except StoreError as error:
                if self._claims or type(error) is not StoreError:
                    raise
                self.is_settled = True  # a role may lack this one permission: the defaults hold all the same
                logger.warning(
                    "queue %r: cannot record that it has the default options", self.named.name, exc_info=True
                )

    def note(self, connection: object, now: float) -> None:
        """Note the named options of a new queue in the transaction of a caller, in which this thread is.

        Args:
            connection: Tells the transactions of this process apart that are open at the same time.
            now: Current time in seconds.

        Raises:
            StoreError: If the transaction did not accept the note.
        """
        if self._is_recorded or self.named.override:
            return
        values = {"at": now, "options": self._named_values()}
        name = f"{NOTE_PREFIX}{self._token}-{os.getpid()}-{id(connection)}"
        self._store.write_record(self.named.name, name, values, None)

    def store_named(self) -> None:
        """Store the named options, if any, with a queue that is new, unless `override` is set.

        Raises:
            ValueError: If the queue has other values.
            StoreError: If the store did not answer.
        """
        if self.named.override:
            return
        with self._lock:
            if not self._is_known or self._is_recorded:
                self._follow(self._read())
            if self._claims and (self._is_noted or not self._is_recorded):
                self._store_first()

    def _store_first(self) -> None:
        """Store the record of a queue that has none: the earliest note, or the named options."""
        if not self._is_known or self._store.transactions is not None:  # there may be a new note
            self._follow(self._read())
        if self._is_recorded and not self._is_noted:
            return
        values = dict(self.stored) if self._is_noted else self._named_values()
        config, shards = self._resolved(values, is_first=False)
        if self._store.write_record(self.named.name, RECORD, values, None):
            self._is_noted = False
            self._apply(values, config, shards, is_recorded=True)
        else:  # another process was first: its options hold against the options named here
            self._follow(self._read())

    def dissents(self) -> Iterator[Dissent]:
        """Yield the options for which a process named another value than the queue has now.

        Raises:
            StoreError: If the store did not answer.
        """
        record = self._store.read_record(self.named.name, DISSENT)
        truth = self._parsed(self.stored)
        for process, told in sorted({} if record is None else record.values.items()):
            if told["at"] < self._now() - DISSENT_SECONDS:
                continue
            for name, value in self._parsed(told["options"]).items():
                ours = truth.get(name, self._default(name))
                if value != ours:
                    yield Dissent(
                        process, told["at"], name, as_text(ours), as_text(value), is_used=told["override"]
                    )

    def source(self, name: str) -> str:
        """Return where the value of an option comes from in this process, as last read."""
        if name in self._claims and (self.named.override or not self._is_recorded):
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
                msg = f"shards: can only grow, from {shards}: claims would never find tasks in removed shards"
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
                before = self._counting(record)
                values = changed(before)
                config, shards = self._resolved(values, is_first=not self._is_known)
                version = None if record is None else record.version
                is_same = version is not None and values == before
                if is_same or self._store.write_record(self.named.name, RECORD, values, version):
                    self._is_noted = False
                    self._apply(values, config, shards, is_recorded=True)
                    return
        msg = f"queue {self.named.name!r}: other processes changed its options; try again"
        raise RefusedError(msg)

    def _read(self) -> SharedRecord | None:
        """Return the stored record, or what the earliest note says; None if there is neither."""
        queue = self.named.name
        record = self._store.read_record(queue, RECORD)
        self.check_at = time.monotonic() + CHECK_SECONDS
        self._is_noted = False
        if record is None and (notes := self._store.read_records(queue, NOTE_PREFIX)):
            self._is_noted = True
            earliest = min(notes, key=lambda note: note.values["at"])
            record = SharedRecord(earliest.values["options"], None)
        if record is not None and not self._is_recorded:
            # What this process named was never stored, so the stored options may contradict it.
            self._is_known, self.check_at = False, -math.inf
        return record

    def _follow(self, record: SharedRecord | None) -> None:
        values, is_recorded = self._counting(record), record is not None
        stored = values if is_recorded else {}
        if not self._is_known or (stored, is_recorded) != (self.stored, self._is_recorded):
            config, shards = self._resolved(values, is_first=not self._is_known)
            self._apply(stored, config, shards, is_recorded=is_recorded)
        elif self._is_recorded or self.named.override:
            self.is_settled = self._only_tells and not self._may_tell()

    def _counting(self, record: SharedRecord | None) -> dict[str, Any]:
        """Return the values that count: without a record the named ones, as the queue is new."""
        if record is None:
            return {} if self.named.override else self._named_values()
        return dict(record.values)

    def _apply(
        self, values: Mapping[str, Any], config: QueueConfig, shards: int | None, *, is_recorded: bool
    ) -> None:
        self._use(config)
        if shards is not None:
            self._store.use_shards(shards)
        self.stored = dict(values)
        self.check_at = time.monotonic() + CHECK_SECONDS
        self._refusal = None
        self._is_known = True
        self._is_recorded = is_recorded
        self.is_settled = self._only_tells and not self._may_tell()

    def _resolved(self, values: Mapping[str, Any], *, is_first: bool) -> tuple[QueueConfig, int | None]:
        """Return the options to follow, given the stored ones, and the number of shards (None: unchanged).

        Raises:
            ValueError: If the process named another value when it opened the queue, or a stored one is wrong.
        """
        theirs = self._parsed(values)
        if self.named.override:
            config = self._over(self.named, {**theirs, **{name: self._named(name) for name in self._claims}})
        else:
            differing = self._differing(theirs) if is_first else []
            if differing:
                self._refusal = self._contradiction(theirs, differing)
                raise ValueError(self._refusal)
            config = self._over(self._unnamed, theirs)
        config.rules()
        return config, self._store.named_shards if self._uses_own_shards else theirs.get(SHARDS)

    @property
    def _uses_own_shards(self) -> bool:
        return self.named.override and self._store.named_shards is not None

    def _differing(self, theirs: Mapping[str, Any]) -> list[str]:
        """Return the options that were named with another value than the queue has, stored ones first."""
        names = sorted(self._claims, key=lambda name: (name not in theirs, name))
        return [name for name in names if self._named(name) != theirs.get(name, self._default(name))]

    def _default(self, name: str) -> object:
        return 1 if name == SHARDS else getattr(self._unnamed, name)

    def _named_values(self) -> dict[str, Any]:
        values = self.named.model_dump(mode="json", include=set(self._claims))
        return values | {SHARDS: self._store.named_shards} if SHARDS in self._claims else values

    @property
    def _only_tells(self) -> bool:
        """Whether it has no options to store: the record exists, or this process overrides."""
        return self.named.override or (self._is_recorded and not self._is_noted)

    def _may_tell(self) -> bool:
        """Return whether this process differs from the queue, and has not recorded it recently."""
        if not self._claims or time.monotonic() < self._told_at + REPEAT_SECONDS:
            return False
        return bool(self._differing(self._parsed(self.stored)))

    def _tell(self) -> None:
        """Record the options that this process named with other values than the queue has."""
        self._told_at, self.is_settled = time.monotonic(), True
        names, now = self._differing(self._parsed(self.stored)), self._now()
        if not names:
            return
        values = {name: value for name, value in self._named_values().items() if name in names}
        process = f"{platform.node()}:{os.getpid()} ({self.named.worker_name})"

        def told(before: Mapping[str, Any]) -> Mapping[str, Any]:
            known = {**before, process: {"at": now, "options": values, "override": self.named.override}}
            latest = sorted(known, key=lambda name: -known[name]["at"])[:MOST_DISSENTERS]
            return {name: known[name] for name in latest if known[name]["at"] > now - DISSENT_SECONDS}

        try:
            change_record(self._store, self.named.name, DISSENT, told)
        except StoreError:
            logger.warning(
                "queue %r: cannot record which options it overrides", self.named.name, exc_info=True
            )

    def _contradiction(self, theirs: Mapping[str, Any], names: list[str]) -> str:
        """Return the message for options that this process named with other values than the queue has."""
        first = names[0]

        def ours(name: str) -> str:
            return as_text(self._named(name))

        def has(name: str) -> str:
            where = "stored" if name in theirs else "by default"
            return f"{as_text(theirs.get(name, self._default(name)))} {where}"

        flags = " ".join(f"--{name.replace('_', '-')} {ours(name)}" for name in names)
        also = "".join(f"; {name}: {has(name)}, {ours(name)} named" for name in names[1:])
        return (
            f"{first}: queue {self.named.name!r} has {has(first)}, and {ours(first)} was named; leave it "
            f"out, change the queue by queue.configure({first}=...) or freshq configure {flags}, or open it "
            f"with override=True (in an address, override=on){also}"
        )

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
