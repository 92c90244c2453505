"""The options of a worker, checked once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from freshq.model.task import MAX_SECONDS
from freshq.model.validation import first_problem
from freshq.policy.limits import ConcurrencyLimit, RetryBudget, SharedBucket
from freshq.worker.report import LoggingObserver, Observer, ObserverBesideTelemetry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from freshq.model.telemetry import Telemetry


class WorkerOptions(TypedDict, total=False):
    """Options by name, as `Worker` takes them, for type checkers; see `WorkerConfig`."""

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
    isolate: bool
    kill_grace_seconds: float
    recycle_runs: int | None
    recycle_mb: int | None
    at_most_once: bool
    transaction: bool
    observer: Observer | None


class WorkerConfig(BaseModel):
    """Options of a worker: the only place for their defaults, bounds and help texts."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    concurrency: int = Field(
        3,
        ge=1,
        description="Maximum number of tasks, or of batches of tasks, that one process runs at a time.",
    )
    rate_per_second: float | None = Field(
        None,
        gt=0,
        le=MAX_SECONDS,
        description="Maximum number of tasks that one process starts per second, or units of their costs. No "
        "limit by default.",
    )
    limit: ConcurrencyLimit | None = Field(
        None,
        description="Maximum number of tasks that all workers of the queue run at a time, fixed or adapted "
        "to push-back from the downstream. No limit by default.",
    )
    shared_bucket: SharedBucket | None = Field(
        None,
        description="Rate at which all workers of the queue start tasks, or units of their costs. No limit "
        "by default.",
    )
    retry_budget: RetryBudget | None = Field(
        None,
        description="Limits the retries of all workers of the queue. A task that fails without budget "
        "becomes a dead letter. No limit by default.",
    )
    poll_seconds: float = Field(
        5.0,
        gt=0,
        le=MAX_SECONDS,
        description="Longest pause between claims that find too few tasks. It is shorter after a task was "
        "found, and a put ends it where the store tells.",
    )
    idle_exit_seconds: float | None = Field(
        None,
        ge=0,
        le=MAX_SECONDS,
        description="End after this time without a task to claim or run. Never by default.",
    )
    drain_seconds: float | None = Field(
        None,
        ge=0,
        le=MAX_SECONDS,
        description="Maximum time to wait for running tasks at the end, before their leases are given back. "
        "By default the wait lasts until the tasks are done.",
    )
    max_run_seconds: float | None = Field(
        None,
        gt=0,
        le=MAX_SECONDS,
        description="Stop extending the lease of a task that runs longer, and free its slot; with `isolate`, "
        "end its process, so that the attempt fails. By default the lease is extended while the task runs.",
    )
    give_up_seconds: float | None = Field(
        None,
        ge=0,
        le=MAX_SECONDS,
        description="Exit with the error if the store answers no claim for this time. By default, never.",
    )
    isolate: bool = Field(
        default=False,
        description="Run each task in a process that can be killed, one process for each slot. The runner "
        "must be importable. Not with transaction.",
    )
    kill_grace_seconds: float = Field(
        0.5,
        ge=0,
        le=MAX_SECONDS,
        description="With isolate, the time that a cancelled run has to return, and again a process after "
        "SIGTERM, before it is killed.",
    )
    recycle_runs: int | None = Field(
        None,
        ge=1,
        description="With isolate, replace a process after this number of runs. Never by default.",
    )
    recycle_mb: int | None = Field(
        None,
        ge=1,
        description="With isolate, replace a process after a run if its peak memory has reached this number "
        "of mebibytes. Never by default.",
    )
    at_most_once: bool = Field(
        default=False,
        description="Complete each task before its run, so that it never runs twice. A failed run is not "
        "repeated, and its result is lost.",
    )
    transaction: bool = Field(
        default=False,
        description="Hold each task in a database transaction instead of a lease, and call the runner with "
        "the task and the connection: its writes commit together with the task. Handlers get it as a "
        "parameter of type sqlalchemy.Connection. SQL only.",
    )
    observer: Observer | None = Field(
        None, description="Receives the events of the run. By default they go to the log."
    )

    @model_validator(mode="after")
    def _has_processes(self) -> Self:
        if self.transaction and self.isolate:
            raise ValueError("isolate: not with transaction, whose connection belongs to this process")
        if not self.isolate and (self.recycle_runs, self.recycle_mb) != (None, None):
            raise ValueError("recycle_runs, recycle_mb: only with isolate, which has processes to replace")
        return self

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

    @property
    def may_prefetch(self) -> bool:
        """Whether tasks may be claimed before their slots are free: nothing else limits or times starts."""
        limits = (self.rate_per_second, self.limit, self.shared_bucket, self.max_run_seconds)
        return not self.at_most_once and all(each is None for each in limits)

    def observer_beside(self, telemetries: Iterable[Telemetry]) -> Observer:
        """Return the observer, by default one that writes to the log, beside telemetry that observes."""
        observer = self.observer or LoggingObserver()
        for telemetry in telemetries:
            if isinstance(telemetry, Observer):
                observer = ObserverBesideTelemetry(observer, telemetry)
        return observer


def parse_worker_options(options: WorkerOptions) -> WorkerConfig:
    """Check the options of a worker.

    Raises:
        ValueError: One line that names the first wrong option.
    """
    try:
        return WorkerConfig.model_validate(dict(options))
    except ValidationError as error:
        raise ValueError(first_problem(error, WorkerConfig)) from None
