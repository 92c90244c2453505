"""Options of the worker passes of a stack. The trigger reads them, and imports little else."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

# Name of the shared record with these options.
STACK_RECORD: Final = "freshq#stack-options"


class PassOptions(BaseModel):
    """The options of the worker passes of a stack, stored beside those of its queue.

    A pass under way ends when they change, and the next pass uses the new ones: no deployment is needed.
    """

    model_config = ConfigDict(frozen=True, strict=True, defer_build=True, allow_inf_nan=False)

    worker_passes: int = Field(1, ge=1, description="Worker passes at a time, by slots in the table.")
    concurrency: int = Field(3, ge=1, description="Tasks that one pass runs at a time.")
    pass_seconds: float = Field(
        60.0, gt=0, le=800, description="Time for which a pass claims tasks before it calls its successor."
    )
    idle_exit_seconds: float = Field(
        1.0, gt=0, le=800, description="Time that a pass waits for another task before it ends."
    )
    settle_seconds: float = Field(
        30.0,
        ge=2,
        le=890,
        description="Time kept free before the function's timeout to finish running tasks: longer than a "
        "task takes.",
    )
    max_hops: int = Field(
        100, ge=1, description="Tail calls in one chain. The sweep starts a new chain if work is left."
    )
    limit_lowest: int = Field(
        1, ge=1, description="Lower bound of the adaptive concurrency limit over all passes."
    )
    limit_highest: int = Field(
        0, ge=0, description="Upper bound of the adaptive concurrency limit over all passes; 0 for no limit."
    )
    limit_window_seconds: float = Field(
        10.0, gt=0, description="Time between changes of that limit; longer than a task takes."
    )
    shared_rate_per_second: float = Field(
        0.0,
        ge=0,
        description="Tasks per second that all passes together start, or units of their costs; 0 for no "
        "limit.",
    )
    retry_fraction: float = Field(
        0.0, ge=0, le=1, description="Retries per first attempt over all passes; 0 for no limit."
    )
    log_sample_ratio: float = Field(
        0.1, ge=0, le=1, description="Share of the tasks whose claims and successes are logged."
    )
