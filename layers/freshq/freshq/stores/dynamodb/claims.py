"""Takes the candidates of a claim: names them in the lease record, then claims them one by one."""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.model.task import Task, TaskStatus
from freshq.policy.shedding import too_late
from freshq.stores.base import Guard
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import claim_arguments, decode_if_task, replace_arguments
from freshq.stores.dynamodb.leases import MAX_NAMED_BYTES
from freshq.stores.dynamodb.queries import LOOKAHEAD_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from freshq.stores.base import ClaimRequest
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.candidates import Candidates
    from freshq.stores.dynamodb.items import Keyspace
    from freshq.stores.dynamodb.leases import LeaseRecords
    from freshq.stores.dynamodb.quarantine import Quarantine

logger = logging.getLogger(__name__)

# After a lost race a round names this many more tasks than it can claim: as many as are read in advance.
EXTRA_NAMES: Final = LOOKAHEAD_KEYS
# The minimum number of tasks that a lease record names. With fewer it would be written more often; with
# more, a sweep and the approximate count of TAKEN tasks would read more.
MIN_NAMED: Final = 4
# Of the hash key of a table, an application's included.
MAX_KEY_BYTES: Final = 2048


@dataclass
class _Round:
    """The state of a claim.

    Attributes:
        request: The claim.
        free_tokens: Lease tokens not used yet.
        taken: The tasks claimed so far.
        lost_race: Whether another claimer took a candidate first.
    """

    request: ClaimRequest
    free_tokens: list[str]
    taken: list[Task] = field(default_factory=list)
    lost_race: bool = False

    @property
    def width(self) -> int:
        """How many candidates to try next."""
        return len(self.free_tokens) + (EXTRA_NAMES if self.lost_race else 0)


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims tasks, each by one conditional write.

    Attributes:
        calls: Calls to the table.
        keyspace: Names of its index partitions.
        leases: The lease records of this process.
        quarantine: Where damaged tasks go.
    """

    calls: TableCalls
    keyspace: Keyspace
    leases: LeaseRecords
    quarantine: Quarantine

    def take(self, request: ClaimRequest, candidates: Candidates) -> list[Task]:
        """Take up to `request.limit` of the candidates, best first.

        After a lost race the next round tries more candidates than it needs and starts somewhere among
        them, so that claimers which race each other part.

        Raises:
            StoreError: If the store failed before anything was taken.
        """
        state = _Round(request, list(request.tokens))
        best_first = candidates.best_first()
        try:
            while state.free_tokens and (wanted := list(_nameable(best_first, state.width))):
                ahead = candidates.ahead_of(wanted, MIN_NAMED - len(wanted))
                self._take_among(wanted, ahead, state)
        except StoreError:
            if not state.taken:
                raise
            # What was taken must reach its worker. If the store still fails, so does the next claim.
            logger.warning(
                "claim cut short after %d of %d tasks", len(state.taken), request.limit, exc_info=True
            )
        return state.taken

    def _take_among(self, wanted: Sequence[str], ahead: Sequence[str], state: _Round) -> None:
        """Name tasks in the lease record, then claim them one by one while tokens are left.

        Args:
            wanted: Ids, best first; more than there are tokens after a lost race.
            ahead: Tasks to name as well, for later claims.
            state: The claim so far; claimed tasks are added to it.
        """
        tokens, request = state.free_tokens, state.request
        if len(wanted) > len(tokens):
            start = zlib.crc32(tokens[0].encode()) % len(wanted)
            wanted = [*wanted[start:], *wanted[:start]]
        named = {task_id: tokens[index % len(tokens)] for index, task_id in enumerate(wanted)}
        self.leases.cover(request.queue, [*named.items()], request.lease_until, request.now, ahead)
        for task_id, named_token in named.items():
            if tokens and self._take(task_id, tokens[0], state):
                self.leases.change_token(request.queue, task_id, named_token, tokens.pop(0))
            else:
                self.leases.forget(request.queue, (task_id, named_token))

    def _take(self, task_id: str, token: str, state: _Round) -> bool:
        """Claim one task; return whether it was still claimable."""
        try:
            item = self.calls.update(claim_arguments(task_id, token, state.request, self.keyspace))
        except ConditionFailed as failed:
            if (found := decode_if_task(failed.item)) is not None:
                state.lost_race |= found.status is TaskStatus.TAKEN
                self._shed_if_too_late(found, state.request)
            return False
        if (task := decode_if_task(item)) is not None:
            state.taken.append(task)
        elif item is not None:
            self.quarantine.admit(item, state.request.now)
        return task is not None

    def _shed_if_too_late(self, task: Task, request: ClaimRequest) -> None:
        """Shed a task whose own deadline is too near, so that later claims do not read it.

        Tasks that are stale by the queue's max age are excluded by the key condition of the query.
        """
        reason = too_late(request.now, task.deadline, request.deadline_after - request.now)
        if task.status is not TaskStatus.PENDING or reason is None:
            return
        shed = replace(task, status=TaskStatus.SHED, shed_reason=reason, updated=request.now)
        try:
            guard = Guard(TaskStatus.PENDING, request_token=task.request_token)
            self.calls.update(replace_arguments(shed, guard, self.keyspace))
        except ConditionFailed:
            logger.debug("task %s changed before it could be shed", task.task_id)


def _nameable(best_first: Iterator[str], count: int) -> Iterator[str]:
    """Yield up to `count` ids, as many as one lease record can name."""
    left_bytes = MAX_NAMED_BYTES - MAX_KEY_BYTES
    for task_id in islice(best_first, count):
        yield task_id
        left_bytes -= len(task_id.encode())
        if left_bytes < 0:
            return
