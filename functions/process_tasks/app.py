"""One worker pass: claims, runs and settles tasks, and calls its successor if work is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshq.aws.environment import connect_at_init
from freshq.aws.invocation import Connected
from freshq.aws.observability import (
    append_log_keys,
    count,
    count_dead_letters,
    fields,
    logger,
    observed,
)
from freshq.aws.wakeup import PASSES_UNDER_WAY, SWITCHED_OFF, Ring, parse_rings
from freshq.aws.worker_pass import Connections, tail_call, work

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

_connections = Connected(Connections.open)
connect_at_init(_connections)


@observed
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Make a pass, unless enough passes are under way."""
    ring = max(parse_rings(event), key=lambda ring: ring.hop, default=Ring())
    append_log_keys(hop=ring.hop, chain=ring.chain)
    connections = _connections()
    if connections.wakeup.switch.stops():
        return _skipped(SWITCHED_OFF)
    slots = connections.wakeup.options.current().worker_passes
    with connections.wakeup.passes.slot(context.aws_request_id, slots) as entered:
        if not entered:
            return _skipped(PASSES_UNDER_WAY)
        report = work(connections, context.get_remaining_time_in_millis() / 1000)
    count("Passes")
    count_dead_letters(connections.queue)
    answer: dict[str, Any] = {"claimed": report.claimed, "unfinished": report.unfinished}
    answer |= {outcome.value: number for outcome, number in report.outcomes.items()}
    if report.unknown_kinds:
        answer["unknown_kinds"] = report.unknown_kinds
    try:
        # After the slot is free: later puts ring by themselves, and the count includes earlier ones.
        answer["tail_call"] = tail_call(connections, ring, report)
    except Exception:  # Lambda retries the invocation, and that pass is the successor
        count("TailCallsFailed")
        logger.exception("pass ended, and the tail call failed", **fields(report=answer))
        raise
    logger.info("pass ended", **fields(report=answer))
    return answer


def _skipped(reason: str) -> dict[str, Any]:
    count("PassesSkipped")
    logger.info("no pass", **fields(skipped=reason))
    return {"claimed": 0, "skipped": reason}
