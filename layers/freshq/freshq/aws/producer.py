"""Put tasks on request: given tasks, or a synthetic load at a constant rate."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from freshq.errors import IllegalTransition, Overloaded, PutIncomplete, RefusedError, StoreError
from freshq.model.answers import PutOutcome, Receipt
from freshq.model.task import LIVE
from freshq.model.validation import first_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from freshq.model.new_task import NewTask
    from freshq.policy.pressure import Pressure
    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)

# Load of an empty request: long enough to watch, finished in seconds.
DEMO_COUNT: Final = 20
DEMO_RATE_PER_SECOND: Final = 10.0
# Tasks put between checks of the remaining time.
BATCH_TASKS: Final = 25
# Maximum pause between the puts of a synthetic load.
STEP_SECONDS: Final = 0.1
# Maximum number of errors in an answer; all are counted.
MAX_LISTED_ERRORS: Final = 100
# Maximum size of the ids, and of the indexes, in an answer. Lambda fails an invocation whose answer has more
# than 6 MB, after the tasks were put.
MAX_LISTED_BYTES: Final = 2_000_000
# The lists of an answer with an entry for each task.
LISTS: Final = ("task_ids", "not_written")
REFUSED_NOTE: Final = (
    "refused tasks do not fail the invocation, because a retry would refuse them again; "
    "correct those listed in errors and send them once more"
)
UNLISTED_NOTE: Final = (
    "an answer has at most 6 MB, so {name} lists the first {listed} of {total}; the counts are complete"
)
GENERATED_NOTE: Final = "a task without a task_id of its own has the request id, a hyphen and its index"


class LoadRequest(BaseModel):
    """A request for `tasks` or for a synthetic load; an empty request asks for a small load.

    Attributes:
        tasks: Tasks, each with the arguments of `Queue.put`.
        count: Maximum number of tasks of the load.
        rate_per_second: Tasks per second. By default count divided by duration; with only a count, as fast
            as possible.
        duration_seconds: Maximum duration of the load.
    """

    # Strict, as the arguments of `put` are: true is no number, and neither is "3".
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

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
            raise ValueError("rate_per_second: needs count or duration_seconds, else the load never ends")
        return self

    def schedule(self) -> tuple[int, float]:
        """Return the number of tasks of the synthetic load, and its rate per second (infinite: no pauses)."""
        if self.count is None and self.duration_seconds is None:
            return DEMO_COUNT, DEMO_RATE_PER_SECOND
        if self.duration_seconds is None:
            return self.count or DEMO_COUNT, self.rate_per_second or float("inf")
        if self.rate_per_second is None and self.count is not None:
            return self.count, self.count / self.duration_seconds
        rate_per_second = self.rate_per_second or DEMO_RATE_PER_SECOND
        fitting = max(1, round(rate_per_second * self.duration_seconds))
        return fitting if self.count is None else min(self.count, fitting), rate_per_second


def parse_load_request(event: Any) -> LoadRequest:
    """Return the request in an event; a scheduled event without input asks for the small load.

    Raises:
        ValueError: One line that names the wrong field and what is allowed.
    """
    if not isinstance(event, dict):
        msg = f"event: must be a JSON object, got {type(event).__name__}"
        raise ValueError(msg)
    if event.get("detail-type") == "Scheduled Event":
        return LoadRequest()
    try:
        return LoadRequest.model_validate(event)
    except ValidationError as error:
        raise ValueError(first_problem(error, LoadRequest).removeprefix("input: ")) from None


@dataclass
class LoadReport:
    """The answer to a request, in numbers of tasks.

    Attributes:
        requested: Requested tasks.
        created: New tasks in the queue.
        duplicates: Tasks whose id is already taken.
        updated: Live tasks that `on_conflict` replaced.
        refused: Invalid tasks.
        failed: Tasks that the store did not write.
        turned_away: Tasks that admission control rejected, by reason.
        not_attempted: Tasks left when time ran out.
        stopped_early: Whether time ran out.
        errors: The first `MAX_LISTED_ERRORS` errors of refused, rejected or failed tasks.
        task_ids: The id of each given task, in order, generated if missing; None for tasks that are invalid
            or were not attempted.
        not_written: Indexes of given tasks that were not written, because the store failed or time ran out.
        created_ids: Ids of new given tasks, for the log only.
        pressure: The pressure on the queue; None if the store did not answer.
    """

    requested: int
    created: int = 0
    duplicates: int = 0
    updated: int = 0
    refused: int = 0
    failed: int = 0
    turned_away: dict[str, int] = field(default_factory=dict)
    not_attempted: int = 0
    stopped_early: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)
    task_ids: list[str | None] = field(default_factory=list)
    not_written: list[int] = field(default_factory=list)
    created_ids: list[str] = field(default_factory=list)
    pressure: Pressure | None = None

    @property
    def answer(self) -> dict[str, Any]:
        """The report as values for JSON, with a note if tasks were refused, or not all are listed."""
        values = {name: value for name, value in asdict(self).items() if name != "created_ids"}
        notes = [REFUSED_NOTE] if self.refused else []
        for name in LISTS:
            listed = values[name] = _first_in(values[name], MAX_LISTED_BYTES)
            total = len(getattr(self, name))
            if len(listed) < total:
                notes.append(UNLISTED_NOTE.format(name=name, listed=len(listed), total=total))
                notes += [GENERATED_NOTE] if name == "task_ids" else []
        return values | {"note": "; ".join(notes)} if notes else values

    @property
    def summary(self) -> dict[str, Any]:
        """The answer without its unbounded lists of tasks."""
        return {name: value for name, value in self.answer.items() if name not in LISTS}

    @property
    def unwritten(self) -> int:
        """Number of tasks that a retry could write. The rest of a synthetic load does not count."""
        return len(self.not_written) if self.task_ids else self.failed

    def raise_if_incomplete(self) -> None:
        """Raise if any task is still unwritten that a retry could write.

        Raises:
            TasksNotWritten: If the store failed for some tasks, or time ran out before all given tasks.
        """
        if self.unwritten:
            raise TasksNotWritten(self)

    def note(self, index: int, outcome: object) -> None:
        """Count the outcome of the task at `index`."""
        if isinstance(outcome, Receipt):
            self.created += outcome.outcome is PutOutcome.CREATED
            self.duplicates += outcome.outcome is PutOutcome.DUPLICATE
            self.updated += outcome.outcome is PutOutcome.UPDATED
            if self.task_ids and outcome.outcome is PutOutcome.CREATED:
                self.created_ids.append(outcome.task_id)
            return
        if isinstance(outcome, IllegalTransition) and outcome.status in LIVE:
            self.duplicates += 1
            return
        if isinstance(outcome, Overloaded):
            self.turned_away[outcome.reason] = self.turned_away.get(outcome.reason, 0) + 1
        elif isinstance(outcome, ValueError | RefusedError):
            self.refused += 1
        else:
            self.failed += 1
            if self.task_ids:
                self.not_written.append(index)
        if len(self.errors) < MAX_LISTED_ERRORS:
            self.errors.append({"index": index, "error": str(outcome)})


def _first_in(values: Sequence[Any], limit_bytes: int) -> list[Any]:
    """Return the first values of a list whose JSON text fits."""
    ends = accumulate(len(json.dumps(value)) + len(", ") for value in values)
    return [value for value, end in zip(values, ends, strict=True) if end <= limit_bytes]


class TasksNotWritten(StoreError):
    """Some tasks were not written. Repeating the invocation creates no task twice.

    Lambda repeats failed asynchronous invocations under the same request id, and ids are derived from it.
    """

    def __init__(self, report: LoadReport) -> None:
        """Name the tasks, the first `MAX_LISTED_ERRORS` of them by index and id."""
        missing = {
            "not_written": [
                {"index": index, "task_id": report.task_ids[index]}
                for index in report.not_written[:MAX_LISTED_ERRORS]
            ],
            "errors": report.errors[:1],
        }
        super().__init__(
            f"{report.unwritten} of {report.requested} tasks were not written: {json.dumps(missing)}; "
            "put them again with the same task_id"
        )


def produce(
    queue: BaseQueue,
    request: LoadRequest,
    id_prefix: str,
    seconds_left: Callable[[], float],
    sleep: Callable[[float], None] = time.sleep,
) -> LoadReport:
    """Put the requested tasks while time is left.

    Args:
        queue: The queue.
        request: The requested tasks.
        id_prefix: Ids are generated from it and the index of the task, so that a repeated request with
            the same prefix creates no task twice.
        seconds_left: Returns the remaining time.
        sleep: Waits for a number of seconds.

    Raises:
        StoreError: If the store wrote none of the first batch.
    """
    if request.tasks is not None:
        report = _put_given(queue, request.tasks, id_prefix, seconds_left)
    else:
        report = _put_load(queue, *request.schedule(), id_prefix, seconds_left, sleep)
    try:
        report.pressure = queue.pressure()
    except StoreError:
        # The tasks are in the queue, so the answer must not be an error.
        logger.warning("could not measure the queue's pressure", exc_info=True)
    return report


def _put_given(
    queue: BaseQueue, tasks: Sequence[Any], id_prefix: str, seconds_left: Callable[[], float]
) -> LoadReport:
    report = LoadReport(requested=len(tasks), task_ids=[None] * len(tasks))
    for start in range(0, len(tasks), BATCH_TASKS):
        if seconds_left() <= 0:
            report.not_written += range(start, len(tasks))
            return _out_of_time(report, len(tasks) - start)
        good: list[tuple[int, NewTask]] = []
        for index, task in enumerate(tasks[start : start + BATCH_TASKS], start):
            try:
                new = _with_id(queue.admin.check(task), id_prefix, index)
            except ValueError as error:
                report.note(index, error)
            else:
                report.task_ids[index] = new.task_id
                good.append((index, new))
        _put_batch(queue, good, report)
    return report


def _with_id(new: NewTask, id_prefix: str, index: int) -> NewTask:
    return new if new.task_id is not None else new.model_copy(update={"task_id": f"{id_prefix}-{index}"})


def _put_load(
    queue: BaseQueue,
    total: int,
    rate_per_second: float,
    id_prefix: str,
    seconds_left: Callable[[], float],
    sleep: Callable[[float], None],
) -> LoadReport:
    report = LoadReport(requested=total)
    new = queue.admin.check({"payload": {"demo": True}})
    began = time.monotonic()
    done = 0
    while done < total:
        if seconds_left() <= 0:
            return _out_of_time(report, total - done)
        elapsed_seconds = time.monotonic() - began
        due = min(total, BATCH_TASKS + done, int(min(elapsed_seconds * rate_per_second, total)) + 1)
        if due > done:
            batch = [(index, _with_id(new, id_prefix, index)) for index in range(done, due)]
            _put_batch(queue, batch, report)
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
    except (RefusedError, StoreError) as error:
        outcomes = [error] * len(batch)
    errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
    if (
        len(errors) == len(outcomes)
        and report.created + report.duplicates + report.updated + len(report.turned_away) == 0
    ):
        raise errors[0]
    for (index, _new), outcome in zip(batch, outcomes, strict=True):
        report.note(index, outcome)


def _out_of_time(report: LoadReport, left: int) -> LoadReport:
    report.not_attempted = left
    report.stopped_early = True
    return report
