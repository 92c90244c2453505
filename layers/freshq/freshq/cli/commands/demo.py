"""`freshq demo`: newest first next to oldest first, under overload."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from freshq.cli.output import json_text
from freshq.policy.order import Order
from freshq.queue.queue import Queue
from freshq.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from freshq.model.task import Task

MAX_BAR_CHARS: Final = 40
# Width of the row names and counts.
LABEL_CHARS: Final = 24
FATES: Final = (
    ("in_time", "done in time", "green"),
    ("late", "done too late", "red"),
    ("shed", "shed, never started", "bright_black"),
    ("waiting", "waiting", "yellow"),
)
SERVERS: Final = 4
TASK_SECONDS: Final = 0.2
CAPACITY_PER_SECOND: Final = SERVERS / TASK_SECONDS
RATE_PER_SECOND: Final = 3 * CAPACITY_PER_SECOND
# Shares of the total time: the duration of the load, and the age at which a task has lost its value.
LOAD_SHARE: Final = 0.7
DEADLINE_SHARE: Final = 0.15
# Max age of the queue without a deadline: longer than any demonstration.
NEVER_SECONDS: Final = 86_400.0
FRAMES_PER_SECOND: Final = 5
Seconds = Annotated[float, typer.Option(min=3, max=600, help="Duration.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


def wait_text(seconds: float | None) -> str:
    """Return a wait with its significant digits; "-" for None."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"


def frame(
    plan: Plan, elapsed_seconds: float, standings: Mapping[str, Standing], width: int
) -> RenderableType:
    """Return one frame: the time, and the fates of each queue as bars on a common scale."""
    bar_chars = max(1, min(MAX_BAR_CHARS, width - LABEL_CHARS - 8))
    return Group(
        _head(plan, elapsed_seconds),
        *(_fates(plan, name, standing, bar_chars) for name, standing in standings.items()),
    )


def _head(plan: Plan, elapsed_seconds: float) -> RenderableType:
    phase = "offering" if elapsed_seconds < plan.load_seconds else "load over"
    head = Table.grid(padding=(0, 2))
    head.add_row(
        f"[bold]{phase}[/bold]",
        ProgressBar(total=plan.total_seconds, completed=elapsed_seconds, width=20),
        f"{elapsed_seconds:.0f} of {plan.total_seconds:.0f} s",
    )
    return head


def _fates(plan: Plan, name: str, standing: Standing, bar_chars: int) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(min_width=LABEL_CHARS - 4)
    table.add_column(min_width=5, justify="right")
    table.add_column()
    for attribute, label, color in FATES:
        count: int = getattr(standing, attribute)
        bar = "█" * round(count / plan.tasks * bar_chars)
        table.add_row(label, f"{count:,}", Text(bar, style=color))
    wait = wait_text(standing.last_wait_seconds)
    return Group(Text(), Text(f"{name}: the task done last waited {wait}", style="bold"), table)


def offered_text(plan: Plan) -> str:
    """Return a sentence about the offered load and the capacity."""
    return (
        f"Each queue is offered {plan.tasks:,} tasks, {RATE_PER_SECOND:g} a second; its downstream can "
        f"do {CAPACITY_PER_SECOND:g} a second. A task is worth nothing after {plan.deadline_seconds:g} s."
    )


def verdict(fresh: Standing, fifo: Standing) -> str:
    """Return the result of the contest, and its meaning."""
    return (
        f"Of {fresh.tasks:,} tasks, newest first did {fresh.in_time:,} in time after a median wait of "
        f"{wait_text(fresh.wait_p50_seconds)}; first in, first out did {fifo.in_time:,} in time and "
        f"{fifo.late:,} too late, after a median wait of {wait_text(fifo.wait_p50_seconds)}, and left "
        f"{fifo.waiting:,} waiting.\n"
        "Both worked equally hard. Work that cannot be done in time is lost either way: freshq drops it "
        "before it starts, and spends the capacity on tasks that someone still waits for."
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """The offered load and its duration.

    Attributes:
        total_seconds: Duration of the whole contest.
    """

    total_seconds: float

    @property
    def load_seconds(self) -> float:
        """Duration of the load."""
        return self.total_seconds * LOAD_SHARE

    @property
    def deadline_seconds(self) -> float:
        """Age at which a task is worthless."""
        return self.total_seconds * DEADLINE_SHARE

    @property
    def tasks(self) -> int:
        """The number of tasks offered."""
        return round(self.load_seconds * RATE_PER_SECOND)


@dataclass(frozen=True, slots=True)
class Standing:
    """The fates of the tasks of one queue so far.

    Attributes:
        in_time: Tasks done by their deadline.
        late: Tasks done after it.
        shed: Tasks that were stale and never started.
        waiting: Tasks that wait or run.
        wait_p50_seconds: Median wait of the tasks done; None if no task is done.
        last_wait_seconds: Wait of the task that ended last; None if no task is done.
    """

    in_time: int
    late: int
    shed: int
    waiting: int
    wait_p50_seconds: float | None
    last_wait_seconds: float | None

    @property
    def tasks(self) -> int:
        """Number of tasks put so far."""
        return self.in_time + self.late + self.shed + self.waiting


class Contestant:
    """A queue, its worker, and a separate downstream that does `CAPACITY_PER_SECOND`.

    Attributes:
        queue: The queue.
    """

    def __init__(self, queue: Queue, deadline_seconds: float) -> None:
        """Start nothing yet.

        Args:
            queue: The queue.
            deadline_seconds: Age at which a task is worthless.
        """
        self.queue = queue
        self._deadline_seconds = deadline_seconds
        self._waits: list[float] = []
        self._in_time = 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work the queue inside the block; then wait for the running tasks."""
        worker = Worker(self.queue, self._run, concurrency=SERVERS, poll_seconds=0.01)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join()

    def standing(self) -> Standing:
        """Return the fates of the tasks so far."""
        waits = list(self._waits)
        stats = self.queue.stats()
        return Standing(
            in_time=self._in_time,
            late=len(waits) - self._in_time,
            shed=stats.shed,
            waiting=stats.pending + stats.taken,
            wait_p50_seconds=median(waits) if waits else None,
            last_wait_seconds=waits[-1] if waits else None,
        )

    def _run(self, task: Task) -> None:
        wait_seconds = self.queue.admin.now() - task.created
        time.sleep(TASK_SECONDS)
        self._waits.append(wait_seconds)
        self._in_time += wait_seconds + TASK_SECONDS <= self._deadline_seconds


def contestants(plan: Plan) -> dict[str, Contestant]:
    """Return a queue with freshq's defaults, and a usual queue: first in, first out, no deadline."""
    fresh = Queue.memory(max_age_seconds=plan.deadline_seconds)
    fifo = Queue.memory(max_age_seconds=NEVER_SECONDS, order=Order.FIFO)
    queues = {"newest first (freshq)": fresh, "first in, first out": fifo}
    return {name: Contestant(queue, plan.deadline_seconds) for name, queue in queues.items()}


def offer(plan: Plan, queues: Sequence[Queue], stopped: threading.Event) -> None:
    """Put the same tasks into all queues, evenly over the duration of the load, until stopped."""
    began = time.monotonic()
    for number in range(plan.tasks):
        due = began + number / RATE_PER_SECOND
        if stopped.wait(max(0.0, due - time.monotonic())):
            return
        for queue in queues:
            queue.put(number)


def demo(seconds: Seconds = 20.0, as_json: AsJson = False) -> None:
    """Overload two queues: one newest first, one oldest first.

    Both are in memory, with the same load. Needs no setup.
    """
    plan = Plan(seconds)
    console = Console(quiet=as_json, highlight=False)
    console.print(offered_text(plan), soft_wrap=not console.is_terminal)  # a pipe has no width
    both = contestants(plan)
    with Live(console=console, auto_refresh=False) as live:
        with offered(plan, both.values()):
            began = time.monotonic()
            while (elapsed := time.monotonic() - began) < plan.total_seconds:
                if console.is_terminal:
                    live.update(frame(plan, elapsed, _standings(both), console.width), refresh=True)
                time.sleep(1 / FRAMES_PER_SECOND)
        standings = _standings(both)  # every worker has ended, so each task has one fate
        live.update(frame(plan, plan.total_seconds, standings, console.width), refresh=True)
    fresh, fifo = standings.values()
    if as_json:
        typer.echo(json_text({"tasks": fresh.tasks, "lifo": asdict(fresh), "fifo": asdict(fifo)}, indent=2))
        return
    console.print()
    console.print(verdict(fresh, fifo), soft_wrap=not console.is_terminal)


@contextmanager
def offered(plan: Plan, both: Collection[Contestant]) -> Iterator[None]:
    """Run the workers and the load inside the block."""
    stopped = threading.Event()
    queues = [contestant.queue for contestant in both]
    load = threading.Thread(target=offer, args=(plan, queues, stopped), daemon=True)
    with ExitStack() as running:
        for contestant in both:
            running.enter_context(contestant.working())
        load.start()
        running.callback(load.join)
        running.callback(stopped.set)
        yield


def _standings(both: Mapping[str, Contestant]) -> dict[str, Standing]:
    return {name: contestant.standing() for name, contestant in both.items()}
