"""Puts tasks on request: given ones, or a synthetic load at a steady rate."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from freshq.errors import Overloaded, PutIncomplete, StoreError
from freshq.model.answers import PutOutcome, Receipt
from freshq.model.new_task import first_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from freshq.model.new_task import NewTask
    from freshq.policy.pressure import Pressure
    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)

# What `{}` makes: enough to watch, over in seconds.
DEMO_COUNT: Final = 20
DEMO_RATE_PER_SECOND: Final = 10.0
# Tasks put in one go, between looks at the time that is left.
BATCH_TASKS: Final = 25
# A load of a given rate is put in steps of so long.
STEP_SECONDS: Final = 0.1
# In an answer, errors are listed up to this number; all are counted.
MAX_LISTED_ERRORS: Final = 100


class LoadRequest(BaseModel):
    """What to put: `tasks`, or a synthetic load by its figures, or nothing for a small one.

    Attributes:
        tasks: Tasks, each with the arguments of `Queue.put`.
        count: How many tasks the load has, at the most.
        rate_per_second: How many a second; left out: what count and duration make of it, or, with
            count alone, as fast as possible.
        duration_seconds: How long the load lasts, at the most.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tasks: list[Any] | None = None
    count: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    rate_per_second: Annotated[float, Field(gt=0)] | None = None
    duration_seconds: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one_kind_of_load(self) -> LoadRequest:
        ends = self.count is not None or self.duration_seconds is not None
        if self.tasks is not None and (ends or self.rate_per_second is not None):
            raise ValueError("tasks: give either tasks or count, rate_per_second and duration_seconds")
        if self.rate_per_second is not None and not ends:
            raise ValueError("rate_per_second: needs count or duration_seconds beside it, to end")
        return self

    def schedule(self) -> tuple[int, float]:
        """Return how many tasks the synthetic load has, and how many a second (infinite: at once)."""
        if self.count is None and self.duration_seconds is None:
            return DEMO_COUNT, DEMO_RATE_PER_SECOND
        if self.duration_seconds is None:
            return self.count or DEMO_COUNT, self.rate_per_second or float("inf")
        if self.rate_per_second is None and self.count is not None:
            return self.count, self.count / self.duration_seconds
        rate_per_second = self.rate_per_second or DEMO_RATE_PER_SECOND
        fitting = max(1, round(rate_per_second * self.duration_seconds))
        return fitting if self.count is None else min(self.count, fitting), rate_per_second


def parse_load_request(event: Any) -> LoadRequest:  # noqa: ANN401 - what a caller sent
    """Return the request that an event holds; a scheduled event without input asks for the small load.

    Raises:
        ValueError: One line that names the field and what is allowed.
    """
    if not isinstance(event, dict):
        msg = f"event: must be a JSON object, got {type(event).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - bad input is a ValueError throughout
    if event.get("detail-type") == "Scheduled Event":
        return LoadRequest()
    try:
        return LoadRequest.model_validate(event)
    except ValidationError as error:
        raise ValueError(first_problem(error, LoadRequest).removeprefix("input: ")) from None


@dataclass
class LoadReport:
    """What became of a request.

    Attributes:
        requested: Tasks asked for.
        created: Tasks that are in the queue now.
        duplicates: Tasks whose id the table knew already.
        refused: Tasks that were wrong; nothing of them was written.
        failed: Tasks that the store did not take; to put them again with the same task_id is safe.
        turned_away: Tasks that the door or a full backlog refused, by reason; nothing of them was written.
        not_attempted: Tasks left when time was up.
        stopped_early: Whether time was up.
        errors: Why tasks were refused, turned away or failed, the first `MAX_LISTED_ERRORS` of them.
        pressure: How hard the queue is pressed, see `freshq.policy.pressure.Pressure`; None if the store
            did not answer to that.
    """

    requested: int
    created: int = 0
    duplicates: int = 0
    refused: int = 0
    failed: int = 0
    turned_away: dict[str, int] = field(default_factory=dict)
    not_attempted: int = 0
    stopped_early: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)
    pressure: Pressure | None = None

    def note(self, index: int, outcome: object) -> None:
        """Count the outcome of the task at `index`."""
        if isinstance(outcome, Receipt):
            self.created += outcome.outcome is PutOutcome.CREATED
            self.duplicates += outcome.outcome is PutOutcome.DUPLICATE
            return
        if isinstance(outcome, Overloaded):
            self.turned_away[outcome.reason] = self.turned_away.get(outcome.reason, 0) + 1
        elif isinstance(outcome, ValueError):
            self.refused += 1
        else:
            self.failed += 1
        if len(self.errors) < MAX_LISTED_ERRORS:
            self.errors.append({"index": index, "error": str(outcome)})


def produce(
    queue: BaseQueue,
    request: LoadRequest,
    seconds_left: Callable[[], float],
    sleep: Callable[[float], None] = time.sleep,
) -> LoadReport:
    """Put what was asked for, as long as time is left.

    Args:
        queue: Where to put it.
        request: What to put.
        seconds_left: Returns how long this may still take.
        sleep: Waits for some seconds.

    Raises:
        StoreError: If the store took none of the first tasks.
    """
    if request.tasks is not None:
        report = _put_given(queue, request.tasks, seconds_left)
    else:
        report = _put_load(queue, *request.schedule(), seconds_left, sleep)
    try:
        report.pressure = queue.pressure()
    except StoreError:
        # The tasks are in: that they are is what the answer is for.
        logger.warning("the pressure on the queue was not measured", exc_info=True)
    return report


def _put_given(queue: BaseQueue, tasks: Sequence[Any], seconds_left: Callable[[], float]) -> LoadReport:
    report = LoadReport(requested=len(tasks))
    for start in range(0, len(tasks), BATCH_TASKS):
        if seconds_left() <= 0:
            return _out_of_time(report, len(tasks) - start)
        good: list[tuple[int, NewTask]] = []
        for index, task in enumerate(tasks[start : start + BATCH_TASKS], start):
            try:
                good.append((index, queue.check(task)))
            except ValueError as error:
                report.note(index, error)
        _put_batch(queue, good, report)
    return report


def _put_load(
    queue: BaseQueue,
    total: int,
    rate_per_second: float,
    seconds_left: Callable[[], float],
    sleep: Callable[[float], None],
) -> LoadReport:
    report = LoadReport(requested=total)
    new = queue.check({"payload": {"demo": True}})
    began = time.monotonic()
    done = 0
    while done < total:
        if seconds_left() <= 0:
            return _out_of_time(report, total - done)
        elapsed_seconds = time.monotonic() - began
        due = min(total, BATCH_TASKS + done, int(min(elapsed_seconds * rate_per_second, total)) + 1)
        if due > done:
            _put_batch(queue, [(index, new) for index in range(done, due)], report)
            done = due
        else:
            sleep(min(STEP_SECONDS, (done + 1) / rate_per_second - elapsed_seconds))
    return report


def _put_batch(queue: BaseQueue, batch: Sequence[tuple[int, NewTask]], report: LoadReport) -> None:
    if not batch:
        return
    try:
        outcomes: Sequence[object] = queue.put_many([new for _index, new in batch])
    except PutIncomplete as incomplete:
        outcomes = incomplete.receipts
    except (Overloaded, StoreError) as error:
        outcomes = [error] * len(batch)
    errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
    if len(errors) == len(outcomes) and report.created + report.duplicates + len(report.turned_away) == 0:
        raise errors[0]
    for (index, _new), outcome in zip(batch, outcomes, strict=True):
        report.note(index, outcome)


def _out_of_time(report: LoadReport, left: int) -> LoadReport:
    report.not_attempted = left
    report.stopped_early = True
    return report
