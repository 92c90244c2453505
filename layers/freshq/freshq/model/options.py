"""The options of a queue and their validation."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable  # noqa: TC003 - pydantic reads it
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

from pydantic import ConfigDict, Field, ValidationError, field_validator

from freshq.errors import plain, quoted
from freshq.model.codec import JSON, Codec, Kinds, checked_codec
from freshq.model.fields import DEFAULT_NAME, MAX_EPOCH_SECONDS
from freshq.model.storable_options import QueueRules
from freshq.model.task import MAX_SECONDS
from freshq.model.telemetry import Telemetry
from freshq.model.validation import first_problem
from freshq.policy.retry import Backoff
from freshq.policy.rules import OverloadRules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.policy.backlog_limit import BacklogLimit
    from freshq.policy.groups import GroupRules
    from freshq.policy.order import Order
    from freshq.policy.pressure import AdmissionLimit
    from freshq.policy.rules import CodelRule, ReserveRule

NAME_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,64}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


def _random_name() -> str:
    return uuid.uuid4().hex[:12]


class QueueOptions(TypedDict, total=False):
    """Options by name, as the constructors of `Queue` take them, for type checkers; see `QueueConfig`."""

    order: Order | str
    max_age_seconds: float | None
    max_attempts: int | None
    lease_seconds: float
    retention_seconds: float
    dead_letter_retention_seconds: float | None
    traceback_bytes: int
    backoff: Backoff | Literal["auto"]
    reserve: ReserveRule | str | float | None
    codel: CodelRule | None
    backlog: BacklogLimit | None
    admission: AdmissionLimit | None
    groups: GroupRules
    name: str
    override: bool
    worker_name: str
    clock: Callable[[], float]
    rng: random.Random
    codec: Codec
    kinds: Kinds | None
    telemetry: Telemetry


class SqlOptions(QueueOptions, total=False):
    """Also the limits of the connections to a SQL database, as `Queue.sql` takes them.

    Attributes:
        connect_timeout_seconds: Maximum wait for a connection. None: 5 s, or less if leases are short.
        answer_timeout_seconds: Maximum wait for an answer or a free connection. None: 15 s, or less.
        lock_timeout_seconds: Maximum wait of a statement for a lock. None: 5 s, or less.
        max_connections: Maximum number of connections of this process; 10 by default.
        durable: Whether SQLite waits for the disk at each commit; it does by default.
    """

    connect_timeout_seconds: float | None
    answer_timeout_seconds: float | None
    lock_timeout_seconds: float | None
    max_connections: int
    durable: bool


class QueueConfig(QueueRules):
    """Options of a queue: options that can be stored with it, and options that only a program can give."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
        defer_build=False,
    )

    name: Name = Field(DEFAULT_NAME, description="Name of the queue: several can share a table.")
    override: bool = Field(
        default=False,
        description="Use the options that are named here instead of those stored with the queue, and store "
        "none. Without it, naming another value is an error.",
    )
    worker_name: Name = Field(
        default_factory=_random_name,
        description="Prefix of the lease tokens of this process, so that the change stream shows who held a "
        "task. Random by default.",
    )
    clock: Callable[[], float] = Field(
        time.time,
        description="Returns the time in seconds since the Unix epoch. By default the store's time; a clock "
        "that is passed is used as it is.",
    )
    rng: random.Random = Field(default_factory=random.Random, description="Source of jitter.")
    codec: Codec = Field(
        JSON,
        description="Turns payloads and results into JSON values. By default the codec of `kinds`, or "
        "`JsonCodec`. A `Task` has its payload and result in their stored form.",
    )
    kinds: Kinds | None = Field(
        None,
        description="Kinds of messages that the queue takes, as `Handlers`: a put of another kind, or of a "
        "payload that does not fit, is refused. By default the queue accepts any kind.",
    )
    telemetry: Telemetry = Field(
        Telemetry(),
        description="Receives every verb and every run of a worker, such as `OpenTelemetry()`. By default "
        "nothing does.",
    )

    @field_validator("clock")
    @classmethod
    def _clock_returns_seconds(cls, clock: Callable[[], float]) -> Callable[[], float]:
        now: object = clock()
        if not isinstance(now, int | float) or not 0 <= now < MAX_EPOCH_SECONDS:
            msg = f"must return the seconds since 1970, such as time.time, and returns {quoted(now)}"
            raise ValueError(msg)
        return clock

    @field_validator("codec", mode="before")
    @classmethod
    def _codec_is_an_object(cls, codec: object) -> Codec:
        return checked_codec(codec)

    @property
    def stale_after_seconds(self) -> float:
        """The max age as a number: a century if tasks are never stale."""
        return MAX_SECONDS if self.max_age_seconds is None else self.max_age_seconds

    def rules(self) -> OverloadRules:
        """Return the overload rules of the queue.

        Raises:
            ValueError: If the options contradict each other.
        """
        if self.max_age_seconds is None and self.admission and not (self.backlog or self.codel):
            msg = (
                "admission: judges the load by the max age, and max_age_seconds is None; set it, or bound "
                "the queue by a backlog"
            )
            raise ValueError(msg)
        return OverloadRules(
            deadline_seconds=self.stale_after_seconds,
            order=self.order,
            reserve=self.reserve.for_order(self.order, has_max_age=self.max_age_seconds is not None),
            codel=self.codel,
            backlog=self.backlog,
            fair=True,
            admission=self.admission,
            groups=self.groups,
        )


def parse_options(options: QueueOptions) -> QueueConfig:
    """Check the options of a queue, and that they are consistent.

    Raises:
        ValueError: One line that names the first wrong option.
    """
    config = checked_options(options)
    config.rules()
    return config if "codec" in options else _with_codec_of_kinds(config)


def checked_options(options: Mapping[str, Any]) -> QueueConfig:
    """Check each option of a queue by itself.

    Raises:
        ValueError: One line that names the first wrong option.
    """
    arguments = dict(options)
    unknown = arguments.keys() - QueueConfig.model_fields.keys()
    if unknown:
        known = ", ".join(QueueConfig.model_fields)
        msg = f"{plain(min(unknown))}: unknown option; use one of {known}"
        raise ValueError(msg)
    try:
        config = QueueConfig.model_validate(arguments)
    except ValidationError as error:
        raise ValueError(first_problem(error, QueueConfig)) from None
    backoff = config.backoff
    for bound in ("base_seconds", "cap_seconds") if isinstance(backoff, Backoff) else ():
        seconds = getattr(backoff, bound)
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 < seconds <= MAX_SECONDS:
            allowed = f"greater than 0 and at most {MAX_SECONDS:.0f}"
            msg = f"backoff.{bound}: must be {allowed}, got {quoted(seconds)}"
            raise ValueError(msg)
    return config


def _with_codec_of_kinds(config: QueueConfig) -> QueueConfig:
    """Return the options with the codec of the kinds, if there are any."""
    return config if config.kinds is None else config.model_copy(update={"codec": config.kinds.codec})
