"""`OpenTelemetry`: spans and metrics of queues and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from freshq.errors import needs
from freshq.model.telemetry import Telemetry
from freshq.worker.blocking_queue import blocking_queue
from freshq.worker.report import Observer

with needs("otel"):
    from opentelemetry.trace import get_tracer

    from freshq.worker.otel.metrics import SCOPE, instruments_of
    from freshq.worker.otel.spans import Spans, note_put, note_settled, now_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from freshq.model.answers import Claim, Receipt
    from freshq.model.task import Task, Verb
    from freshq.model.telemetry import Answer, RunScope
    from freshq.policy.order import OrderSwitch
    from freshq.queue.async_queue import AsyncQueue
    from freshq.queue.base import BaseQueue
    from freshq.worker.report import Outcome


class OpenTelemetry(Telemetry, Observer):
    """Tells OpenTelemetry of every put, claim, run and settlement. Pass it to a queue as `telemetry`.

    A put makes a span, and the task carries its context. So the run is in the same trace, whichever process
    runs the task. A `Worker` of such a queue counts its runs too; its observer, or the log, receives them as
    well. Without an SDK in the process, all of this does next to nothing. Needs the extra `otel`.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        propagate: bool = True,
    ) -> None:
        """Use providers.

        Args:
            tracer_provider: Where spans go; None for the provider of the process.
            meter_provider: Where metrics go; None for the provider of the process.
            propagate: Whether tasks carry the context of their put, in about 70 bytes of their item or row.
        """
        self._spans = Spans(get_tracer(SCOPE, tracer_provider=tracer_provider), propagate=propagate)
        self._instruments = instruments_of(meter_provider)

    def watch(self, queue: BaseQueue | AsyncQueue) -> None:
        """Observe the state of a queue, as `freshq metrics` does, whenever metrics are collected.

        One process does that; each collection costs about six reads of each queue. If the store of a queue
        does not answer, that is logged, and its metrics have no values.

        Args:
            queue: The queue.

        Raises:
            ValueError: If it is no queue.
        """
        self._instruments.watch(blocking_queue(queue))

    @override
    def put(
        self, queue: str, tasks: Sequence[Task], write: Callable[[Sequence[Task]], list[Receipt]]
    ) -> list[Receipt]:
        if not tasks:
            return write(tasks)
        with self._spans.put(queue, tasks) as (span, carrying):
            try:
                receipts = write(carrying)
            except Exception as error:
                self._instruments.put_failed(queue, len(tasks), error)
                raise
            note_put(span, receipts)
            self._instruments.put(queue, receipts)
        return receipts

    @override
    def claim(self, queue: str, take: Callable[[], list[Claim]]) -> list[Claim]:
        began_ns = now_ns()
        try:
            claims = take()
        except Exception as error:
            self._spans.claim(queue, [], began_ns, error)
            raise
        if claims:  # a worker looks again and again: a span for each empty look would hide the others
            self._instruments.claimed(queue, claims)
            self._spans.claim(queue, claims, began_ns, None)
        return claims

    @override
    def settle(
        self, queue: str, ends: Sequence[tuple[Task, Verb]], write: Callable[[], list[Answer]]
    ) -> list[Answer]:
        with self._spans.settle(queue, ends) as span:
            answers = write()
            note_settled(span, answers)
        return answers

    @override
    def run(self, task: Task) -> RunScope:
        return self._spans.run(task)

    @override
    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        self._instruments.settled(claim.task.queue, outcome, run_seconds)

    @override
    def overran(self, claim: Claim, run_seconds: float) -> None:
        self._instruments.count(claim.task.queue, "TasksOverran")

    @override
    def switched(self, switch: OrderSwitch) -> None:
        self._instruments.switched()
