"""The schedules of a TOML file or of a module."""

from __future__ import annotations

import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from freshq.cli.commands.application import application_imports
from freshq.errors import plain, quoted
from freshq.feeds.schedules import ARGUMENTS, DEFAULT_CATCH_UP, Cron, Every, Schedule
from freshq.worker.loading import load_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SUFFIX: Final = ".toml"
# The heading of a schedule in a file.
TABLE: Final = "schedule"
REQUIRED: Final = ("name", "payload")
TIMES: Final = ("cron", "zone", "every_seconds")
FIELDS: Final = (*REQUIRED, *TIMES, "catch_up", *ARGUMENTS)


def load_schedules(source: str) -> list[Schedule]:
    """Return the schedules of a file whose name ends with .toml, or of a list in a module.

    Args:
        source: Such as schedules.toml or app:schedules.

    Raises:
        ValueError: One line that names the schedule, the field and what is wrong.
        MissingExtra: If there is a cron expression, and the extra `cron` is not installed.
    """
    found = _of_file(Path(source)) if source.endswith(SUFFIX) else _of_module(source)
    if not found:
        msg = f"schedules: {quoted(source)} has none; add one"
        raise ValueError(msg)
    return found


def _of_module(source: str) -> list[Schedule]:
    with application_imports() as advice:
        found = load_object("schedules", source, advice, what="list", example="app:schedules")
    if not isinstance(found, list | tuple):
        msg = f"schedules: {quoted(source)} is a {type(found).__name__}; make it a list of Schedule"
        raise ValueError(msg)  # noqa: TRY004 - bad input is a ValueError throughout
    for number, each in enumerate(found, 1):
        if not isinstance(each, Schedule):
            type_name = type(each).__name__
            msg = f"schedules: number {number} of {quoted(source)} is a {type_name}; use Schedule.of(...)"
            raise ValueError(msg)  # noqa: TRY004 - as above
    return list(found)


def _of_file(path: Path) -> list[Schedule]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        msg = f"schedules: {quoted(str(path))} cannot be read ({reason})"
        raise ValueError(msg) from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"{path}: not TOML ({error})"
        raise ValueError(msg) from error
    tables = document.pop(TABLE, [])
    if document or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        wrong = plain(next(iter(document), TABLE))
        msg = f"{path}: {wrong}: unknown; a file has only tables named [[{TABLE}]]"
        raise ValueError(msg)
    return [_schedule(table, path, number) for number, table in enumerate(tables, 1)]


def _schedule(table: Mapping[str, Any], path: Path, number: int) -> Schedule:
    name = table.get("name")
    which = quoted(name) if isinstance(name, str) and name else f"number {number}"
    try:
        return _checked(table)
    except ValueError as error:
        msg = f"{path}: schedule {which}: {error}"
        raise ValueError(msg) from error


def _checked(table: Mapping[str, Any]) -> Schedule:
    for field in table:
        if field not in FIELDS:
            msg = f"{plain(field)}: unknown field; use one of {', '.join(FIELDS)}"
            raise ValueError(msg)
    for field in REQUIRED:
        if field not in table:
            msg = f"{field}: missing"
            raise ValueError(msg)
    others = {field: value for field, value in table.items() if field in ARGUMENTS}
    catch_up = table.get("catch_up", DEFAULT_CATCH_UP)
    return Schedule.of(table["name"], _when(table), table["payload"], catch_up=catch_up, **others)


def _when(table: Mapping[str, Any]) -> Cron | Every:
    if ("cron" in table) == ("every_seconds" in table):
        raise ValueError("cron, every_seconds: give one of them")
    if "every_seconds" in table:
        if "zone" in table:
            raise ValueError("zone: only for cron; leave it out")
        with _renamed("seconds", "every_seconds"):
            return Every(table["every_seconds"])
    with _renamed("expression", "cron"):
        return Cron(table["cron"], table.get("zone", "UTC"))


@contextmanager
def _renamed(argument: str, field: str) -> Iterator[None]:
    """Let an error about an argument name the field that it came from."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        raise ValueError(
            field + text.removeprefix(argument) if text.startswith(argument) else text
        ) from error
