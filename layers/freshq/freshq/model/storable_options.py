"""Options that can be stored with a queue: the only place for their defaults, bounds and help texts."""

from __future__ import annotations

import json
from dataclasses import fields
from inspect import signature
from math import inf
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator

from freshq.errors import quoted
from freshq.model.task import MAX_SECONDS
from freshq.model.validation import parsed_json
from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.policy.groups import GroupRules
from freshq.policy.order import Order
from freshq.policy.pressure import AdmissionLimit
from freshq.policy.retry import Backoff
from freshq.policy.rules import CodelRule, ReserveRule

# The record with the options of a queue.
RECORD: Final = "freshq#options"
# The record stands for the earliest of the notes until a process stores it.
NOTE_PREFIX: Final = f"{RECORD}#"
MAX_SHARDS: Final = 64
# How addresses, flags and parameters write None.
NONE: Final = "none"
AUTO: Final = "auto"
# The options made of parts. As text, the parts are separated by commas.
RULES: Final[dict[str, type[Any]]] = {
    "backoff": Backoff,
    "codel": CodelRule,
    "backlog": BacklogLimit,
    "admission": AdmissionLimit,
}
# The words that stand for a value of such an option, and the value.
WORDS: Final[dict[str, dict[str, str | None]]] = {
    **{option: {NONE: None} for option in RULES},
    "backoff": {AUTO: AUTO},
}


def seconds_or_none(text: str) -> float | str:
    """Return a time as a number of seconds, or `NONE` unchanged; raise ValueError for anything else."""
    return NONE if text.lower() == NONE else float(text)


def count_or_none(text: str) -> int | str:
    """Return a whole number, or `NONE` unchanged; raise ValueError for anything else."""
    if text.lower() == NONE:
        return NONE
    try:
        return int(text)
    except ValueError:
        msg = f"must be a whole number or none, got {quoted(text)}"
        raise ValueError(msg) from None


class StorableOptions(BaseModel):
    """Options that are written as text: in an address, a flag of a command, or a parameter of the stack.

    `QueueConfig` and the settings of the functions inherit them; the flags of commands, the options of
    addresses and the tables on the pages are made from them, and a test compares the parameters of
    `template.yaml` with them.
    """

    model_config = ConfigDict(defer_build=True)

    order: Order = Field(
        Order.LIFO, strict=False, description="Order of service within each priority level and group."
    )
    max_age_seconds: float | None = Field(
        3600.0,
        gt=0,
        le=MAX_SECONDS,
        description="Age at which a task is stale and never runs, unless its own max age is shorter. None: "
        "never.",
    )
    max_attempts: int | None = Field(
        5,
        ge=1,
        description="Number of attempts after which a failing task becomes a dead letter. None: never; it is "
        "tried until it succeeds or goes stale.",
    )
    lease_seconds: float = Field(
        60.0, gt=0, le=MAX_SECONDS, description="Time until a lease expires, unless it is extended."
    )
    retention_seconds: float = Field(
        86_400.0,
        ge=0,
        le=MAX_SECONDS,
        description="How long a finished task stays readable, and its id taken.",
    )
    traceback_bytes: int = Field(
        2048,
        ge=0,
        le=2048,
        description="Bytes of the end of a traceback that `attempt_log` keeps. Use 0 if tracebacks may "
        "contain secrets.",
    )
    dead_letter_retention_seconds: float | None = Field(
        14 * 86_400.0,
        ge=0,
        le=MAX_SECONDS,
        description="How long a dead letter waits to be redriven or purged. None: indefinitely.",
    )
    reserve: ReserveRule = Field(
        ReserveRule(automatic=True),
        description="Time that must be left before the deadline when a task is claimed: seconds, a "
        "percentile of the service times such as p90, `none`, or `auto`: p90 with order FIFO or ADAPTIVE and "
        "a max age, else none.",
    )

    @field_validator("max_age_seconds", "dead_letter_retention_seconds", mode="before")
    @classmethod
    def _parse_never(cls, value: object) -> object:
        return None if isinstance(value, str | float) and value in (inf, NONE) else value

    @field_validator("max_attempts", mode="before")
    @classmethod
    def _parse_no_limit(cls, value: object) -> object:
        return None if value == NONE else value

    @field_validator("reserve", mode="before")
    @classmethod
    def _parse_reserve(cls, value: object) -> object:
        if value is None:
            return ReserveRule(automatic=True)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        return ReserveRule.parse(str(value))

    @field_serializer("reserve", when_used="json")
    def _reserve_as_text(self, reserve: ReserveRule) -> str:
        return str(reserve)


class DynamoDBOptions(StorableOptions):
    """The options that can be stored with a queue on DynamoDB."""

    shards: int = Field(
        1,
        ge=1,
        le=MAX_SHARDS,
        description="Partitions of the index of claimable tasks. One partition keeps the order strict; n "
        "partitions raise the write limit n-fold.",
    )


class QueueRules(StorableOptions):
    """All options that can be stored with a queue on any store."""

    backoff: Backoff | Literal["auto"] = Field(
        AUTO,
        description="Delay between attempts. As text: first and longest bound in seconds, `1,300`, or "
        "`auto`: these for a task with a max age, and for a task without one 15 s, 4 minutes, an hour, and a "
        "day before the last attempt.",
    )
    codel: CodelRule | None = Field(
        None,
        description="Shed tasks that waited too long during an overload. Only with order FIFO. As text: "
        "target and interval in seconds, `0.5,1`, or `none`.",
    )
    backlog: BacklogLimit | None = Field(
        None,
        description="Maximum number of waiting tasks, and which tasks to shed when it is reached. As text: "
        "`1000`, `1000,refuse-newest`, or `none`.",
    )
    admission: AdmissionLimit | None = Field(
        None,
        description="While overloaded, reject new tasks beyond a multiple of the served rate. As text: `2`, "
        "or `none`.",
    )

    groups: GroupRules = Field(
        GroupRules(),
        description="Weights, limits and a hierarchy of groups. As text: JSON such as "
        '`{"of": {"acme": {"weight": 3}}, "separator": "/"}`, or `none`.',
    )

    @field_validator("groups", mode="before")
    @classmethod
    def _parse_groups(cls, value: object) -> object:
        return _group_rules(value) if isinstance(value, str | dict) else value

    @field_serializer("groups", when_used="json")
    def _groups_as_values(self, groups: GroupRules) -> dict[str, Any]:
        return groups.values()

    @field_validator(*RULES, mode="before")
    @classmethod
    def _parse_rule(cls, value: object, info: Any) -> object:
        if info.field_name == "backoff" and not isinstance(value, Backoff | str | dict):
            msg = f"must be a freshq.Backoff or {AUTO!r}, got {quoted(value)}"
            raise ValueError(msg)
        return _rule(info.field_name, value) if isinstance(value, str | dict) else value


class StoredOptions(QueueRules, DynamoDBOptions):
    """All options that can be stored with a queue, in the form of its shared record."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


def as_text(value: Any) -> str:
    """Return the value of an option as flags and pages write it."""
    if value is None or value == GroupRules():
        return NONE
    if isinstance(value, GroupRules):
        return json.dumps(value.values(), ensure_ascii=False)
    if type(value) in RULES.values():
        parts = [getattr(value, field.name) for field in fields(value)]
        return ",".join(as_text(part) for part in parts if part is not None)
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _group_rules(written: str | dict[str, Any]) -> GroupRules:
    """Return the rules of groups from JSON.

    Raises:
        ValueError: If a part is wrong; names it.
    """
    if isinstance(written, str):
        try:
            written = {} if written.lower() == NONE else parsed_json(written)
        except ValueError as error:
            msg = f"must be JSON or none, got {quoted(written)}: {error}"
            raise ValueError(msg) from None
    return GroupRules.of_values(written)


def _rule(option: str, written: str | dict[str, Any]) -> object:
    """Return a rule from its parts.

    Raises:
        ValueError: If a part is wrong; names the option.
    """
    if isinstance(written, str) and written.lower() in WORDS[option]:
        return WORDS[option][written.lower()]
    names = [field.name for field in fields(RULES[option])]
    try:
        words = enumerate(written.split(",")) if isinstance(written, str) else ()
        given = written if isinstance(written, dict) else {names[place]: word for place, word in words}
        parts = {name: _part(name, value) for name, value in given.items()}
        signature(RULES[option]).bind(**parts)
    except (IndexError, TypeError, ValueError):
        msg = f"{option}: must be {','.join(names).upper()}, got {quoted(written)}"
        raise ValueError(msg) from None
    return RULES[option](**parts)


def _part(name: str, value: Any) -> object:
    if name == "when_full":
        return WhenFull(value)
    if not isinstance(value, str):
        return value
    return int(value) if name == "max_waiting" else float(value)
