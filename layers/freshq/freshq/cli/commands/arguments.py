"""Arguments that several commands take."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

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
    """Return the JSON value that a text is.

    Raises:
        ValueError: If it is not JSON; names the argument.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        msg = f"{argument}: must be JSON ({error}), got {text:.60}; quote a text, or use --text"
        raise ValueError(msg) from error
