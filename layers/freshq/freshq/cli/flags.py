"""Flags of commands, made from models of options: only the model has names, defaults and help texts."""

from __future__ import annotations

from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer

from freshq.model.storable_options import RULES, QueueRules, count_or_none, seconds_or_none
from freshq.policy.groups import GroupRules
from freshq.policy.rules import ReserveRule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    Command = TypeVar("Command", bound=Callable[..., None])

# How options that are not numbers, switches or enumerations are written.
WRITTEN: Final[dict[Any, object]] = {
    ReserveRule: str,
    GroupRules: str,
    **{QueueRules.model_fields[name].annotation: str for name in RULES},
}
# How help shows the value of a time, and of a number, that may be none.
SECONDS_OR_NONE: Final = "FLOAT|none"
COUNT_OR_NONE: Final = "INTEGER|none"


def help_of(model: type[BaseModel], name: str) -> str:
    """Return the help text of an option."""
    return str(model.model_fields[name].description)


def with_flags(
    model: type[BaseModel],
    panels: Mapping[str, str | None],
    *,
    show_defaults: bool = True,
) -> Callable[[Command], Command]:
    """Replace a command's `**options` with a flag for each option.

    Args:
        model: The options.
        panels: The options that get flags, each with the heading that help lists it under.
        show_defaults: Whether a flag has the option's default; otherwise it is None unless the user gives it.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        own = [
            each.replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY)
            for each in signature(command).parameters.values()
            if each.kind is not Parameter.VAR_KEYWORD
        ]
        flags = [
            _flag(name, model.model_fields[name], panel, show_default=show_defaults)
            for name, panel in panels.items()
        ]
        vars(command)["__signature__"] = Signature([*own, *flags])
        return command

    return decorate


def _flag(name: str, option: FieldInfo, panel: str | None, *, show_default: bool) -> Parameter:
    written: Any = WRITTEN.get(option.annotation, option.annotation)
    flag = f"--{name.replace('_', '-')}"  # else a switch would also have --no-...
    parsing: dict[str, Any] = {}
    default = option.default if show_default else None
    if option.annotation == float | None:
        default = None if default is None else f"{default:g}"
        parsing = {"parser": seconds_or_none, "metavar": SECONDS_OR_NONE}
    elif option.annotation == int | None:
        default = None if default is None else str(default)
        parsing = {"parser": count_or_none, "metavar": COUNT_OR_NONE}
    described = typer.Option(flag, help=option.description, rich_help_panel=panel, **parsing)
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[written if show_default else written | None, described],
    )
