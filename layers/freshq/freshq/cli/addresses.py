"""Finds the queue that a command is about: by its address, or by the stack that it was deployed with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

import boto3
from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound

from freshq.aws.settings import QueueSettings
from freshq.errors import RefusedError, Unreachable
from freshq.queue.queue import Queue
from freshq.stores.dynamodb.calls import default_client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from freshq.queue.base import BaseQueue

# What may stand in an address after "?", and how it is written.
OPTIONS: Final[Mapping[str, Callable[[str], object]]] = {
    "name": str,
    "order": str,
    "max_age_seconds": float,
    "max_attempts": int,
    "lease_seconds": float,
    "retention_seconds": float,
    "reserve": str,
}
DYNAMODB_OPTIONS: Final[Mapping[str, Callable[[str], object]]] = {
    **OPTIONS,
    "shards": int,
    "key": str,
    "region": str,
    "profile": str,
}
SQL_SCHEMES: Final = ("sqlite", "postgresql", "mysql", "mariadb")
DEFAULT_TABLE: Final = "tasks"
FORMS: Final = (
    "dynamodb://TABLE, sqlite:///FILE, postgresql://USER@HOST/NAME or mariadb://USER@HOST/NAME, "
    "the last three with #TABLE for another table than tasks"
)


def open_queue(address: str, name: str | None = None, max_age_seconds: float | None = None) -> BaseQueue:
    """Return the queue of an address.

    Args:
        address: Such as dynamodb://TABLE?name=mail&order=fifo, dynamodb://TABLE?key=id for a table that
            was attached, or memory:// for a trial.
        name: Name of the queue; None for the address's own, or "default".
        max_age_seconds: Its max age; None for the address's own, or the default.

    Raises:
        ValueError: If the address is wrong, or this installation cannot serve it.
        StoreError: If the store cannot be reached.
    """
    address, table = split_table(address)
    scheme, separator, rest = address.partition("://")
    where, _, query = rest.partition("?")
    given = _pairs(query)
    if name is not None:
        given["name"] = name
    if max_age_seconds is not None:
        given["max_age_seconds"] = str(max_age_seconds)
    if separator and scheme == "dynamodb" and where:
        return _dynamodb(where, _converted(given, DYNAMODB_OPTIONS))
    if separator and scheme == "memory" and not where:
        return Queue.memory(**_converted(given, OPTIONS))
    if separator and scheme.partition("+")[0] in SQL_SCHEMES:
        own = {key: value for key, value in given.items() if key in OPTIONS}
        drivers = {key: value for key, value in given.items() if key not in OPTIONS}
        url = f"{scheme}://{where}" + (f"?{urlencode(drivers)}" if drivers else "")
        return _sql(url, table, _converted(own, OPTIONS))
    msg = f"queue: must look like {FORMS}; got {address!r}"
    raise ValueError(msg)


def with_account(address: str | None, account: Mapping[str, str]) -> str:
    """Return the address of the same table seen with another profile, or in another region.

    Raises:
        ValueError: If the queue is on no table of DynamoDB, or was not given by its address.
    """
    if address is None or not address.startswith("dynamodb://"):
        raise ValueError("aws: only for a queue that was given as dynamodb://TABLE")
    where, _, query = address.partition("?")
    return f"{where}?{urlencode(_pairs(query) | dict(account))}"


def _pairs(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        msg = f"queue: what follows '?' must look like NAME=VALUE&NAME=VALUE, got {query!r}"
        raise ValueError(msg) from error
    if len(dict(pairs)) < len(pairs):
        msg = f"queue: each option once, got {query!r}"
        raise ValueError(msg)
    return dict(pairs)


def _converted(given: Mapping[str, str], known: Mapping[str, Callable[[str], object]]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            msg = f"queue: {key!r} is no option of the address; known are {', '.join(known)}"
            raise ValueError(msg)
        try:
            options[key] = known[key](value)
        except ValueError as error:
            msg = f"{key}: must be a number, got {value!r}"
            raise ValueError(msg) from error
    return options


def _dynamodb(table: str, options: dict[str, Any]) -> BaseQueue:
    opened: BaseQueue
    region, profile = options.pop("region", None), options.pop("profile", None)
    if "key" in options:
        options["attach"] = True  # a table of freshq's own has the key that freshq gave it
    if region is None and profile is None:
        opened = Queue.dynamodb(table, **options)
        return opened
    try:
        session = boto3.Session(profile_name=profile, region_name=region)
    except ProfileNotFound as error:
        msg = f"profile: {error}"
        raise ValueError(msg) from error
    try:
        client = default_client(session)
    except BotoCoreError as error:
        msg = f"table {table!r}: {error}"
        raise Unreachable(msg) from error
    opened = Queue.dynamodb(table, client, **options)
    return opened


def split_table(url: str) -> tuple[str, str]:
    """Return the url of a database, and the table that it names after a #."""
    url, _, table = url.removeprefix("sql://").partition("#")
    return url, table or DEFAULT_TABLE


def _sql(url: str, table: str, options: dict[str, Any]) -> BaseQueue:
    try:
        return Queue.sql(url, table, **options)
    except ImportError as error:
        msg = f"queue: a driver is missing for {url!r} ({error}); install it"
        raise ValueError(msg) from error


def stack_queue(stack: str, name: str | None = None) -> BaseQueue:
    """Return the queue of a deployed stack, with the options that it was deployed with.

    Args:
        stack: Name of the CloudFormation stack.
        name: Name of the queue; None for the stack's own.

    Raises:
        RefusedError: If there is no such stack, or it has no queue.
        Unreachable: If CloudFormation did not answer.
    """
    description = _description(stack)
    outputs = {entry["OutputKey"]: entry["OutputValue"] for entry in description.get("Outputs", [])}
    if "QueueTableName" not in outputs:
        msg = f"stack {stack!r}: has no output QueueTableName ({description['StackStatus']})"
        raise RefusedError(msg)
    parameters = {
        _snake_case(entry["ParameterKey"]): entry["ParameterValue"]
        for entry in description.get("Parameters", [])
    }
    options = {key: value for key, value in parameters.items() if key in QueueSettings.model_fields}
    options["table"] = outputs["QueueTableName"]
    options["queue_name"] = name or outputs.get("QueueName") or parameters.get("queue_name", "default")
    return QueueSettings(**options).queue()


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def cloudformation() -> Any:  # noqa: ANN401 - boto3 and its types do not agree on the name of this client
    """Return a client from the environment."""
    return boto3.client("cloudformation")


def _description(stack: str) -> dict[str, Any]:
    try:
        found = cloudformation().describe_stacks(StackName=stack)["Stacks"]
    except ClientError as error:
        problem = error.response["Error"]
        msg = f"stack {stack!r}: {problem.get('Message', problem['Code'])}"
        raise (RefusedError if problem["Code"] == "ValidationError" else Unreachable)(msg) from error
    except BotoCoreError as error:
        msg = f"stack {stack!r}: CloudFormation did not answer ({error}); check network, region, credentials"
        raise Unreachable(msg) from error
    return dict(found[0])
