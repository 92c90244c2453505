"""Shows events and the status of processes on a terminal: as lines, or as a table with the log above it."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from freshq.cli.errors import printable
from freshq.cli.process.report import OUTCOMES, Reporter
from freshq.worker.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from freshq.cli.process.report import ProcessStatus

# Over which time the rate is taken.
RATE_SECONDS: Final = 10.0
REDRAW_SECONDS: Final = 0.25
COLUMNS: Final = ("process", "state", "running", "done", "failed", "retried", "other", "store")
SHOWN: Final = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.RETRIED)


class Lines(Reporter):
    """Prints events for people, a line each."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @override
    def event(self, event: str, **values: object) -> None:
        text = Text()
        text.append(time.strftime("%H:%M:%S "), style="dim")
        if event == "log":
            text.append(f"{values['level']} ", style="red" if values["level"] == "ERROR" else "yellow")
            text.append(printable(str(values["message"])))
            for line in str(values.get("traceback", "")).splitlines():
                text.append(f"\n{printable(line)}", style="dim")
        else:
            text.append(event.replace("_", " "), style="bold")
            text.append(_shown(values))
        self._console.print(text)

    @override
    def status(self, processes: Sequence[ProcessStatus]) -> None:
        return

    @override
    def close(self) -> None:
        return


class Display(Lines):
    """Shows the processes in a table, and prints events above it."""

    def __init__(self, console: Console, title: str) -> None:
        """Begin to show.

        Args:
            console: The terminal.
            title: What is at work.
        """
        super().__init__(console)
        self._title = printable(title)
        self._done: deque[tuple[float, int]] = deque()
        self._next_draw = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    @override
    def status(self, processes: Sequence[ProcessStatus]) -> None:
        now = time.monotonic()
        if now < self._next_draw:
            return
        self._next_draw = now + REDRAW_SECONDS
        done = sum(each.values[OUTCOMES][Outcome.SUCCEEDED] for each in processes)
        self._done.append((now, done))
        while self._done[0][0] < now - RATE_SECONDS:
            self._done.popleft()
        self._live.update(self._frame(processes), refresh=True)

    @override
    def close(self) -> None:
        self._live.stop()

    def _frame(self, processes: Sequence[ProcessStatus]) -> RenderableType:
        (since, before), (now, done) = self._done[0], self._done[-1]
        rate = f"{(done - before) / (now - since):,.1f}/s" if now > since else "-"
        head = Text(f"{self._title}  done {rate}", style="bold", no_wrap=True, overflow="ellipsis")
        table = Table(*COLUMNS, box=None, padding=(0, 2, 0, 0))
        for each in processes:
            table.add_row(*_row(each))
        keys = "Ctrl-C: finish the running tasks; again: give them back and stop"
        return Group(head, table, Text(keys, style="dim"))


def _row(status: ProcessStatus) -> list[str]:
    values = status.values
    outcomes = Counter[str](values[OUTCOMES])
    shown = [f"{outcomes[each]:,}" for each in SHOWN]
    other = f"{outcomes.total() - sum(outcomes[each] for each in SHOWN):,}"
    store = "answers" if values["store_answers"] else "no answer"
    return [f"{status.process} ({status.pid})", values["state"], str(values["running"]), *shown, other, store]


def _shown(values: dict[str, Any]) -> str:
    """Return the values of an event that say something, for people."""
    outcomes = {name: number for name, number in values.get(OUTCOMES, {}).items() if number}
    said = {name: value for name, value in values.items() if name != OUTCOMES and _says_something(value)}
    return "".join(f"  {name.replace('_', ' ')} {_text(value)}" for name, value in (said | outcomes).items())


def _says_something(value: object) -> bool:
    return value is not False and value not in (None, [], "")


def _text(value: object) -> str:
    return printable(", ".join(map(str, value)) if isinstance(value, list) else str(value))
