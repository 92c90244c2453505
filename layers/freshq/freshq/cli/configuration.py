"""Options stored with a queue, so that addresses need not repeat them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from freshq.cli.addresses import DYNAMODB_OPTIONS, QUEUE_OPTIONS, Address, open_queue, split_options
from freshq.cli.errors import print_error
from freshq.errors import RefusedError, TableMissing, quoted
from freshq.model.checks import checked_count
from freshq.model.options import parse_options
from freshq.model.storable_options import MAX_SHARDS, DynamoDBOptions, StorableOptions
from freshq.queue.core import core_of
from freshq.queue.shared.measures import change_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.queue.base import BaseQueue

RECORD: Final = "freshq#options"
SHARDS: Final = "shards"


def storable_names(address: str) -> tuple[str, ...]:
    """Return the names of the options that can be stored with the queue of an address."""
    parsed = Address.parse(address)
    if parsed.backend == "dynamodb" and "key" in parsed.options:  # the attachment has order and shards
        return tuple(option for option in StorableOptions.model_fields if option != "order")
    return tuple((DynamoDBOptions if parsed.backend == "dynamodb" else StorableOptions).model_fields)


def storable_options(address: str) -> dict[str, Any]:
    """Return the options of an address that can be stored with its queue."""
    converters = {**QUEUE_OPTIONS, **DYNAMODB_OPTIONS}
    known = {option: converters[option] for option in storable_names(address)}
    return split_options(Address.parse(address).options, known)[0]


def open_configured(address: str, name: str | None = None) -> BaseQueue:
    """Return the queue of an address, completed by the options that are stored with the queue.

    An option in the address wins. If the stored value differs, a line on standard error says so.

    Args:
        address: The address.
        name: Name of the queue; None for the address's own, or "default".

    Raises:
        ValueError: If the address or a stored option is wrong.
        StoreError: If the store did not answer.
    """
    queue = open_queue(address, name)
    try:
        stored, given = stored_options(queue), storable_options(address)
    except TableMissing:
        return queue  # nothing is stored, and the command will report the missing table
    except BaseException:
        queue.close()
        raise
    for option in sorted(stored.keys() & given.keys()):
        if stored[option] != given[option]:
            print_error(
                f"{option}: the address says {given[option]}, which counts here; "
                f"queue {queue.name!r} is configured with {stored[option]}"
            )
    if not stored.keys() - given.keys():
        return queue
    queue.close()
    return open_queue(address, name, stored=stored)


def stored_options(queue: BaseQueue) -> dict[str, Any]:
    """Return the options stored with a queue, by name."""
    record = core_of(queue).store.read_record(queue.name, RECORD)
    return {} if record is None else dict(record.values)


def store_options(queue: BaseQueue, options: Mapping[str, Any]) -> None:
    """Store options with a queue; other stored options stay.

    Raises:
        ValueError: If an option is wrong; nothing was written.
        RefusedError: If other processes changed them during every attempt.
    """
    check_options({**stored_options(queue), **options})
    _change(queue, lambda values: {**values, **options})


def store_first_options(queue: BaseQueue, options: Mapping[str, Any]) -> None:
    """Store the options of a new queue, or check that the stored options are the same.

    Raises:
        ValueError: If an option is wrong; nothing was written.
        RefusedError: If another value is stored.
    """
    stored = stored_options(queue)
    for option in sorted(stored.keys() & options.keys()):
        if stored[option] != options[option]:
            msg = (
                f"{option}: queue {queue.name!r} is configured with {stored[option]}, not {options[option]}; "
                "change it with freshq configure"
            )
            raise RefusedError(msg)
    if options.keys() - stored.keys():
        store_options(queue, options)


def forget_options(queue: BaseQueue) -> None:
    """Delete the options stored with a queue."""
    _change(queue, lambda _: {})


def check_options(options: Mapping[str, Any]) -> None:
    """Check options before they are stored, together.

    Raises:
        ValueError: If an option is wrong; names the first.
    """
    shards = options.get(SHARDS)
    if shards is not None:
        checked_count(SHARDS, shards, MAX_SHARDS)
    known: Any = {option: value for option, value in options.items() if option != SHARDS}
    parse_options(known)


def _change(queue: BaseQueue, change: Any) -> None:
    if not change_record(core_of(queue).store, queue.name, RECORD, change):
        msg = f"queue {quoted(queue.name)}: other processes changed its options; try again"
        raise RefusedError(msg)
