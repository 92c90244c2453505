"""Open the queue, or the resources, that an address names."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl, urlencode

from freshq.errors import ENCODED, Unreachable, needs, quoted, quoted_address
from freshq.model.fields import DEFAULT_NAME
from freshq.model.storable_options import (
    DynamoDBOptions,
    StorableOptions,
    count_or_none,
    seconds_or_none,
)
from freshq.queue.queue import Queue, sibling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import BaseModel
    from types_boto3_dynamodb import DynamoDBClient

    from freshq.matching.queue import MatchQueue
    from freshq.model.telemetry import Telemetry
    from freshq.queue.base import BaseQueue

Converters = dict[str, "Callable[[str], object]"]
TELEMETRY: Final = "opentelemetry or prometheus"
# How an address writes a switch.
SWITCH: Final[Mapping[str, bool]] = {"on": True, "off": False, "true": True, "false": False}
DEFAULT_TABLE: Final = "tasks"
RESOURCES_TABLE: Final = "resources"
# A host whose port is not one: it is a user with the beginning of a password.
BROKEN_PORT: Final = re.compile(r"[^\[:/@]+:(?!\d*(?:[/,]|$))")
FORMS: Final = (
    "dynamodb://TABLE, sqlite:///FILE, postgresql://USER@HOST/NAME or mariadb://USER@HOST/NAME; "
    f"#TABLE at the end of a SQL address names another table than {DEFAULT_TABLE}"
)


def telemetry_named(name: str) -> Telemetry:
    """Return the telemetry with a name.

    Raises:
        ValueError: If no telemetry has this name.
        MissingExtra: If its extra is not installed.
    """
    if name == "opentelemetry":
        from freshq.telemetry.otel import OpenTelemetry

        return OpenTelemetry()
    if name == "prometheus":
        from freshq.telemetry.prometheus import Prometheus

        return Prometheus()
    msg = f"must be {TELEMETRY}, got {quoted(name)}"
    raise ValueError(msg)


def _converters(options: type[BaseModel]) -> Converters:
    """Return converters for option values: numbers are parsed here, other values when the queue is opened."""
    numbers: dict[Any, Callable[[str], object]] = {
        int: int,
        float: float,
        float | None: seconds_or_none,
        int | None: count_or_none,
    }
    fields = options.model_fields.items()
    return {name: numbers.get(field.annotation, str) for name, field in fields}


def lease_or_none(text: str) -> float | None:
    """Return a lease in seconds; None for "none"."""
    seconds = seconds_or_none(text)
    return None if isinstance(seconds, str) else seconds


# The allowed values of an option that is not a number.
WANTED: Final[Mapping[object, str]] = {
    telemetry_named: TELEMETRY,
    seconds_or_none: "a number or none",
    lease_or_none: "a number or none",
    count_or_none: "a whole number or none",
}


def switch(text: str) -> bool | str:
    """Return whether a switch is on. Any other word is kept, and the option refuses it."""
    return SWITCH.get(text, text)


# The options of every queue, and converters of their values.
QUEUE_OPTIONS: Final[Converters] = {
    "name": str,
    **_converters(StorableOptions),
    "override": switch,
    "telemetry": telemetry_named,
}
DYNAMODB_OPTIONS: Final[Converters] = {
    **_converters(DynamoDBOptions),
    **dict.fromkeys(("key", "region", "profile"), str),
}


HISTORY_OPTIONS: Final[Converters] = {"history": switch, "history_seconds": float}


TIMEOUTS: Final = tuple(f"{name}_timeout_seconds" for name in ("connect", "answer", "lock"))


SQL_OPTIONS: Final[Converters] = {
    "max_connections": int,
    "durable": switch,
    **dict.fromkeys(TIMEOUTS, float),
    **HISTORY_OPTIONS,
}


MATCH_OPTIONS: Final[Converters] = {
    "order": str,
    "lease_seconds": lease_or_none,
    "override": switch,
    "worker_name": str,
}
ACCOUNT_OPTIONS: Final[Converters] = {"region": str, "profile": str}


@dataclass(frozen=True, slots=True)
class Address:
    """An address in its parts.

    Attributes:
        scheme: The part before "://", such as postgresql+psycopg.
        location: A table of DynamoDB, or the place of the database.
        options: The options after "?".
        table: The table after "#"; empty if there is none.
    """

    scheme: str
    location: str
    options: dict[str, str]
    table: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address.

        Raises:
            ValueError: If the text has no known form.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("queue: the address is not text; write it in UTF-8") from None
        before, _, table = text.removeprefix("sql://").partition("#")
        scheme, _, rest = before.partition("://")
        location, _, query = rest.partition("?")
        _check_ends(location, query, table)
        if scheme == "postgres":  # as hosting platforms write it
            scheme = "postgresql"
        address = cls(scheme, location, _pairs(query), table)
        rules = SCHEMES.get(address.backend)
        if rules is None or not rules.allows(address):
            msg = f"queue: must look like {FORMS}; got {quoted_address(text)}"
            raise ValueError(msg)
        return address

    @property
    def backend(self) -> str:
        """The scheme without the driver of a SQL database."""
        return self.scheme.partition("+")[0]

    def __str__(self) -> str:
        """Return the address as text, without the table of a SQL database."""
        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"{self.scheme}://{self.location}{query}"


@dataclass(frozen=True, slots=True)
class Scheme:
    """The options of an address scheme, and how to open it.

    Attributes:
        open: Opens the queue of an address with the given options of a queue.
        own_options: Options beyond the options of every queue.
        location: Whether "LOCATION" is required or forbidden; None if it is optional.
        is_sql: Whether "#TABLE" is allowed, and options that freshq does not know go to the driver.
    """

    open: Callable[[Address, dict[str, Any]], BaseQueue]
    own_options: Mapping[str, Callable[[str], object]]
    location: Literal["required", "forbidden"] | None
    is_sql: bool = False

    def allows(self, address: Address) -> bool:
        """Return whether an address has all required parts and no forbidden ones."""
        if self.location is not None and bool(address.location) is not (self.location == "required"):
            return False
        return self.is_sql or not address.table


def names_object(queue: str) -> bool:
    """Return whether a text names a queue of the application, such as `app:queue`, and is no address."""
    return all(part.isidentifier() for part in queue.replace(".", ":").split(":")) and ":" in queue


def open_queue(
    address: str,
    name: str | None = None,
    **named: Any,
) -> BaseQueue:
    """Return the queue of an address.

    Args:
        address: Such as dynamodb://TABLE?name=mail&order=fifo, dynamodb://TABLE?key=id for an attached
            table, or memory:// for a trial.
        name: Name of the queue; None for the address's own, or "default".
        **named: Further options of the queue, which override options in the address.

    Raises:
        ValueError: If the address is wrong.
        MissingExtra: If the extra that the address needs is not installed.
        StoreError: If the store cannot be reached.
    """
    parsed = Address.parse(address)
    scheme = SCHEMES[parsed.backend]
    options, others = split_options(parsed.options, {**QUEUE_OPTIONS, **scheme.own_options})
    if others and not scheme.is_sql:
        known = ", ".join({**QUEUE_OPTIONS, **scheme.own_options})
        msg = f"queue: unknown option {quoted(next(iter(others)))} in the address; use {known}"
        raise ValueError(msg)
    options |= named
    if name is not None:
        options["name"] = name
    parsed = replace(parsed, options=others)
    return scheme.open(parsed, options)


def open_together(addresses: Sequence[str], connections: int | None = None) -> list[BaseQueue]:
    """Return the queues of several addresses. Queues in the same tables share their connections.

    Args:
        addresses: The addresses; the queues of an application are not among them.
        connections: Maximum number of connections to each SQL database, unless an address says; None for
            the default.

    Raises:
        ValueError: If an address is wrong, or two addresses name the same queue.
    """
    firsts: dict[object, BaseQueue] = {}
    queues: dict[tuple[object, str], BaseQueue] = {}
    for address in addresses:
        parsed = Address.parse(address)
        own, others = split_options(parsed.options, QUEUE_OPTIONS)
        name = own.pop("name", DEFAULT_NAME)
        place = (parsed.scheme, parsed.location, parsed.table, frozenset(others.items()))
        if (place, name) in queues:
            msg = f"queue: {quoted(name)} is named twice; give each queue once"
            raise ValueError(msg)
        first = firsts.get(place)
        if isinstance(first, Queue):
            queues[place, name] = sibling(first, **{**own, "name": name})
        else:
            wide = address if connections is None else with_connections(address, connections)
            queues[place, name] = firsts[place] = open_queue(wide)
    return [*queues.values()]


def with_account(address: str | None, account: Mapping[str, str]) -> str:
    """Return the address of the same table with another profile or region.

    Raises:
        ValueError: If the queue is not on DynamoDB, or was not opened by address.
    """
    parsed = None if address is None else Address.parse(address)
    if parsed is None or parsed.scheme != "dynamodb":
        raise ValueError("aws: works only for a queue opened as dynamodb://TABLE")
    return str(replace(parsed, options=parsed.options | dict(account)))


def with_connections(address: str, max_connections: int) -> str:
    """Return the address of a SQL database with a number of connections, unless it has one already.

    Args:
        address: Any address. Addresses of other stores are returned unchanged.
        max_connections: Maximum number of connections.
    """
    if names_object(address):
        return address
    parsed = Address.parse(address)
    if not SCHEMES[parsed.backend].is_sql or "max_connections" in parsed.options:
        return address
    options = {**parsed.options, "max_connections": str(max_connections)}
    table = f"#{parsed.table}" if parsed.table else ""
    return f"{replace(parsed, options=options)}{table}"


def _check_ends(location: str, query: str, table: str) -> None:
    """Raise if the parts of an address seem to begin within its user or password."""
    if "@" in table or ("@" in query and (BROKEN_PORT.match(location) or not location)):
        msg = f"queue: a '#' or '?' in the user or password ends the address; {ENCODED}"
        raise ValueError(msg)
    if table and not table.isidentifier():
        msg = f"table: the name after '#' must be of letters, digits and _; elsewhere, {ENCODED}"
        raise ValueError(msg)


def _pairs(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:  # its message may hold a part of a password
        msg = (
            "queue: the part of the address after '?' must look like NAME=VALUE&NAME=VALUE; "
            f"in a value, write %26 for '&'; {ENCODED}"
        )
        raise ValueError(msg) from None
    for name, count in Counter(name for name, _value in pairs).items():
        if count > 1:
            msg = f"queue: give each option at most once, got {quoted(name)} {count} times"
            raise ValueError(msg)
    return dict(pairs)


def split_options(
    given: Mapping[str, str], known: Mapping[str, Callable[[str], object]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the parsed values of the known options, and the other options unchanged.

    Raises:
        ValueError: If a value does not fit its option.
    """
    options: dict[str, Any] = {}
    for key in given.keys() & known.keys():
        try:
            options[key] = known[key](given[key])
        except ValueError:
            wanted = WANTED.get(known[key], "a number")
            msg = f"{key}: must be {wanted}, got {quoted(given[key])}"
            raise ValueError(msg) from None
    return options, {key: value for key, value in given.items() if key not in known}


def _dynamodb(address: Address, options: dict[str, Any]) -> BaseQueue:
    region, profile = options.pop("region", None), options.pop("profile", None)
    client = None
    if region is not None or profile is not None:
        client = dynamodb_client(address.location, region, profile)
    if "key" in options:
        options["attach"] = True  # the key of freshq's own tables is fixed
    opened: BaseQueue = Queue.dynamodb(address.location, client, **options)
    return opened


def dynamodb_client(table: str, region: str | None, profile: str | None) -> DynamoDBClient:
    """Return a client for a region and a profile.

    Raises:
        ValueError: If there is no such profile.
        Unreachable: If no client can be made, for example without a region.
        MissingExtra: If the extra `aws` is not installed.
    """
    with needs("aws"):
        import boto3
        from botocore.exceptions import BotoCoreError, ProfileNotFound

        from freshq.stores.dynamodb.calls import default_client, own_region
    try:
        return default_client(boto3.Session(profile_name=profile, region_name=region or own_region()))
    except ProfileNotFound as error:
        msg = f"profile: {error}"
        raise ValueError(msg) from error
    except BotoCoreError as error:
        msg = f"table {table!r}: {error}"
        raise Unreachable(msg) from error


def _sql(address: Address, options: dict[str, Any]) -> BaseQueue:
    return Queue.sql(str(address), address.table or DEFAULT_TABLE, **options)


SQL: Final = Scheme(_sql, SQL_OPTIONS, None, is_sql=True)


SCHEMES: Final[Mapping[str, Scheme]] = {
    "dynamodb": Scheme(_dynamodb, DYNAMODB_OPTIONS, "required"),
    "memory": Scheme(lambda _address, options: Queue.memory(**options), {}, "forbidden"),
    "sqlite": SQL,
    "postgresql": SQL,
    "mysql": SQL,
    "mariadb": SQL,
}


def open_match_queue(text: str, lease: str | None = None) -> MatchQueue:
    """Return the resources of an address.

    Args:
        text: The address.
        lease: The lease of its matches; None for the address's own, or the default.

    Raises:
        ValueError: If the address is wrong, or its store does not outlive a command.
        StoreError: If the store cannot be reached.
    """
    from freshq.matching.queue import MatchQueue

    address = Address.parse(text)
    if address.scheme == "memory":
        raise ValueError(
            "queue: memory:// would forget everything when this command ends; give dynamodb://TABLE or "
            "sqlite:///FILE. MatchQueue.memory() is for the threads of one process"
        )
    on_dynamodb = address.scheme == "dynamodb"
    known = MATCH_OPTIONS | (ACCOUNT_OPTIONS if on_dynamodb else HISTORY_OPTIONS)
    given = address.options if lease is None else address.options | {"lease_seconds": lease}
    options, others = split_options(given, known)
    if lease is not None:  # the lease of one command contradicts no stored one
        options["override"] = True
    if not on_dynamodb:  # other options are the driver's
        table = address.table or RESOURCES_TABLE
        return MatchQueue.sql(str(replace(address, options=others)), table, **options)
    if others:
        msg = f"queue: unknown option {quoted(next(iter(others)))} in the address; use {', '.join(known)}"
        raise ValueError(msg)
    account = {name: options.pop(name, None) for name in ACCOUNT_OPTIONS}
    client = dynamodb_client(address.location, **account) if any(account.values()) else None
    return MatchQueue.dynamodb(address.location, client, **options)
