"""The options of a queue and their validation."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from freshq.errors import plain, quoted
from freshq.model.codec import JSON, Codec, Kinds, checked_codec
from freshq.model.task import MAX_SECONDS
from freshq.model.telemetry import Telemetry
from freshq.model.validation import first_problem
from freshq.policy.backlog_limit import BacklogLimit
from freshq.policy.order import Order
from freshq.policy.pressure import Door
from freshq.policy.retry import Backoff
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule


def _random_name() -> str:
    return uuid.uuid4().hex[:12]


class QueueOptions(TypedDict, total=False):
    """Options by name, as the constructors of `Queue` take them. See `QueueConfig`."""

    name: str
    order: Order | str
    max_age_seconds: float
    max_attempts: int
    lease_seconds: float
    retention_seconds: float
    backoff: Backoff
    reserve: ReserveRule | str | float
    codel: CodelRule | None
    backlog: BacklogLimit | None
    door: Door | None
    worker_name: str
    clock: Callable[[], float]
    rng: random.Random
    codec: Codec
    kinds: Kinds | None
    telemetry: Telemetry


class SqlOptions(QueueOptions, total=False):
    """Also the limits of the connections to a SQL database, as `Queue.sql` takes them.

    Attributes:
        connect_timeout_seconds: How long to wait for a connection. None: 5 s, less if leases are short.
        answer_timeout_seconds: Likewise for an answer, and for a free connection. None: 15 s, or less.
        lock_timeout_seconds: How long a statement waits for a lock. None: 5 s, or less.
        max_connections: Maximum number of connections of this process, by default 10.
        durable: Whether SQLite waits for the disk at each commit, by default it does.
    """

    connect_timeout_seconds: float | None
    answer_timeout_seconds: float | None
    lock_timeout_seconds: float | None
    max_connections: int
    durable: bool


class QueueConfig(BaseModel):
    """Options of a queue.

    Attributes:
        name: Several queues with different names can share a table.
        order: Order of service within each line.
        max_age_seconds: Age at which a task is stale, unless its own max age is shorter.
        max_attempts: Attempts after which a task that fails becomes a dead letter.
        lease_seconds: Time until a lease expires, unless it is extended.
        retention_seconds: How long a task stays readable, and its id taken, after it is over.
        backoff: Delay between attempts.
        reserve: Time that must be left before the deadline when a task is claimed: seconds, or a running
            percentile of the service times, such as "p90".
        codel: Shed tasks that waited long while every wait is long; only with order FIFO.
        backlog: Bound on the number of waiting tasks, and which to shed when it is reached.
        door: Reject new tasks beyond a multiple of the served rate.
        worker_name: Prefix of this process's lease tokens, so that the change stream shows who held a
            task; random by default.
        clock: Returns the time in seconds since the Unix epoch; by default the store's time. A clock that
            is passed is used as it is.
        rng: Source of jitter.
        codec: Turns payloads and results into JSON values; by default that of `kinds`, or `JsonCodec`. Tasks
            have payloads and results as they are stored.
        kinds: The kinds of messages that it takes, `Handlers`: a put of another kind, or of a payload that
            does not fit, is refused. None: any.
        telemetry: Receives every verb and every run of a worker, such as `OpenTelemetry()`; by default
            nothing does.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "default"
    order: Annotated[Order, Field(strict=False)] = Order.LIFO
    max_age_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 3600.0
    max_attempts: Annotated[int, Field(ge=1)] = 5
    lease_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 60.0
    retention_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] = 86_400.0
    backoff: Backoff = Backoff()
    reserve: ReserveRule = ReserveRule()
    codel: CodelRule | None = None
    backlog: BacklogLimit | None = None
    door: Door | None = None
    worker_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = Field(
        default_factory=_random_name
    )
    clock: Callable[[], float] = time.time
    # Jitter only spreads retries; it needs no secure source.
    rng: random.Random = Field(default_factory=random.Random)
    codec: Codec = JSON
    kinds: Kinds | None = None
    telemetry: Telemetry = Telemetry()

    @field_validator("reserve", mode="before")
    @classmethod
    def _written_reserve(cls, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        return ReserveRule.parse(str(value))

    @field_validator("codec", mode="before")
    @classmethod
    def _codec_is_an_object(cls, codec: object) -> Codec:
        return checked_codec(codec)

    def rules(self) -> OverloadRules:
        """Return the overload rules of the queue.

        Raises:
            ValueError: If the options contradict each other.
        """
        return OverloadRules(
            deadline_seconds=self.max_age_seconds,
            order=self.order,
            reserve=self.reserve,
            codel=self.codel,
            backlog=self.backlog,
            fair=True,
            door=self.door,
        )


def parse_options(options: QueueOptions) -> QueueConfig:
    """Check the options of a queue.

    Raises:
        ValueError: One line that names the first wrong option.
    """
    arguments: dict[str, Any] = dict(options)
    unknown = arguments.keys() - QueueConfig.model_fields.keys()
    if unknown:
        known = ", ".join(QueueConfig.model_fields)
        msg = f"{plain(min(unknown))}: unknown option; use one of {known}"
        raise ValueError(msg)
    try:
        config = QueueConfig.model_validate(arguments)
    except ValidationError as error:
        raise ValueError(first_problem(error, QueueConfig)) from None
    for bound in ("base_seconds", "cap_seconds"):
        seconds = getattr(config.backoff, bound)
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 < seconds <= MAX_SECONDS:
            allowed = f"greater than 0 and at most {MAX_SECONDS:.0f}"
            msg = f"backoff.{bound}: must be {allowed}, got {quoted(seconds)}"
            raise ValueError(msg)
    config.rules()
    return config if "codec" in arguments else _with_codec_of_kinds(config)


def _with_codec_of_kinds(config: QueueConfig) -> QueueConfig:
    """Return the options with the codec of the kinds, if there are any."""
    return config if config.kinds is None else config.model_copy(update={"codec": config.kinds.codec})
