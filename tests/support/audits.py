"""The rules of every schedule: for each change of a task or a resource, and for the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from freshq import Claim, GroupRules, MatchQueue, Queue, TaskStatus
from freshq.matching import Match
from freshq.matching.resource import Resource, ResourceStatus
from freshq.model.fields import plain_token
from freshq.model.task import LIVE, TRANSITIONS, Task
from freshq.queue.core import core_of

if TYPE_CHECKING:
    from tests.support.interleaving import Scenario

LEASE_SECONDS: Final = 10.0
MAX_ATTEMPTS: Final = 50
# DynamoDB rejects a request that was signed longer ago.
SIGNED_SECONDS: Final = 900.0
# Other processes follow a pause within this time.
PAUSED_SECONDS: Final = 3.0
LEGAL: Final = {
    (source, target) for sources, targets in TRANSITIONS.values() for source in sources for target in targets
}
DRAINED_SECONDS: Final = (
    *(LEASE_SECONDS + 1, LEASE_SECONDS + 1, LEASE_SECONDS + 1),
    *(SIGNED_SECONDS, 100.0, 100.0),
)
# The verb of a process that puts over tasks of the same ids.
UPDATE: Final = "update"
IGNORE: Final = "ignore"
AFTER: Final = "after"
REPRIORITIZE: Final = "reprioritize"


def process_of(name: str) -> str:
    """Return the process of an actor, or of a caller."""
    return name.partition(".")[0]


class Handed(NamedTuple):
    """A claim that was handed out.

    Attributes:
        group: The group of its task.
        since: When it was handed out. A claim that is slower than its lease may have held the task before.
        until: The end of its lease.
    """

    group: str | None
    since: float
    until: float


class Audit:
    """The rules of one schedule.

    Attributes:
        now_seconds: The virtual time.
        acting: The process whose write lands; empty for none.
        problems: Violations of the rules.
        told: By task, the results confirmed as stored.
        denied: By task, the results reported as not stored.
        handed: By task and token, a claim that was handed out.
        created: Number of puts of a task that were answered CREATED.
        doing: The verb that a process calls, if it may change more than other verbs.
        paused_at: When the queue was paused; infinite while it is not, or may not be.
        began: When a schedule began.
        keeps_ended: Whether the store prevents a token from holding a task again after its lease ended.
        is_late: Whether the landing write was given up by its sender, or sent twice.
        matches: By resource, the token of the match that was handed out, and the end of its lease.
        matchers: By token of a match, the process that made it.
        urgent: Ids of the tasks of a higher level whose puts were answered.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now_seconds = 0.0
        self.acting = ""
        self.problems: list[str] = []
        self.told: dict[str, list[str]] = {}
        self.denied: dict[str, list[str]] = {}
        self.handed: dict[tuple[str, str | None], Handed] = {}
        self.created = Counter[str]()
        self.doing: dict[str, str] = {}
        self.paused_at = inf
        self.began = 0.0
        self.keeps_ended = True
        self.is_late = False
        self.matches: dict[str, tuple[str, float]] = {}
        self.matchers: dict[str, str] = {}
        self.urgent: list[str] = []
        self._served: dict[str, str] = {}
        self._ended: dict[str, tuple[str | None, float]] = {}
        # By payload of a put over another task: whether the task that it replaced was live.
        self._replaced: dict[str, list[bool]] = {}
        # Tasks whose results went with a put over them.
        self._over: set[str] = set()
        # By task, the payload of the put that waits behind its run, and of the last put.
        self._behind: dict[str, Any] = {}
        self._latest: dict[str, Any] = {}
        self._payloads: dict[str, Any] = {}

    # Tasks.

    def hand_out(self, claim: Claim) -> None:
        """Note a claim that an actor got, and check it against the limit of its group."""
        group, now, key = claim.task.group, self.now_seconds, (claim.task.task_id, claim.token)
        if key not in self.handed:
            if claim.task.stale_at <= now:
                self.problems.append(f"{claim.task.task_id} was handed out stale")
            if claim.lease_until < now + LEASE_SECONDS / 2:
                self.problems.append(f"{claim.task.task_id} was handed out under a lease that is used up")
        earlier = self.handed.get(key, Handed(group, now, 0.0))
        self.handed[key] = earlier._replace(until=max(earlier.until, claim.lease_until))
        rules: GroupRules | None = self.scenario.options.get("groups")
        most = None if rules is None or group is None else rules.rule(group).max_running
        held = sum(each.group == group and each.until > now for each in self.handed.values())
        if most is not None and held > most:
            self.problems.append(f"{held} tasks of group {group} in work")

    def check_pause(self, claims: Sequence[Claim], began: float) -> None:
        """Check that a call that began while the queue was paused claimed nothing."""
        if claims and began > self.paused_at + PAUSED_SECONDS:
            self.problems.append(f"{claims[0].task.task_id} was claimed from a paused queue")

    def check_levels(self, claims: Sequence[Claim], waiting: Sequence[Task]) -> None:
        """Check that a claim took no task of a level below one that had waited since before it began.

        Args:
            claims: What it returned.
            waiting: The urgent tasks that had been put before it, as they are after it.
        """
        left = [task for task in waiting if task.status is TaskStatus.PENDING and task.first_claim_at is None]
        lower = [claim.task.task_id for claim in claims if claim.task.priority == 0]
        if left and lower:
            self.problems.append(
                f"{lower[0]} was claimed before {left[0].task_id}, which is of a higher level"
            )

    def check_put(self, task_id: str, payload: str, outcome: str) -> None:
        """Check the outcome of a put over a task of the same id."""
        replaced = self._replaced.get(payload, [])
        if outcome == "UPDATED" and replaced and not replaced[-1]:
            self.problems.append(f"{task_id} was updated by {payload}, which replaced one that was over")

    def check(self, before: Any, after: Any) -> None:
        """Check a change of a task, and who made it; `before` may be None."""
        if before is None:
            return
        verb = self.doing.get(self.acting, "")
        if verb == AFTER and before.status is TaskStatus.TAKEN:
            self.problems += self._wrong_after(before, after)
        elif verb in (UPDATE, IGNORE, AFTER):
            self._check_over(before, after, verb)
        elif after.payload != before.payload:
            self.problems += self._wrong_successor(before, after)
        else:
            self.problems += self._wrong(before, after, verb)
        if before.status is TaskStatus.TAKEN and after.status is not TaskStatus.TAKEN:
            self._ended[before.task_id] = (plain_token(before.lease_token), before.created)

    def _wrong_after(self, before: Any, after: Any) -> Iterator[str]:
        """Check a put behind a running task, which must change nothing of that."""
        task_id = before.task_id
        kept = ("status", "payload", "created", "attempts", "lease_until", "priority")
        changed = [name for name in kept if getattr(before, name) != getattr(after, name)]
        if changed or plain_token(before.lease_token) != plain_token(after.lease_token):
            yield f"{task_id}: {', '.join(changed) or 'its lease'} was changed by a put behind its run"
        payload = json.loads(after.successor_record or "{}").get("payload")
        if payload == self._behind.get(task_id):
            yield f"{task_id}: {payload} was put behind it twice"
        self._behind[task_id] = self._latest[task_id] = payload

    def _wrong_successor(self, before: Any, after: Any) -> Iterator[str]:
        """Check that the last put behind a task takes its place, by the write of one who may end its run."""
        task_id, waited = before.task_id, self._behind.pop(before.task_id, None)
        if after.status is not TaskStatus.PENDING or after.payload != waited:
            yield f"{task_id}: {after.payload} took its place as {after.status}, {waited} waited"
        if before.status is TaskStatus.TAKEN:
            yield from self._wrong_of_held(before, after)
        elif before.status in LIVE:
            yield f"{task_id}: {after.payload} took its place while it was {before.status}"
        self._over.add(task_id)

    def _check_over(self, before: Any, after: Any, verb: str) -> None:
        task_id, live = before.task_id, before.status in LIVE
        if verb == IGNORE and live:
            self.problems.append(f"{task_id} was replaced while it was {before.status}")
        # A put that is repeated after a lost reply may come after another put, but not after itself.
        if after.payload == before.payload:
            self.problems.append(f"{task_id}: {after.payload} was put over itself")
        self._replaced.setdefault(str(after.payload), []).append(live)
        self._behind.pop(task_id, None)
        self._latest[task_id] = after.payload
        # It brings back a task that a repeated copy of its former claim may take again.
        if self._ended.get(task_id, (None, None))[1] == after.created:
            del self._ended[task_id]
        self._over.add(task_id)

    def _wrong(self, before: Task, after: Task, verb: str) -> Iterator[str]:
        task_id, by = before.task_id, self.acting
        if (before.status, after.status) not in LEGAL:
            yield f"{task_id}: {before.status} became {after.status}"
        if after.priority != before.priority and verb != REPRIORITIZE:
            yield f"{task_id}: priority {before.priority} became {after.priority} by {by}"
        # A late copy of a claim, and then of its release, may take more than one attempt back.
        if not self.is_late and not self._may_count(before, after):
            yield f"{task_id}: attempts {before.attempts} became {after.attempts} by {by}"
        if before.status is TaskStatus.TAKEN:
            yield from self._wrong_of_held(before, after)
        elif self.keeps_ended and after.status is TaskStatus.TAKEN:
            token, created = self._ended.get(task_id, (None, 0.0))
            # A claim that is repeated may take an older task that was put over its own.
            if after.lease_token == token and after.created >= created:
                yield f"{task_id} is held again by {by} under a lease that ended"

    def _may_count(self, before: Task, after: Task) -> bool:
        """Return whether a change of a task changes its attempts correctly."""
        change = after.attempts - before.attempts
        if after.attempts > self.scenario.options.get("max_attempts", MAX_ATTEMPTS):
            return False
        if after.status is TaskStatus.TAKEN:
            return change == (0 if before.status is TaskStatus.TAKEN else 1)
        if before.status is TaskStatus.TAKEN:
            return change <= 0
        return change == 0 or (before.status is TaskStatus.FAILURE and after.attempts == 0)

    def _wrong_of_held(self, before: Task, after: Task) -> Iterator[str]:
        task_id, by = before.task_id, self.acting
        holder = str(before.lease_token).partition(":")[0]
        if after.status is TaskStatus.TAKEN and before.created != after.created:
            yield f"{task_id} moved in time while it was held"
        if after.status is TaskStatus.TAKEN and after.lease_token != before.lease_token:
            yield f"{task_id} was taken by {by} from {holder}"
        until, handed = before.lease_until or 0.0, self.handed.get((task_id, plain_token(before.lease_token)))
        if handed is not None and handed.since <= self.now_seconds:
            until = max(until, handed.until)
        if until > self.now_seconds and by not in (holder, *self.scenario.forces):
            yield f"{task_id} became {after.status} by {by} while {holder} held it"

    def drain(self, queue: Queue) -> None:
        """Finish all tasks as the only process; note tasks that stay behind."""
        for seconds in DRAINED_SECONDS:
            self.now_seconds += seconds
            queue.admin.recover()
            while claims := queue.claim(10):
                for claim in claims:
                    queue.complete(claim, result="drained")
        self.check_ends({task.task_id: task for task in core_of(queue).store.scan(queue.name)})

    def check_ends(self, left: dict[str, Task]) -> None:
        """Check the remaining tasks of a queue in which nothing can be claimed."""
        self._payloads = {task_id: task.payload for task_id, task in left.items()}
        for task in left.values():
            if task.status_at(self.now_seconds) in LIVE:
                self.problems.append(f"{task.task_id} is stranded as {task.status}")
        for task_id, times in self.created.items():
            if times > 1:
                self.problems.append(f"{task_id} was created {times} times")
            if times and task_id not in left:
                self.problems.append(f"{task_id} is gone")
        self._check_results({task_id: task for task_id, task in left.items() if task_id not in self._over})

    def check_last_puts(self) -> None:
        """Check that the last put of each task took its place, once all changes were checked."""
        for task_id, payload in self._behind.items():
            self.problems.append(f"{task_id}: {payload} never took its place")
        for task_id, payload in self._latest.items():
            if self._payloads.get(task_id, payload) != payload:
                self.problems.append(
                    f"{task_id} ended as {self._payloads[task_id]}, the last put was {payload}"
                )

    def _check_results(self, left: dict[str, Task]) -> None:
        for task_id, task in left.items():
            ends = self.told.get(task_id, [])
            if len(ends) > 1:
                self.problems.append(f"{task_id} ended {len(ends)} times")
            if ends and task.result not in ends:
                self.problems.append(f"{task_id} was confirmed as {ends[0]}, and is {task.result}")
            if task.result in self.denied.get(task_id, ()):
                self.problems.append(f"{task_id} is {task.result}, which was denied")

    # Resources.

    def hand_over(self, match: Match) -> None:
        """Note a match that an actor got; no other actor may hold its resource."""
        until = inf if match.lease_until is None else match.lease_until
        token, other_until = self.matches.get(match.resource_id, (match.token, 0.0))
        if token != match.token and min(until, other_until) > self.now_seconds:
            self.problems.append(f"{match.resource_id} was given to two callers")
        self.matches[match.resource_id] = (match.token, until)

    def check_resource(self, before: Resource | None, after: Resource | None) -> None:
        """Check a change of a resource, and who made it."""
        if before is not None and before.status is ResourceStatus.MATCHED:
            self._check_match(before, after)
        if after is not None and after.status is ResourceStatus.MATCHED:
            self.matchers.setdefault(after.token, self.acting)
            caller = after.caller_id
            if caller is not None:
                if self._served.get(caller, after.resource_id) != after.resource_id:
                    self.problems.append(f"{caller} was given {self._served[caller]} and {after.resource_id}")
                self._served[caller] = after.resource_id

    def _check_match(self, before: Resource, after: Resource | None) -> None:
        caller, until = before.caller_id, before.lease_until or inf
        holder = self.matchers.get(before.token, "") if caller is None else process_of(caller)
        stays = after is not None and after.token == before.token
        if stays and after is not None and (after.lease_until or inf) < until:
            self.problems.append(f"{before.resource_id}: its lease was shortened by {self.acting}")
        if not stays:
            if until > self.now_seconds and self.acting != holder:
                self.problems.append(f"{before.resource_id} was taken by {self.acting} from {holder}")
            if caller is not None:
                self._served.pop(caller, None)

    def check_desk(self, desk: MatchQueue, asks: dict[str, Any]) -> None:
        """Check the remaining resources once all leases have expired.

        Args:
            desk: The queue.
            asks: By caller, what each may still wait for.
        """
        for seconds in DRAINED_SECONDS[:2]:
            self.now_seconds += seconds
            desk.admin.recover()
        waiting = [caller.caller_id for caller in desk.callers()]
        for caller_id in waiting:
            desk.request(asks[caller_id], caller_id=caller_id)
        resources = list(desk.resources())
        queued = {each.resource_id for each in resources if each.status is ResourceStatus.QUEUED}
        for each in resources:
            if each.expired(self.now_seconds):
                self.problems.append(f"{each.resource_id} is stranded as {each.status}")
        for caller in desk.callers():
            for each in resources:
                if each.resource_id in queued and caller.preference(each.attributes) is not None:
                    self.problems.append(f"{caller.caller_id} and {each.resource_id} wait for each other")
        found = {match.resource_id for match in desk.match({}, limit=100)}
        if found != queued:
            self.problems.append(f"{sorted(found)} were found of {sorted(queued)} that wait")
