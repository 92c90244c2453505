"""The queue that a command works on, a shell's memory of its claims, and the record of what operators did."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import typer

from freshq.cli.errors import print_error
from freshq.errors import FreshqError, RefusedError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.cli.output import Output
    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.queue.attached import AttachedQueue
    from freshq.queue.base import BaseQueue


# The shared record of operators' commands, and its maximum number of entries: each write costs the whole
# record.
AUDIT: Final = "audit"
AUDIT_ENTRIES: Final = 50
# Number of characters of an argument that an entry keeps.
ARGUMENT_CHARS: Final = 100
# Replaces the name of an erased group.
FORGOTTEN: Final = "(forgotten)"


def shortened(argument: str) -> str:
    """Return an argument in the form of the audit record."""
    return printable(argument)[:ARGUMENT_CHARS]


def note(queue: BaseQueue, verb: str, arguments: Mapping[str, Any], outcome: str) -> None:
    """Add an operator's command to the audit record of a queue; if that fails, report it on standard error.

    Args:
        queue: The queue.
        verb: The command.
        arguments: Its arguments, by name. No command in the record takes a payload.
        outcome: How it ended.
    """
    from freshq.queue.core import core_of
    from freshq.queue.shared.measures import change_record

    core = core_of(queue)
    given = {name: shortened(str(value)) for name, value in arguments.items() if name != "yes"}
    if verb == "forget" and "group" in given:
        given["group"] = FORGOTTEN
    try:
        entry = {
            "at": core.now(),
            "by": core.store.caller(),
            "verb": verb,
            "given": given,
            "outcome": outcome,
        }

        def added(values: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"entries": [*values.get("entries", []), entry][-AUDIT_ENTRIES:]}

        if change_record(core.store, queue.name, AUDIT, added):
            return
        reason: object = "other processes changed the record"
    except FreshqError as error:
        reason = error
    print_error(f"{verb} is not in the audit record: {reason}")


@dataclass
class Session:
    """A queue in use by one command, or by all commands of a shell.

    Attributes:
        queue: The queue.
        output: Where answers go.
        address: The address of the queue; None if it was opened otherwise.
        stack: The stack of the queue; None if it was opened otherwise.
        current: Id of the task that commands use by default; set in a shell only.
        claims: The claims held, by task id.
        seen: Task ids that the shell can complete, the latest last.
    """

    queue: BaseQueue
    output: Output
    address: str | None = None
    stack: str | None = None
    current: str | None = None
    claims: dict[str, Claim] = field(default_factory=dict)
    seen: dict[str, None] = field(default_factory=dict)

    def task_id(self, given: str | None) -> str:
        """Return the given id, or otherwise the id of the current task.

        Raises:
            ValueError: If neither exists.
        """
        task_id = given or self.current
        if not task_id:
            raise ValueError("task_id: missing; give the id of a task")
        return task_id

    def claim(self, given: str | None, token: str | None) -> Claim:
        """Return the claim for a command to settle.

        Raises:
            ValueError: If the token is missing.
            RefusedError: If the claim no longer holds its task.
        """
        task_id = self.task_id(given)
        held = self.claims.get(task_id)
        if held is not None and token in (None, held.token):
            return held
        if token is None:
            msg = f"token: missing for task {printable(task_id)!r}; pass --token, as printed by claim"
            raise ValueError(msg)
        return self.queue.admin.held(task_id, token)

    def remember_claims(self, *claims: Claim) -> None:
        """Remember claims for later commands; the task of the last one becomes the current task."""
        for claim in claims:
            self.claims[claim.task.task_id] = claim
            self.current = claim.task.task_id
            self.see(claim.task.task_id)

    def print_changed(self, task: Task) -> None:
        """Print the new state of a task."""
        self.output.changed(task, self.queue.admin.now())

    def see(self, *task_ids: str) -> None:
        """Remember ids for completion."""
        for task_id in task_ids:
            self.seen.pop(task_id, None)
            self.seen[task_id] = None

    def attached(self, command: str) -> AttachedQueue:
        """Return the queue if it is on an attached table.

        Raises:
            ValueError: If it is not; the error names the command.
        """
        from freshq.queue.attached import AttachedQueue

        if not isinstance(self.queue, AttachedQueue):
            msg = f"{command}: only on an attached table; use the address dynamodb://TABLE?key=NAME"
            raise ValueError(msg)
        return self.queue


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user to confirm an action that cannot be undone.

    Raises:
        ValueError: If there is no terminal to ask on.
        RefusedError: If the user declines.
    """
    if yes:
        return
    if not is_interactive():
        raise ValueError("not a terminal; pass --yes to confirm. Nothing was done")
    if not typer.confirm(question, err=True):
        raise RefusedError("not confirmed; nothing was done")


def refuse_memory(address: str | None) -> None:
    """Raise if an address names a queue in the memory of this process.

    Raises:
        ValueError: If no other process can see the queue.
    """
    if address is not None and address.startswith("memory:"):
        raise ValueError(
            "queue: memory:// is in one process, which ends with this command; use sqlite:///FILE"
        )


def is_interactive() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin.isatty()
