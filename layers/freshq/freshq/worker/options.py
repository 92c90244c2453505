"""The options of a worker, checked once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from freshq.model.task import MAX_SECONDS
from freshq.model.validation import first_problem
from freshq.policy.limits import ConcurrencyLimit, RetryBudget, SharedBucket
from freshq.worker.report import LoggingObserver, Observer, ObserverBesideTelemetry

if TYPE_CHECKING:
    from freshq.model.telemetry import Telemetry


class WorkerOptions(TypedDict, total=False):
    """Options by name, as `Worker` takes them; `WorkerConfig` describes them."""

    concurrency: int
    rate_per_second: float | None
    limit: ConcurrencyLimit | None
    shared_bucket: SharedBucket | None
    retry_budget: RetryBudget | None
    poll_seconds: float
    idle_exit_seconds: float | None
    drain_seconds: float | None
    max_run_seconds: float | None
    give_up_seconds: float | None
    at_most_once: bool
    transaction: bool
    observer: Observer | None


class WorkerConfig(BaseModel):
    """Options of a worker.

    Attributes:
        concurrency: Maximum number of tasks that this worker runs at a time.
        rate_per_second: Maximum number of tasks that this worker starts per second; None for no limit.
        limit: Maximum number of tasks that all workers of the queue run at a time, fixed or adapted to the
            downstream's push-back; None for no limit.
        shared_bucket: Rate at which all workers of the queue start tasks; None for no limit.
        retry_budget: Limits the retries of all workers of the queue. A task that fails without budget
            becomes a dead letter. None for no limit.
        poll_seconds: Pause between claims while the queue has too little.
        idle_exit_seconds: Stop after this time without a task to claim or to run; None: never.
        drain_seconds: Maximum time to wait for running tasks at the end; None: until they are done.
        max_run_seconds: Stop extending the lease of a task that runs longer; None: extend it while the
            task runs.
        give_up_seconds: End the run with the error if the store does not answer claims for this time; None:
            wait for as long as it takes.
        at_most_once: Complete each task before its run, so that it never runs twice. A run that fails, or
            dies with its process, is not repeated, and its result is not kept.
        transaction: Hold each task in a database transaction (`Queue.transaction`) instead of a lease. The
            runner is called with the task and the connection; what it writes through that is committed
            together with the task's end. SQL only.
        observer: Receives what happens; None for the log.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    concurrency: Annotated[int, Field(ge=1)] = 3
    rate_per_second: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = None
    limit: ConcurrencyLimit | None = None
    shared_bucket: SharedBucket | None = None
    retry_budget: RetryBudget | None = None
    poll_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 0.5
    idle_exit_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] | None = None
    drain_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] | None = None
    max_run_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = None
    give_up_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] | None = None
    at_most_once: bool = False
    transaction: bool = False
    observer: Observer | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.transaction and self.at_most_once:
            raise ValueError("at_most_once: not with transaction, whose writes and task commit together")
        if self.transaction and self.max_run_seconds is not None:
            msg = "max_run_seconds: not with transaction, whose row stays locked while its run lasts; "
            raise ValueError(msg + "set the timeouts of its statements in the database")
        if self.transaction and self.retry_budget is not None:
            raise ValueError("retry_budget: not with transaction, which settles a task before it ends")
        return self

    def observer_beside(self, telemetry: Telemetry) -> Observer:
        """Return the observer, by default one that writes to the log, beside telemetry that observes."""
        observer = self.observer or LoggingObserver()
        return ObserverBesideTelemetry(observer, telemetry) if isinstance(telemetry, Observer) else observer


def parse_worker_options(options: WorkerOptions) -> WorkerConfig:
    """Check the options of a worker.

    Raises:
        ValueError: One line that names the first wrong option.
    """
    try:
        return WorkerConfig.model_validate(dict(options))
    except ValidationError as error:
        raise ValueError(first_problem(error, WorkerConfig)) from None
