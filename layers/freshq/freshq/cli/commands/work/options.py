"""The options of `freshq work`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

# The option that makes a process one of a supervisor's.
SUPERVISED: Final = "--supervised"
LOOPBACK: Final = "127.0.0.1"
LIMITS: Final = "Limits"
ENDS: Final = "Ends"
OPERATION: Final = "Operation"

RunnerName = Annotated[
    str, typer.Argument(metavar="MODULE:FUNCTION", help="The runner, such as app:run, in the current folder.")
]
Concurrency = Annotated[int, typer.Option(help="Most tasks that one process runs at a time.")]
Transaction = Annotated[
    bool,
    typer.Option(
        "--transaction",
        help="Hold each task in a database transaction, and call the runner with the task and the "
        "connection: what it writes commits with the task. SQL only.",
    ),
]
AtMostOnce = Annotated[
    bool, typer.Option("--at-most-once", help="Complete each task before its run. A failed run is lost.")
]
Processes = Annotated[
    int,
    typer.Option(min=1, help="Number of processes; one that dies is replaced.", rich_help_panel=OPERATION),
]
LimitLowest = Annotated[
    int | None,
    typer.Option(help="Lower bound of the concurrency limit of all workers.", rich_help_panel=LIMITS),
]
LimitHighest = Annotated[
    int | None,
    typer.Option(
        help="Upper bound. Between the bounds the limit follows the downstream: less when it pushes back.",
        rich_help_panel=LIMITS,
    ),
]
RatePerSecond = Annotated[
    float | None, typer.Option(help="Most starts a second of one process.", rich_help_panel=LIMITS)
]
MaxRunSeconds = Annotated[
    float | None,
    typer.Option(help="A run that takes longer loses its slot, then its lease.", rich_help_panel=LIMITS),
]
PollSeconds = Annotated[
    float, typer.Option(help="Pause between claims while there is too little.", rich_help_panel=LIMITS)
]
DrainSeconds = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Most time to wait for running tasks at the end; then as at a second signal.",
        rich_help_panel=ENDS,
    ),
]
IdleExitSeconds = Annotated[
    float | None, typer.Option(help="End after this time without a task.", rich_help_panel=ENDS)
]
GiveUpSeconds = Annotated[
    float | None,
    typer.Option(
        help="End if the store does not answer for this time; by default, wait.", rich_help_panel=ENDS
    ),
]
HealthPort = Annotated[
    int | None, typer.Option(help="Port for /live and /ready; 0 for a free one.", rich_help_panel=OPERATION)
]
HealthHost = Annotated[
    str, typer.Option(help="Address for them; 0.0.0.0 for probes from outside.", rich_help_panel=OPERATION)
]
StatusSeconds = Annotated[
    float, typer.Option(min=0, help="Time between two status lines of JSON.", rich_help_panel=OPERATION)
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show what would be claimed; take nothing.", rich_help_panel=OPERATION),
]
Supervised = Annotated[bool, typer.Option(SUPERVISED, hidden=True)]
