"""Command-line options made from the fields of dataclasses."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from functools import wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY
# Help for each field of `Options`, `Scenarios` and `Spark`.
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "form": {"help": "Format of the recorded changes."},
    "as_of_ms": {
        "help": "Determine outcomes at this time, in epoch milliseconds (default: the newest event)."
    },
    "max_reject_ratio": {"help": "Largest share of records that may be unusable."},
    "accept_damaged": {"help": "Publish although gzip files are damaged, with their readable lines."},
    "keep_runs": {"help": "Number of runs to keep; at least 2 if others read while runs end."},
    "index_lag_seconds": {
        "help": "Time after which a new task must be visible to claims, for inversions (default: 0 "
        "for histories pulled from SQL, 1 for DynamoDB)."
    },
    "other_order": {
        "help": "Queues that are not served newest first, such as FIFO queues: they have no inversions.",
        "metavar": "NAME,...",
    },
    "full_refresh": {"help": "Read everything again, including files that were read before."},
    "catalog": {
        "help": "Register the tables in this Iceberg catalog of PyIceberg: local, glue or a configured one "
        "(default: the catalog of earlier runs, if any).",
        "metavar": "NAME[.NAMESPACE]",
    },
    "keep_silver_days": {
        "help": "Delete the events, but not the tables, of tasks that were completed more than this many "
        "days ago (default: keep all)."
    },
    "since": {
        "help": "Compute the tables of this and later days again from silver (default: only changed days).",
        "metavar": "YYYY-MM-DD",
    },
    "until": {"help": "Compute the tables of days up to this one again.", "metavar": "YYYY-MM-DD"},
    "policies": {
        "help": "Orders of service (default: lifo,fifo,adaptive, and for tasks with values value,deadline)."
    },
    "capacity": {"help": "Multiples of the recorded capacity."},
    "deadline_seconds": {"help": "Ages at which tasks become stale (default: as recorded)."},
    "recorded_policy": {"help": "Order of service when the events were recorded."},
    "servers": {"help": "Tasks in progress at a time in a queue (default: estimated from the events)."},
    "queue": {"help": "Replay this queue only (default: every queue)."},
    "seed": {"help": "Seed for drawing service times."},
    "master": {"help": "Spark's master URL.", "envvar": "FRESHQ_SPARK_MASTER"},
    "memory": {"help": "Memory of the embedded Java.", "envvar": "FRESHQ_SPARK_MEMORY"},
}
# Help for fields of `Scenarios` whose names other dataclasses use with another meaning.
OF_SCENARIOS: Final[dict[str, dict[str, Any]]] = {
    "since": {
        "help": "Replay the tasks created on this and later days (default: the newest 31 days with tasks).",
        "metavar": "YYYY-MM-DD",
    },
    "until": {"help": "Replay the tasks created up to this day.", "metavar": "YYYY-MM-DD"},
}
# Flags that differ from the name of their field.
FLAGS: Final = {"form": "--format", "as_of_ms": "--as-of"}


def with_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace each dataclass parameter of a command by options for its fields, described in `OPTIONS`.

    Fields of the same name in several dataclasses share one option.

    Args:
        without: Fields that get no option and keep their defaults.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        groups = {name: _options_of(hint, without) for name, hint in hints.items() if is_dataclass(hint)}

        shared = dict[str, inspect.Parameter]()
        for one in chain.from_iterable(groups.values()):
            shared.setdefault(one.name, one)

        @wraps(command)
        def expanded(**values: Any) -> None:
            for name, options in groups.items():
                values[name] = hints[name](**{one.name: values[one.name] for one in options})
            for one in shared:
                del values[one]
            command(**values)

        own = [
            one.replace(annotation=hints[one.name], kind=_KEYWORD)
            for one in inspect.signature(command).parameters.values()
            if one.name not in groups
        ]
        expanded.__signature__ = inspect.Signature([*own, *shared.values()])  # type: ignore[attr-defined]
        return expanded

    return decorate


def _options_of(group: Any, without: tuple[str, ...]) -> list[inspect.Parameter]:
    types = get_type_hints(group)
    options = []
    for one in fields(group):
        if one.name not in without:
            described = OF_SCENARIOS.get(one.name) if group.__name__ == "Scenarios" else None
            option = typer.Option(one.default, _flag(one.name), **(described or OPTIONS[one.name]))
            options.append(inspect.Parameter(one.name, _KEYWORD, default=option, annotation=types[one.name]))
    return options


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def given(options: Any, context: typer.Context) -> dict[str, str | None]:
    """Return the options that the user gave: values by flag, None for a switch."""
    values = {
        _flag(one.name): getattr(options, one.name)
        for one in fields(options)
        if (source := context.get_parameter_source(one.name)) is not None and source.name == "COMMANDLINE"
    }
    return {flag: None if value is True else str(value) for flag, value in values.items()}


def flags_of(group: Any, *without: str) -> set[str]:
    """Return the flags of a dataclass, except those of some fields."""
    return {_flag(one.name) for one in fields(group) if one.name not in without}
