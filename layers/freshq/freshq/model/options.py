"""The options of a queue, checked once."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable  # noqa: TC003 - Pydantic reads it at run time
from typing import Annotated, Any, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from freshq.model.new_task import first_problem
from freshq.model.task import MAX_SECONDS
from freshq.policy.order import Order
from freshq.policy.pressure import Door  # noqa: TC001 - Pydantic reads it at run time
from freshq.policy.retry import Backoff
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule
from freshq.policy.shedding import BacklogLimit  # noqa: TC001 - Pydantic reads it at run time


def _random_name() -> str:
    return uuid.uuid4().hex[:12]


class QueueOptions(TypedDict, total=False):
    """Options by name, as the constructors of `Queue` take them; `QueueConfig` says what they mean."""

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


class QueueConfig(BaseModel):
    """Options of a queue.

    Attributes:
        name: Queues of other names may share the table.
        order: Order of service within a priority level.
        max_age_seconds: A task older than this is stale, unless its own max age is shorter.
        max_attempts: Claims after which a task that fails is a dead letter.
        lease_seconds: How long a claimer may go without a word before its task is taken back.
        retention_seconds: How long a finished or shed task stays readable, and its id taken.
        backoff: Delay between attempts.
        reserve: Time that a task must still have when it is claimed: seconds, or a running percentile
            of the service times, such as "p90".
        codel: Shed what waited long while the whole queue is slow; only with order FIFO.
        backlog: How many tasks may wait, and which give way.
        door: Refuse new tasks beyond a multiple of what is served.
        worker_name: Stands in the tokens of the leases that this process holds, so that the change stream
            tells who held what; a random one unless it is given.
        clock: Returns the time in seconds since the Unix epoch.
        rng: Source of the jitter.
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
    # Jitter spreads retries in time; nothing secret depends on it.
    rng: random.Random = Field(default_factory=random.Random)

    @field_validator("reserve", mode="before")
    @classmethod
    def _written_reserve(cls, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        return ReserveRule.parse(str(value))

    def rules(self) -> OverloadRules:
        """Return what the queue does under overload.

        Raises:
            ValueError: If the options make no sense together.
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
        msg = f"{min(unknown)}: unknown option; known are {', '.join(QueueConfig.model_fields)}"
        raise ValueError(msg)
    try:
        config = QueueConfig.model_validate(arguments)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    for bound in ("base_seconds", "cap_seconds"):
        seconds = getattr(config.backoff, bound)
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 < seconds <= MAX_SECONDS:
            msg = f"backoff.{bound}: must be greater than 0 and at most {MAX_SECONDS:.0f}, got {seconds!r}"
            raise ValueError(msg)
    config.rules()
    return config
