"""Hold a task in a database transaction, instead of under a lease."""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from freshq.model.telemetry import ClaimSpan
from freshq.policy.shedding import ShedReason
from freshq.queue.claim import candidates, note_skipped
from freshq.queue.core import Verbs, claim_request, transactions_of
from freshq.queue.filters import allowed_wait_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.model.task import Task
    from freshq.queue.core import Core
    from freshq.stores.held import HeldTask
    from freshq.stores.lines import ClaimRequest, LineReader, Stored


def _count_end(core: Core, work: HeldTask) -> None:
    settled = work.settled or work.failed
    if settled is None:
        return
    with core.later.beside():  # the transaction of another run may hold SQLite's only write lock
        core.ended(work.as_claim(), settled, is_served=settled is work.settled)


def refuse_limits(core: Core) -> None:
    """Raise if groups have limits, which a transaction cannot keep.

    Raises:
        ValueError: If they do.
    """
    if core.rules.config.groups.has_limits:
        msg = "groups: a transaction cannot keep the limits of groups, as others do not see what it holds; "
        raise ValueError(msg + "claim under leases, or remove all limits")


class HeldSearch:
    """The search of a transaction for a task to hold; it sheds tasks that waited too long on the way."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # The longest wait of the next candidates; infinite until a task was shed.
        self._longest_wait_seconds = math.inf

    def request(self) -> ClaimRequest:
        """Return a request for one task; after tasks were shed, one that passes over others like them."""
        return claim_request(self._core, 1, self._core.rules.config.lease_seconds, self._longest_wait_seconds)

    def candidates(self, reader: LineReader, request: ClaimRequest) -> Iterator[Stored]:
        """Yield the claimable tasks of all lines, best first."""
        return candidates(reader, request, self._core.book.look(reader))

    def shed_version(self, task: Task) -> Task | None:
        """Return the shed version of a task that was just claimed; None if it should run."""
        core, rules = self._core, self._core.rules
        if rules.codel is None or not rules.codel.sheds(task, task.updated):
            return None
        self._longest_wait_seconds = allowed_wait_seconds(core)
        rules.meter.shed_early(task.updated, ShedReason.CODEL, 1)
        return rules.lifecycle.shed_claimed(task, task.updated, ShedReason.CODEL)


class Holding(Verbs):
    """Holds tasks in transactions."""

    @contextmanager
    def transaction(self) -> Iterator[HeldTask | None]:
        """Hold the next task in a database transaction, by the lock of its row. SQL only.

        The writes of the block through the connection are committed together with the task's SUCCESS.
        An exception rolls them back, is recorded as a failed attempt, and is raised again; Retry, Reject and
        Busy instead end the attempt with their outcome. If the process dies, the task is claimable as before,
        and the attempt is not counted.

        Yields:
            The task and the connection; None if nothing is claimable or the queue is paused.

        Raises:
            ValueError: If the queue is not in a SQL database.
        """
        core = self._core
        transactions = transactions_of(core.store, "transaction")
        core.begin_write()
        refuse_limits(core)
        if core.store.paused(self.name):
            yield None
            return
        if core.upkeep.look_is_due(core.rules.config.lease_seconds, core.now()):
            core.bring_in_due()
        block = transactions.hold(search := HeldSearch(core), core)
        work: HeldTask | None = None
        try:
            with ExitStack() as stack:
                observer, span = core.observer, ClaimSpan(self.name)
                with nullcontext() if observer is None else observer.claim(span), core.later.beside():
                    work = stack.enter_context(block)
                    span.claims = [] if work is None else [work.as_claim()]
                yield work
        finally:
            if work is not None:
                core.store.notifier.changed(self.name, [work.settled, work.failed])
        if work is not None:
            _count_end(core, work)
        elif (request := search.request()).reserve_seconds:
            note_skipped(core, request, short=True)
