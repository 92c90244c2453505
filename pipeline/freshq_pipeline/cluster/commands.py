"""The commands that a cluster runs: their arguments, and where their results are."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.storage.results import REPLAY, SUMMARY

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
    command: Command, events: str, out: str, of_stack: Sequence[str], options: Sequence[str]
) -> list[str]:
    """Return all arguments of the process on the cluster.

    Args:
        command: The command.
        events: Address of the events.
        out: Address of the output.
        of_stack: Options that a run or a stream has unless others are given, each with its value. A replay
            keeps those of the run before.
        options: The options that are given.
    """
    own = ["--checkpoint", f"{out}/{CHECKPOINT}"] if command is Command.STREAM else []
    if command is not Command.REPLAY:
        pairs = zip(of_stack[::2], of_stack[1::2], strict=True)
        own += [part for pair in pairs if pair[0] not in options for part in pair]
    # The result is one line of JSON in the log, which the alarms read.
    return [command.value, "--events", events, "--out", out, "--json", *own, *options]
