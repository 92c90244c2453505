"""The first problem that pydantic found in a validation, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from freshq.errors import MAX_QUOTED_CHARS, plain

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


class Problem(NamedTuple):
    """The first problem of a validation, without the value: it may be part of a payload.

    Attributes:
        error_type: What pydantic calls it, such as "extra_forbidden".
        path: The names and places that lead to the wrong value; empty for the whole input.
        message: What pydantic says of it.
        context: What the message names, by pydantic's names.
    """

    error_type: str
    path: tuple[int | str, ...]
    message: str
    context: dict[str, Any]

    @property
    def field(self) -> str:
        """The path with dots; empty for the whole input."""
        return ".".join(map(str, self.path))

    @property
    def is_unknown_field(self) -> bool:
        """Whether the input has a field that the model does not."""
        return self.error_type == "extra_forbidden"

    @property
    def continued(self) -> str:
        """The message as it follows a colon."""
        return self.message[0].lower() + self.message[1:]


def problem_of(error: ValidationError) -> Problem:
    """Return the first problem of a validation."""
    found = error.errors(include_url=False, include_input=False)[0]
    return Problem(found["type"], found["loc"], found["msg"], found.get("ctx", {}))


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first problem of a validation as ``field: problem, got value``.

    Args:
        error: What pydantic raised.
        model: The model whose fields are named if one is unknown.
    """
    problem = problem_of(error)
    field = plain(problem.field) or "input"
    if problem.is_unknown_field:
        return f"{field}: unknown field; use one of {', '.join(model.model_fields)}"
    message = problem.message.removeprefix("Value error, ")
    if problem.error_type == "value_error" and (not problem.path or message.startswith(f"{field}: ")):
        return message  # from a check that names the fields itself
    message = message[0].lower() + message[1:]
    shown = field not in ("payload", "input")
    given = repr(error.errors(include_url=False)[0]["input"]) if shown else ""
    return f"{field}: {message}" + (f", got {given}" if 0 < len(given) <= MAX_QUOTED_CHARS else "")
