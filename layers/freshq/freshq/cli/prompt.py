"""The prompt of the shell: editing, history, completion."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from typing_extensions import override

from freshq.cli.errors import print_error, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from freshq.cli.session import Session


class Commands(Protocol):
    """The part of a shell that its prompt needs."""

    session: Session

    @property
    def names(self) -> Sequence[str]:
        """The names of the commands."""

    def options(self, name: str) -> Sequence[str]:
        """Return the options of a command."""


class Prompt:
    """The lines that a person types, until Ctrl-D."""

    def __init__(self, shell: Commands) -> None:
        self._shell = shell
        self._prompt: PromptSession[str] = PromptSession(
            history=_history(), completer=ShellCompleter(shell), complete_while_typing=False
        )

    def __iter__(self) -> Iterator[str]:
        """Yield each line; Ctrl-C discards the current one."""
        while True:
            try:
                line = self._prompt.prompt(prompt_text(self._shell))
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            yield line


def prompt_text(shell: Commands) -> str:
    """Return the prompt: the queue, and the current task if there is one."""
    session = shell.session
    current = "" if session.current is None else f" [{printable(session.current)}]"
    return f"{session.queue.name}{current}> "


class ShellCompleter(Completer):
    """Completes commands, their options, and task ids."""

    def __init__(self, shell: Commands) -> None:
        self._shell = shell

    @override
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield completions of the word before the cursor."""
        before = document.text_before_cursor.split(" ")
        word = before[-1]
        first = next((part for part in before[:-1] if part), None)
        if first is None:
            candidates = self._shell.names
        else:
            candidates = [*reversed(self._shell.session.seen), *self._shell.options(first.lower())]
        for candidate in candidates:
            if candidate.lower().startswith(word.lower()):
                yield Completion(candidate, start_position=-len(word))


def _history() -> History:
    """Return the stored history of shells, or a history of this shell if it cannot be stored."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "freshq"
    file = home / "history"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(mode=0o600)
    except OSError as error:
        print_error(f"history is not stored ({error})")
        return InMemoryHistory()
    return FileHistory(str(file))
