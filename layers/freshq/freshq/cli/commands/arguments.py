"""Arguments that several commands take."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from freshq.errors import quoted

TaskId = Annotated[
    str | None, typer.Argument(metavar="TASK_ID", help="The task; in the shell, the current one by default.")
]
TaskIds = Annotated[
    list[str] | None, typer.Argument(metavar="[TASK_ID]...", help="Only these tasks; by default all.")
]
Token = Annotated[
    str | None,
    typer.Option(help="The token that claim printed; the shell remembers its own claims."),
]
Reason = Annotated[str | None, typer.Option("--error", help="Why it failed; stored with the task.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Limit = Annotated[int, typer.Option("--limit", "-n", help="Maximum number of tasks.")]
Cursor = Annotated[str | None, typer.Option(help="Continue where the previous list ended.")]
LeaseSeconds = Annotated[
    float | None, typer.Option(help="Seconds until the lease expires; by default the queue's.")
]


def parsed(argument: str, text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON value that a string is.

    Raises:
        ValueError: If it is not JSON; names the argument.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        msg = f"{argument}: must be JSON ({error}), got {quoted(text)}; quote a string, or use --text"
        raise ValueError(msg) from error


def instant(argument: str, text: str) -> datetime:
    """Return the instant that a string is.

    Raises:
        ValueError: If it is not an ISO 8601 time with a time zone; names the argument.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{argument}: must be a time such as 2026-12-01T08:00Z, got {text:.60}"
        raise ValueError(msg) from None
    if moment.tzinfo is None:
        msg = f"{argument}: needs a time zone, got {text:.60}; append Z for UTC, or an offset such as +01:00"
        raise ValueError(msg)
    return moment
