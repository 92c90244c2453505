"""Encode payloads and results as JSON values, and decode them into types."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from pydantic import TypeAdapter, ValidationError

from freshq.errors import plain
from freshq.model.fields import plain_token
from freshq.model.validation import json_copy, json_text, problem_of

if TYPE_CHECKING:
    from collections.abc import Callable

# The only message of pydantic that quotes the value.
UNION_TAG_INVALID: Final = "union_tag_invalid"
SCHEMA_VERSION: Final = 1
# Hexadecimal digits of a lease digest: enough to distinguish the leases of one task.
LEASE_DIGITS: Final = 16
# In a lease token, the text before this is the name of the worker.
WORKER_SEPARATOR: Final = ":"


@runtime_checkable
class Codec(Protocol):
    """Turns payloads and results into JSON values, which stores keep, and back into types.

    Give the same codec to the queue, which encodes payloads, and to `Handlers`, which decode them and encode
    results. Several threads call it.
    """

    def encode(self, value: Any) -> Any:
        """Return the JSON value that is stored for a payload or a result.

        Raises:
            ValueError: If there is none; the message contains no part of the value.
        """

    def decoder(self, annotation: Any) -> Callable[[Any], Any]:
        """Return a function that makes a value of a type from the stored JSON value.

        That function raises ValueError if the value can never fit; the task then becomes a dead letter. The
        message must contain no part of the value, because the task keeps it as its error and the log shows
        it. freshq keeps only the field and the problem of pydantic's ValidationError. After any other error
        the task is tried again.

        Args:
            annotation: The type in the handler's annotation; `Any` without one.

        Raises:
            Exception: Any, if the type is unknown to the codec.
        """


@runtime_checkable
class Kinds(Protocol):
    """The kinds of messages that a queue accepts, and the types of their payloads. `Handlers` is one."""

    @property
    def codec(self) -> Codec:
        """Encodes and decodes their payloads."""

    def check(self, kind: str | None, payload: Any) -> None:
        """Check a payload in its stored form.

        Raises:
            ValueError: If there is no such kind, or the payload does not fit; names the field.
        """


class DoesNotFit(ValueError):
    """A JSON value is not of a type.

    Attributes:
        path: Position in the value, such as ("legs", 0, "price").
        problem: The problem there, without the value.
    """

    def __init__(self, path: tuple[str | int, ...], problem: str) -> None:
        super().__init__(": ".join(filter(None, (".".join(map(str, path)), problem))))
        self.path = path
        self.problem = problem


class JsonCodec:
    """The default codec: JSON values, pydantic models, dataclasses, dates and times, UUID and Decimal.

    Models and dataclasses become objects; dates, times, UUIDs and Decimals become strings, also when nested.
    It rejects a dict whose keys are not strings, because JSON would change their type. Pydantic parses the
    types.
    """

    def encode(self, value: Any) -> Any:
        """Return a copy of a value, as every store returns it.

        Raises:
            ValueError: If JSON cannot express it, or would change it; the error says where.
        """
        return json_copy(json_text(value), value)

    def decoder(self, annotation: Any) -> Callable[[Any], Any]:
        """Return a function that makes a value of a type, as pydantic does, from the stored JSON value."""
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)

        def decode(stored: Any) -> Any:
            try:
                return adapter.validate_json(json_text(stored))
            except ValidationError as error:
                raise _first_problem(error) from None

        return decode


JSON: Final = JsonCodec()


def checked_codec(codec: object, name: str = "") -> Codec:
    """Return a codec; `name` is a prefix for the error.

    Raises:
        ValueError: If it is not a codec.
    """
    if isinstance(codec, type) or not isinstance(codec, Codec):
        msg = f"{name}must be an object with the methods encode and decoder"
        raise ValueError(msg)
    return codec


def encoded(codec: Codec, value: Any, name: str) -> Any:
    """Return a payload or a result in the form to check and store.

    Args:
        codec: The codec.
        value: The argument.
        name: Name of the argument, for errors.

    Raises:
        ValueError: If the codec refuses it.
    """
    if codec is JSON or value is None:
        return value  # the check serializes it anyway
    try:
        return codec.encode(value)
    except ValueError as error:
        cause = None if isinstance(error, ValidationError) else error  # a traceback would print the value
        raise ValueError(field_problem(name, error)) from cause


def field_problem(name: str, error: ValueError) -> str:
    """Return the problem of a payload or a result, such as ``payload.symbol: field required``."""
    if isinstance(error, ValidationError):
        error = _first_problem(error)
    if not isinstance(error, DoesNotFit):
        return f"{name}: {error}"
    return f"{plain('.'.join(map(str, (name, *error.path))))}: {error.problem}"


def _first_problem(error: ValidationError) -> DoesNotFit:
    problem = problem_of(error)
    if problem.error_type == UNION_TAG_INVALID:
        return DoesNotFit(problem.path, f"the tag must be one of {problem.context['expected_tags']}")
    return DoesNotFit(problem.path, problem.reason)


def holder(lease_token: str | None) -> dict[str, str]:
    """Return the fields of a landed event that name the holder of a task.

    They are a digest of the lease token, since the token itself would allow its reader to settle the task,
    and the name of the worker if the token contains it.
    """
    lease_token = plain_token(lease_token)
    if lease_token is None:
        return {}
    worker, separator, _ = lease_token.rpartition(WORKER_SEPARATOR)
    lease = {"lease": sha256(lease_token.encode(errors="replace")).hexdigest()[:LEASE_DIGITS]}
    return lease | ({"worker": worker} if separator and worker else {})
