"""The arguments of `put`, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from freshq.errors import quoted
from freshq.model.fields import MAX_EPOCH_SECONDS, MAX_ID_BYTES, QUEUE_KEY_PREFIX, RESERVED_ID_PREFIX
from freshq.model.forks import new_lock
from freshq.model.task import (
    MAX_PRIORITY,
    MAX_SECONDS,
    MAX_TRACESTATE_BYTES,
    TRACEPARENT,
    Task,
    checked_trace_context,
)
from freshq.model.validation import MAX_PAYLOAD_BYTES, first_problem, json_copy, json_text
from freshq.policy.value import LARGEST_COST, LARGEST_VALUE, SMALLEST_COST, SMALLEST_VALUE, Decay

TOO_LARGE: Final = (
    f"{{}} bytes of JSON, at most {MAX_PAYLOAD_BYTES} are allowed on every store; "
    "store large data elsewhere, and put a reference to it"
)
MAX_GROUP_BYTES: Final = 256
# Pydantic's `model_rebuild` is not thread-safe, and the first puts of a process may be concurrent.
_BUILDING: Final = new_lock()


def _every_store_keeps_it(text: str, limit_bytes: int = MAX_GROUP_BYTES) -> str:
    if len(text.encode()) > limit_bytes:
        msg = f"{len(text.encode())} bytes, at most {limit_bytes} are allowed; shorten it"
        raise ValueError(msg)
    if "\0" in text:  # PostgreSQL has no NUL
        msg = f"must not contain the character NUL; leave it out, got {quoted(text)}"
        raise ValueError(msg)
    return text


def _can_be_an_id(task_id: str) -> str:
    for prefix in (RESERVED_ID_PREFIX, QUEUE_KEY_PREFIX):
        if task_id.startswith(prefix):
            msg = f"ids that begin with {prefix!r} are reserved; use another id, got {quoted(task_id)}"
            raise ValueError(msg)
    return _every_store_keeps_it(task_id, MAX_ID_BYTES)


def _as_parent(value: Any) -> Any:
    """Return the fields that a child inherits from a task or a claim; other values unchanged."""
    task = getattr(value, "task", value)
    if isinstance(task, Task):
        return task.as_parent
    if value is None or isinstance(value, Mapping | Parent):
        return value
    msg = f"must be the Task that a handler gets, its Claim, or `Task.as_parent`, got {type(value).__name__}"
    raise ValueError(msg)


Id: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_can_be_an_id)]
Name: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_every_store_keeps_it)]
TraceContext: TypeAlias = Annotated[
    str,
    AfterValidator(checked_trace_context),
    Field(json_schema_extra={"pattern": f"^{TRACEPARENT.pattern}( [ -~]{{0,{MAX_TRACESTATE_BYTES}}})?$"}),
]


class Parent(BaseModel):
    """The fields that a task inherits from the task whose run puts it.

    Attributes:
        task_id: Id of that task.
        root_id: The first task of its chain; None if it is the first.
        deadline: The child's deadline is no later, in seconds since the epoch; None: it has only its own.
        group: The child's group, unless its put names one.
        trace_context: The child's trace context, unless its put or the telemetry gives it one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    task_id: Id
    root_id: Id | None = None
    deadline: float | None = None
    group: Name | None = None
    trace_context: TraceContext | None = None


class NewTask(BaseModel):
    """The arguments of a put.

    Attributes:
        payload: The work: a value for `json_text`, at most `MAX_PAYLOAD_BYTES` as UTF-8 JSON.
        task_id: The caller's id; None for a UUID.
        priority: 0 to 9, higher first.
        delay_seconds: Delay before the task enters its line and can be claimed.
        max_age_seconds: Seconds until the task is stale, from now or, if it is delayed, from when it is due;
            None for the queue's max age.
        group: Tenant or key.
        kind: The type of the message; a worker may choose its handler by it.
        value: Its value if it is done in time, relative to the other tasks of the queue; greater than 0. None
            counts as 1. The order "value" serves by it.
        decay: How the value falls until the deadline: "step", not at all, or "linear", steadily to 0.
        at: When the task enters its line and can be claimed, in seconds since the epoch; may be given as a
            datetime with a time zone. In the past, it still decides the place and the age of the task.
        trace_context: The trace that the task belongs to: a W3C traceparent, and after a space the
            tracestate, if any. None: the queue's telemetry sets it.
        parent: The task whose run puts this one: a Task or a Claim, or `Task.as_parent` from another process.
            The child is stale no later than its parent, and has its group and trace unless it has others; its
            place is its own. If too little time is left, it is rejected with the reason `deadline`.
        on_conflict: What to do if a live task has the id. "ignore" keeps that task. "update" replaces it, and
            a worker that runs it loses its claim. "after" replaces a waiting task, but lets a running one
            finish: the new task waits behind it, and enters its line when the run ends, however it ends. A
            later put with "after" replaces the one that waits. A run that would be repeated ends as
            CANCELLED instead, because the new task takes its place. The id of an ended task is always free.
            Not on attached tables. None for the argument of the call.
        debounce_max_seconds: The longest time for which repeated puts can delay a task; needs
            `delay_seconds`, and "update" or "after". A put that replaces a waiting task keeps its `put_at`,
            and is due no later than this after it. So if each put names it, the task is due no later than
            this after the first put. None: each put starts its whole delay anew.
        cost: The units that a run is expected to take of limits in units, such as tokens of a model; greater
            than 0. None counts as 1. `Task.set_cost` corrects it.

    Examples:
        >>> queue.put_many([NewTask(payload="work", task_id="b", priority=5)])[0].task_id
        'b'
    """

    # Most functions put no tasks: `parse_new_task` builds the validator at the first put.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    payload: Any = None
    task_id: Id | None = None
    priority: Annotated[int, Field(ge=0, le=MAX_PRIORITY)] = 0
    delay_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] = 0
    max_age_seconds: Annotated[float, Field(gt=0)] | None = None
    group: Name | None = None
    kind: Name | None = None
    value: Annotated[float, Field(ge=SMALLEST_VALUE, le=LARGEST_VALUE)] | None = None
    decay: Annotated[Decay, Field(strict=False)] | None = None
    at: Annotated[float, Field(ge=0, le=MAX_EPOCH_SECONDS)] | None = None
    trace_context: TraceContext | None = None
    parent: Annotated[Parent | None, BeforeValidator(_as_parent)] = None
    on_conflict: Literal["ignore", "update", "after"] | None = None
    debounce_max_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = None
    cost: Annotated[float, Field(ge=SMALLEST_COST, le=LARGEST_COST)] | None = None

    @field_validator("at", mode="before")
    @classmethod
    def _at_is_an_instant(cls, at: Any) -> Any:
        if not isinstance(at, datetime):
            return at
        if at.tzinfo is None:
            msg = "a datetime needs a time zone; use datetime.now(timezone.utc) or a ZoneInfo"
            raise ValueError(msg)
        return at.timestamp()

    @model_validator(mode="after")
    def _can_be_put(self) -> Self:
        if self.at is not None and self.delay_seconds:
            raise ValueError("at: cannot be combined with delay_seconds; use one of them")
        if self.debounce_max_seconds is not None and not 0 < self.delay_seconds <= self.debounce_max_seconds:
            raise ValueError("debounce_max_seconds: needs a delay_seconds that is above 0 and no longer")
        if self.parent is not None:
            inherited = {"group": self.parent.group, "trace_context": self.parent.trace_context}
            self.__dict__.update({name: getattr(self, name) or value for name, value in inherited.items()})
        try:
            text = json_text(self.payload)
            size_bytes = len(text.encode())
            if size_bytes > MAX_PAYLOAD_BYTES:
                raise ValueError(TOO_LARGE.format(size_bytes))  # noqa: TRY301 - named below, as its other errors
            # A copy, as every store returns it, which the caller cannot change.
            self.__dict__["payload"] = json_copy(text, self.payload)
            self.__dict__["payload_text"] = text
        except ValueError as error:
            msg = f"payload: {error}"
            raise ValueError(msg) from error
        return self

    @cached_property
    def payload_text(self) -> str:
        """The payload as JSON, serialized once for its check and for the stores that keep text."""
        return json_text(self.payload)


def parse_new_task(arguments: Mapping[str, Any] | NewTask, where: str = "") -> NewTask:
    """Check the arguments of one put.

    Args:
        arguments: The arguments by name.
        where: Prefix for field names in errors, such as ``tasks[3].``.

    Raises:
        ValueError: One line that names the first wrong field and what is allowed.
    """
    if isinstance(arguments, NewTask):
        return arguments
    if not NewTask.__pydantic_complete__:
        _build()
    try:
        return NewTask.model_validate(arguments if type(arguments) is dict else dict(arguments))
    except ValidationError as error:
        raise ValueError(where + first_problem(error, NewTask)) from None
    except (TypeError, ValueError) as error:
        given = type(arguments).__name__
        msg = f"{where.rstrip('.') or 'task'}: must be a mapping of the arguments of put, got {given}"
        raise ValueError(msg) from error


def _build() -> None:
    """Build the validator of `NewTask` unless another thread has done so."""
    with _BUILDING:
        NewTask.model_rebuild()
