"""The commands that a cluster runs: their arguments, and where their results are."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.storage.state import REPLAY, SUMMARY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

# Folder of the progress of a stream, below its output. Structured Streaming writes it.
CHECKPOINT: Final = "checkpoint"


class Command(StrEnum):
    """A command that `submit` starts."""

    RUN = "run"
    STREAM = "stream"
    REPLAY = "replay"


# The file below the output folder with the result of each command.
RESULTS: Final[Mapping[Command, str]] = {
    Command.RUN: SUMMARY,
    Command.STREAM: SUMMARY,
    Command.REPLAY: REPLAY,
}


def options_of(command: Command, given: Mapping[str, str | None], flags: Collection[str]) -> list[str]:
    """Return the arguments for the options of a command.

    Args:
        command: The command.
        given: The options that were given, each with its value; None for a switch.
        flags: The options that the command has.

    Raises:
        BadInput: If the command does not have an option that was given.
    """
    for flag in given:
        if flag not in flags:
            name = flag.removeprefix("--")
            msg = f"{name}: {command} has no such option; it has {', '.join(sorted(flags))}"
            raise BadInput(msg)
    return [part for flag, value in given.items() for part in ((flag,) if value is None else (flag, value))]


def arguments_of(
    command: Command, events: str, out: str, catalog: str | None, options: Sequence[str]
) -> list[str]:
    """Return all arguments of the process on the cluster.

    Args:
        command: The command.
        events: Address of the events.
        out: Address of the output.
        catalog: Where the tables are registered; None: where they are registered already, if anywhere.
        options: Further options.
    """
    own = ["--checkpoint", f"{out}/{CHECKPOINT}"] if command is Command.STREAM else []
    if catalog is not None and command is not Command.REPLAY and "--catalog" not in options:
        own += ["--catalog", catalog]
    # The result is one line of JSON in the log, which the alarms read.
    return [command.value, "--events", events, "--out", out, "--json", *own, *options]
