"""Traces, logs and metrics of the runs of a worker, which only its function loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from freshq.aws.observability import count, fields, log_transition, logger, measure_seconds, tracer
from freshq.worker.report import METRIC_OF_OUTCOME, Observer, Outcome
from freshq.worker.runner import CoroutineRunner

if TYPE_CHECKING:
    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.policy.order import OrderSwitch
    from freshq.worker.runner import Runner

if tracer is not None:
    tracer.patch()  # every library that the SDK can trace, before the runner imports its own


def traced(runner: Runner) -> Runner:
    """Return a runner whose runs are X-Ray subsegments with the id and the attempt of their task.

    The same runner if tracing is off.
    """
    if tracer is None:
        return runner
    in_subsegment = tracer.provider.in_subsegment

    def run(task: Task) -> Any:  # noqa: ANN401 - any JSON value
        with in_subsegment(name="## runner") as subsegment:
            if subsegment is not None:
                subsegment.put_annotation(key="task_id", value=task.task_id)
                subsegment.put_annotation(key="attempt", value=str(task.attempts))
            return runner(task)

    if isinstance(runner, CoroutineRunner):
        vars(run)["codec"] = runner.codec  # the worker asks for it
    return run


def _known(task: Task) -> dict[str, str]:
    """Return the kind and the trace of a task, if it has them."""
    found = {"kind": task.kind, "trace_id": task.trace_id}
    return {name: value for name, value in found.items() if value is not None}


class MetricsObserver(Observer):
    """Turns what a worker does into log lines and metrics. Never logs payloads."""

    @override
    def claimed(self, claim: Claim, age_seconds: float) -> None:
        count("TasksClaimed")
        measure_seconds("ClaimAgeSeconds", age_seconds)
        log_transition(
            "task claimed",
            claim.task.task_id,
            attempt=claim.task.attempts,
            age_seconds=round(age_seconds, 3),
            **_known(claim.task),
        )

    @override
    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        count(METRIC_OF_OUTCOME[outcome])
        measure_seconds("RunSeconds", run_seconds)
        facts: dict[str, Any] = {
            "outcome": outcome.value,
            "run_seconds": round(run_seconds, 3),
            "error": error,
            **_known(claim.task),
        }
        if outcome is Outcome.SUCCEEDED:
            log_transition("task settled", claim.task.task_id, **facts)
        else:
            logger.warning("task settled", **fields(task_id=claim.task.task_id, **facts))

    @override
    def overran(self, claim: Claim, run_seconds: float) -> None:
        count("TasksOverran")
        of_run = fields(task_id=claim.task.task_id, run_seconds=round(run_seconds, 3))
        logger.error("task overran", **of_run)

    @override
    def switched(self, switch: OrderSwitch) -> None:
        count("OrderSwitches")
        of_order = fields(
            newest_first=switch.newest_first, oldest_age_seconds=round(switch.oldest_age_seconds, 3)
        )
        logger.info("order switched", **of_order)
