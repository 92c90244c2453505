"""Runs due tasks, in the thread of the test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.errors import LeaseLost
from freshq.model.checks import checked_count
from freshq.worker.blocking_queue import blocking_queue
from freshq.worker.instrumented_runner import instrumented
from freshq.worker.report import Outcome
from freshq.worker.runner import checked_runner, codec_of
from freshq.worker.runs import TaskRun
from freshq.worker.settle import run_to_end, too_late_to_run

if TYPE_CHECKING:
    from freshq.model.answers import Claim
    from freshq.model.codec import Codec
    from freshq.model.task import Task
    from freshq.queue.async_queue import AsyncQueue
    from freshq.queue.base import BaseQueue
    from freshq.worker.runner import Runner

MAX_RUNS: Final = 1000


@dataclass(frozen=True, slots=True)
class Fate:
    """How one run ended.

    Attributes:
        task: The task after its run, with its status, result or error.
        outcome: What the queue was told.
        error: What went wrong; None if nothing did.
    """

    task: Task
    outcome: Outcome
    error: str | None


def drain(queue: BaseQueue | AsyncQueue, runner: Runner, *, max_runs: int = MAX_RUNS) -> list[Fate]:
    """Run every task that is due, one after the other, and settle it as a `Worker` would.

    What is delayed, also by a retry, stays until the queue's clock reaches it. The drain ends early when
    the runner raises `Busy`, as a worker would pause.

    Args:
        queue: The queue; of an AsyncQueue, the queue that it uses.
        runner: As a `Worker` takes it.
        max_runs: Most runs; a runner that puts new tasks could go on for ever.

    Returns:
        One fate for each run, in order.

    Raises:
        ValueError: If an argument is wrong.
        AssertionError: If tasks are still due after `max_runs`.
        StoreError: If the store does not answer.
    """
    checked_count("max_runs", max_runs)
    own = blocking_queue(queue)
    run = instrumented(checked_runner(runner), own.telemetry)
    codec = codec_of(own, runner)
    own.recover()
    fates: list[Fate] = []
    while claims := own.claim(1):
        if len(fates) == max_runs:
            own.release(claims[0])
            msg = f"tasks are still due after {max_runs} runs; does the runner put its own task again?"
            raise AssertionError(msg)
        fates.append(_run(own, claims[0], run, codec))
        if fates[-1].outcome is Outcome.RELEASED:
            break
    return fates


def _run(queue: BaseQueue, claim: Claim, runner: Runner, codec: Codec) -> Fate:
    run = TaskRun(claim, queue.now())
    end = too_late_to_run(queue, claim) or run_to_end(queue, run, runner, codec, lambda: True)
    (answer,) = queue.settle_many([end.settlement])
    # A lost lease: the runner settled or recovered the task itself.
    error = str(answer) if isinstance(answer, LeaseLost) else end.error
    outcome = end.outcome_for(answer)
    return Fate(queue.get(claim.task.task_id) or claim.task, outcome, error)
