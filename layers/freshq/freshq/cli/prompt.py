"""The prompt of the shell: editing, history, completion."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from typing_extensions import override

from freshq.cli.errors import print_error
from freshq.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from freshq.cli.session import Session


def prompted(
    session: Session, names: Sequence[str], options: Callable[[str], Sequence[str]]
) -> Iterator[str]:
    """Yield the lines that a person types, until Ctrl-D; Ctrl-C discards the current one.

    Args:
        session: The queue and the current task of the shell.
        names: The names of its commands.
        options: Returns the options of a command.
    """
    completer = ShellCompleter(session, names, options)
    prompt = PromptSession[str](history=_history(), completer=completer, complete_while_typing=False)
    while True:
        try:
            line = prompt.prompt(prompt_text(session))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        yield line


def prompt_text(session: Session) -> str:
    """Return the prompt: the queue, and the current task if there is one."""
    current = "" if session.current is None else f" [{printable(session.current)}]"
    return f"{session.queue.name}{current}> "


class ShellCompleter(Completer):
    """Completes commands, their options, and task ids."""

    def __init__(
        self, session: Session, names: Sequence[str], options: Callable[[str], Sequence[str]]
    ) -> None:
        self._session, self._names, self._options = session, names, options

    @override
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield completions of the word before the cursor."""
        before = document.text_before_cursor.split(" ")
        word = before[-1]
        first = next((part for part in before[:-1] if part), None)
        if first is None:
            candidates = self._names
        else:
            candidates = [*reversed(self._session.seen), *self._options(first.lower())]
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
