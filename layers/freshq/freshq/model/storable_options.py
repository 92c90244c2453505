"""Options that can be stored with a queue: the only place for their defaults, bounds and help texts."""

from __future__ import annotations

from math import inf
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from freshq.model.task import MAX_SECONDS
from freshq.policy.order import Order
from freshq.policy.rules import ReserveRule

MAX_SHARDS: Final = 64
# How addresses, flags and parameters write None.
NONE: Final = "none"


def seconds_or_none(text: str) -> float | str:
    """Return a time as a number of seconds, or `NONE` unchanged; raise ValueError if it is neither."""
    return NONE if text.lower() == NONE else float(text)


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
    max_attempts: int = Field(
        5, ge=1, description="Number of attempts after which a failing task becomes a dead letter."
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
    reserve: ReserveRule = Field(
        ReserveRule(),
        description="Time that must be left before the deadline when a task is claimed: seconds, or a "
        "percentile of the service times such as p90.",
    )

    @field_validator("max_age_seconds", mode="before")
    @classmethod
    def _parse_never(cls, value: object) -> object:
        return None if isinstance(value, str | float) and value in (inf, NONE) else value

    @field_validator("reserve", mode="before")
    @classmethod
    def _parse_reserve(cls, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        return ReserveRule.parse(str(value))


class DynamoDBOptions(StorableOptions):
    """The options that can be stored with a queue on DynamoDB."""

    shards: int = Field(
        1,
        ge=1,
        le=MAX_SHARDS,
        description="Partitions of the index of claimable tasks. One partition keeps the order strict; n "
        "partitions raise the write limit n-fold.",
    )
