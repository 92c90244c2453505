"""A shift of a call center in which every life of a resource and of a caller occurs once, with its ledger."""

from typing import Any, Final

from freshq import MatchQueue
from tests.conftest import Clock
from tests.support.matching import join, one

SPANISH: Final = {"language": "Spanish"}
FRENCH: Final = {"language": "French"}
GERMAN: Final = {"language": "German"}
LEASE_SECONDS: Final = 60.0
# The expected ledgers of the resources and of the callers.
RESOURCES: Final = {"created": 6, "success": 2, "cancelled": 1, "taken": 2, "pending": 1}
CALLERS: Final = {"created": 4, "success": 2, "cancelled": 1, "taken": 0, "pending": 1}
# By group, the stays of resources.
STAYS: Final = {"gender=F&language=Spanish": 2, "language=French": 3, "language=German": 1}


def shift(queue: MatchQueue, clock: Clock) -> None:
    """Live through it: one second passes between any two changes, if nothing else is said.

    Ellen is matched for 3 s; later she is matched to Ann, who waited 5 s. Billy's caller disappears, so he
    waits again after his lease and is withdrawn; then Cy finds him in the queue, and keeps him. Bob gives up.
    At the end Dora waits, and so does Zoe, whom a caller gave back, and Max's lease has been extended.
    """
    tick = clock.advance
    join(queue, "ellen", {"gender": "F", "language": "Spanish"})
    tick(1)
    join(queue, "billy", FRENCH)
    tick(1)
    ellen = one(queue, SPANISH)
    tick(1)
    ellen = queue.extend(ellen)
    tick(2)
    queue.complete(ellen)
    tick(1)
    one(queue, FRENCH)
    tick(LEASE_SECONDS + 1)
    assert queue.admin.recover() == 1
    tick(1)
    queue.withdraw("billy")
    tick(1)
    assert queue.request(SPANISH, caller_id="ann") is None
    tick(5)
    queue.offer("ellen")
    tick(1)
    served = queue.request(SPANISH, caller_id="ann")
    assert served is not None
    queue.complete(served)
    tick(1)
    assert queue.request(FRENCH, caller_id="bob") is None
    tick(1)
    assert queue.abandon("bob")
    tick(1)
    queue.offer("billy")
    tick(1)
    assert queue.request(FRENCH, caller_id="cy") is not None
    tick(1)
    assert queue.request({"language": "Greek"}, caller_id="dora") is None
    tick(1)
    join(queue, "zoe", FRENCH)
    tick(1)
    join(queue, "max", GERMAN)
    tick(1)
    queue.extend(one(queue, GERMAN), lease_seconds=3 * LEASE_SECONDS)
    tick(1)
    zoe = one(queue, FRENCH)
    tick(1)
    queue.release(zoe)


def story(events: list[dict[str, Any]], start: float) -> list[tuple[Any, ...]]:
    """Return what events say, with times in seconds since a start, sorted by task."""
    return sorted(
        (
            event["queue"],
            event["task_id"].partition("#")[0],
            round(event["created_ms"] / 1000 - start, 6),
            int(event["sequence"]),
            event["change"],
            event["status"],
            round(event["updated_ms"] / 1000 - start, 6),
            event.get("worker"),
            "lease_until_ms" in event and round(event["lease_until_ms"] / 1000 - start, 6),
            event.get("group"),
        )
        for event in events
    )
