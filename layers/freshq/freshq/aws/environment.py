"""Reads settings from environment variables, and connects a function as Lambda starts it."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from freshq.model.validation import problem_of

if TYPE_CHECKING:
    from collections.abc import Callable

# Lambda sets it; tests and local programs do not.
ON_LAMBDA: Final = "AWS_LAMBDA_FUNCTION_NAME" in os.environ
if ON_LAMBDA:
    gc.disable()  # imports leave no garbage; collecting during them takes a tenth of a start


class EnvironmentSettings(BaseModel):
    """Settings from the environment. The variable of a field is the prefix and its name in capitals.

    Attributes:
        PREFIX: Start of the variables' names.
    """

    # A function uses one of several classes.
    model_config = ConfigDict(frozen=True, defer_build=True)

    PREFIX: ClassVar[str] = "FRESHQ_"

    @classmethod
    def load(cls) -> Self:
        """Read the environment.

        Raises:
            ValueError: One line that names the first variable that is missing or wrong.
        """
        names = {field: cls.PREFIX + field.upper() for field in cls.model_fields}
        given = {field: os.environ[name] for field, name in names.items() if name in os.environ}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problem = problem_of(error)
            name = cls.PREFIX + "_".join(map(str, problem.path)).upper()
            msg = f"{name}: {problem.message}; set it in the function's environment (template.yaml)"
            raise ValueError(msg) from None


def connect_at_init(connect: Callable[[], object]) -> None:
    """Make a function's connections as Lambda starts it, which has more processor than an invocation.

    Elsewhere the first invocation makes them. This ends the start: garbage is collected from here on.

    Raises:
        ValueError: If a setting is missing or wrong.
    """
    if ON_LAMBDA:
        connect()
        gc.freeze()
        gc.enable()
