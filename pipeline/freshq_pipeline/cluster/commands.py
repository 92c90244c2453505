"""The commands that a cluster runs, with their arguments and results."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.storage.results import REPLAY, SUMMARY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

# Folder, below the output, in which Structured Streaming stores the progress of a stream.
CHECKPOINT: Final = "checkpoint"


class Command(StrEnum):
    """A command that `submit` can start."""

    RUN = "run"
    STREAM = "stream"
    REPLAY = "replay"


# The file below the output folder with the result of each command.
RESULTS: Final[Mapping[Command, str]] = dict.fromkeys(Command, SUMMARY) | {Command.REPLAY: REPLAY}


def options_of(command: Command, given: Mapping[str, str | None], flags: Collection[str]) -> list[str]:
    """Return the options of a command as arguments.

    Args:
        command: The command.
        given: Values of the given options by flag; None for a switch.
        flags: Flags that the command has.

    Raises:
        BadInput: If the command does not have a given option.
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
        of_stack: Default options of runs and streams, each followed by its value. A replay keeps the options
            of the previous run instead.
        options: The given options.
    """
    own = ["--checkpoint", f"{out}/{CHECKPOINT}"] if command is Command.STREAM else []
    if command is not Command.REPLAY:
        pairs = zip(of_stack[::2], of_stack[1::2], strict=True)
        own += [part for pair in pairs if pair[0] not in options for part in pair]
    # The alarms read the result from the log, as one line of JSON.
    return [command.value, "--events", events, "--out", out, "--json", *own, *options]
