"""The shell's own commands: for the current task, and for drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from freshq.cli.addresses import with_account
from freshq.cli.commands.put import print_receipt
from freshq.cli.commands.verbs import VERBS
from freshq.cli.configuration import open_configured
from freshq.cli.errors import printable
from freshq.cli.facts import state
from freshq.cli.shell.drafts import TEST_IDS, Draft, Drafts, DraftStatus, shipment
from freshq.cli.texts import compact_json
from freshq.errors import RefusedError
from freshq.model.task import TaskStatus
from freshq.queue.attached import AttachedQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.cli.session import Session
    from freshq.model.task import Task

# They are for tasks in the queue, which a draft is not.
TASK_VERBS: Final = frozenset(listed.name for listed in VERBS if listed.on_task)
READY_TO_SHIP: Final = "READY_TO_SHIP"


class ShellCommands:
    """The commands that only the shell has."""

    def __init__(self, session: Session, drafts: Drafts, run_verb: Callable[[list[str]], int]) -> None:
        """Work on a session.

        Args:
            session: The queue and the current task.
            drafts: The records that are not in the queue yet.
            run_verb: Runs a command of the command line and returns its status.
        """
        self._session = session
        self._drafts = drafts
        self._run_verb = run_verb

    def commands(self) -> dict[str, Callable[[list[str]], None]]:
        """Return the commands by name."""
        return {
            "id": self._id,
            "info": self._info,
            "data": self._data,
            "sys": self._sys,
            "create-test": self._create_test,
            "ready": self._ready,
            "update": self._update,
            "reset": self._reset,
            "enqueue": self._enqueue,
            "restore": self._restore,
            "aws": self._aws,
        }

    def before_verb(self, name: str, arguments: list[str]) -> None:
        """Refuse a verb for tasks if it names a draft, or the current record is one.

        Raises:
            RefusedError: With the draft's status.
        """
        named = [argument for argument in arguments if not argument.startswith("-")]
        draft = self._drafts.find(named[0] if named else self._session.current)
        if draft is not None and name in TASK_VERBS and "--help" not in arguments:
            msg = f"record {draft.task_id!r}: cannot {name} a record that is {draft.status}; enqueue it first"
            raise RefusedError(msg)

    def list_drafts(self) -> None:
        """Print the records that are not in the queue yet."""
        if self._session.output.as_json:
            return
        for draft in self._drafts.all():
            typer.echo(f"not queued: {printable(draft.task_id)}  {draft.status}")

    def _verb(self, *words: str) -> None:
        status = self._run_verb(list(words))
        if status:
            raise typer.Exit(status)

    def _task(self, arguments: list[str]) -> Task:
        task_id = self._session.task_id(arguments[0] if arguments else None)
        task = self._session.queue.find(task_id)
        self._session.see(task_id)
        return task

    def _draft(self, arguments: list[str]) -> Draft | None:
        return self._drafts.find(arguments[0] if arguments else self._session.current)

    def _id(self, arguments: list[str]) -> None:
        if not arguments:
            self._session.current = None
            self._session.output.answer({"current": None}, "no current task")
            return
        self._info(arguments)
        self._session.current = arguments[0]

    def _info(self, arguments: list[str]) -> None:
        draft = self._draft(arguments)
        if draft is None:
            self._session.output.task(self._task(arguments), self._session.queue.now())
            return
        status = draft.status.value
        answer = {"task_id": draft.task_id, "status": status, "payload": draft.payload}
        facts = {"record": draft.task_id, "status": status, "payload": compact_json(draft.payload)}
        self._session.output.answer(answer, facts)

    def _data(self, arguments: list[str]) -> None:
        shown = self._draft(arguments) or self._task(arguments)
        self._session.output.console.print_json(data=shown.payload)

    def _sys(self, arguments: list[str]) -> None:
        draft = self._draft(arguments)
        if draft is not None:
            facts = {"status": draft.status.value}
        else:
            facts = state(self._task(arguments), self._session.queue.now())
        self._session.output.answer(facts, facts)

    def _create_test_records(self, queue: AttachedQueue) -> None:
        """Write the test records that do not exist into an attached table, under construction."""
        answer, lines = [], []
        for record_id in TEST_IDS:
            if new := queue.get_record(record_id) is None:
                queue.put_record(shipment(record_id) | queue.record_key(record_id))
                queue.hold(record_id)
            record = queue.get(record_id)
            status = "in another queue" if record is None else record.status.value
            answer.append({"task_id": record_id, "status": status})
            lines.append(f"record {record_id}: {status}" + ("" if new else ", existed already"))
        self._session.output.answer(answer, *lines)

    def _create_test(self, _: list[str]) -> None:
        if isinstance(self._session.queue, AttachedQueue):
            self._create_test_records(self._session.queue)
        else:
            self._create_drafts()
        self._session.see(*TEST_IDS)

    def _create_drafts(self) -> None:
        queued = [task for task in map(self._session.queue.get, TEST_IDS) if task is not None]
        taken = {task.task_id for task in queued}
        made = self._drafts.make(task_id for task_id in TEST_IDS if task_id not in taken)
        known: list[Draft | Task] = [*made, *queued]
        answer = [{"task_id": each.task_id, "status": each.status.value} for each in known]
        lines = [f"record {draft.task_id}: {draft.status}" for draft in made]
        lines += [f"task {task.task_id}: already in the queue, {task.status}" for task in queued]
        hint = [f"not queued yet: use id {made[0].task_id}, then enqueue"] if made else []
        self._session.output.answer(answer, *lines, *hint)

    def _ready(self, arguments: list[str]) -> None:
        draft = self._draft(arguments)
        if draft is not None:
            self._mark(draft, DraftStatus.READY)
            return
        task = self._task(arguments)
        if task.status is TaskStatus.FAILURE:
            self._verb("dlq", "redrive", task.task_id)
        elif task.status is TaskStatus.TAKEN:
            self._verb("release", task.task_id)
        elif isinstance(self._session.queue, AttachedQueue):
            self._verb("ready", task.task_id)
        else:
            msg = f"task {task.task_id!r}: cannot make ready a task that is {task.status}"
            raise RefusedError(msg + "; ready needs a record, a dead letter or a claimed task")

    def _mark(self, draft: Draft, status: DraftStatus) -> None:
        draft.status = status
        answer = {"task_id": draft.task_id, "status": draft.status.value}
        self._session.output.answer(answer, f"record {draft.task_id}: {draft.status}")

    def _update(self, arguments: list[str]) -> None:
        if [argument.upper() for argument in arguments] != [READY_TO_SHIP]:
            msg = f"status: must be {READY_TO_SHIP}, got {' '.join(arguments)!r}"
            raise ValueError(msg)
        self._ready([])

    def _reset(self, arguments: list[str]) -> None:
        draft = self._draft(arguments)
        if draft is not None:
            self._mark(draft, DraftStatus.UNDER_CONSTRUCTION)
            return
        task = self._task(arguments)
        if not isinstance(self._session.queue, AttachedQueue):
            msg = f"task {task.task_id!r}: cannot reset a task that is {task.status}; it is in the queue"
            raise RefusedError(msg)
        self._verb("hold", task.task_id)

    def _enqueue(self, arguments: list[str]) -> None:
        draft = self._draft(arguments)
        if draft is not None:
            receipt = self._session.queue.put(draft.payload, draft.task_id)
            self._drafts.drop(draft)
            print_receipt(self._session, receipt)
        elif isinstance(self._session.queue, AttachedQueue):
            record_id = self._session.task_id(arguments[0] if arguments else None)
            record = self._session.queue.get(record_id)
            if record is not None and record.status is TaskStatus.UNDER_CONSTRUCTION:
                self._verb("ready", record_id)
            self._verb("put", "--id", record_id, *arguments[1:])
        elif arguments:
            self._verb("put", *arguments)
        else:
            task = self._task([])
            msg = f"task {task.task_id!r}: already queued, it is {task.status}; nothing was changed"
            raise RefusedError(msg)

    def _restore(self, arguments: list[str]) -> None:
        """Restore tasks; give back the claims of this shell first, which needs no force."""
        self.before_verb("restore", arguments)
        named = [argument for argument in arguments if not argument.startswith("-")]
        for task_id in named or filter(None, [self._session.current]):
            if task_id in self._session.claims:
                self._verb("release", task_id)
        self._verb("restore", *arguments)

    def _aws(self, arguments: list[str]) -> None:
        if not 1 <= len(arguments) <= 2:  # noqa: PLR2004 - as the message says
            raise ValueError("aws: must look like aws PROFILE [REGION]")
        account = dict(zip(("profile", "region"), arguments, strict=False))
        queue = open_configured(with_account(self._session.address, account), self._session.queue.name)
        stats = queue.stats(approximate=True)
        self._session.queue.close()
        self._session.queue = queue
        answer = {"profile": arguments[0], "pending": stats.pending}
        self._session.output.answer(answer, f"connected: {stats.pending:,} tasks pending")
