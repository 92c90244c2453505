"""Read the time of DynamoDB from its answers."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from freshq.errors import StoreError
from freshq.stores.clocks import JUMP_SECONDS, steady_seconds
from freshq.stores.dynamodb.items import CONTROL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from botocore.client import BaseClient

    from freshq.stores.dynamodb.calls import TableCalls

# A Date header has whole seconds, and a server may write the same one for a second more. One answer shows the
# server's time to within the sum and its round trip; several, at different parts of a second, more exactly.
DATE_RESOLUTION_SECONDS: Final = 1.0
DATE_LAG_SECONDS: Final = 1.0
# The clocks of the servers of one region differ by less than this.
SPREAD_SECONDS: Final = 0.25
# Maximum drift between two clocks, per second: far above a crystal's.
MAX_DRIFT: Final = 0.0005
# If answers have no Date header, check again after this time.
CHECK_INTERVAL_SECONDS: Final = 30.0
# A clock that was wrong counts as right again once it is this part of the range away from both ends.
INNER_PART: Final = 0.25
# An item that does not exist. Reading it shows the time.
NO_ITEM: Final = CONTROL_PREFIX
logger = logging.getLogger(__name__)
_lock = threading.Lock()
_of_clients: WeakKeyDictionary[BaseClient, ServerTime] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Bounds and best estimate of the time of a store's clock, in seconds since the epoch.

    Attributes:
        earliest: The time is certainly not earlier.
        latest: The time is certainly not later.
        likely: The best estimate.
    """

    earliest: float
    latest: float
    likely: float


ANY_TIME: Final = TimeRange(float("-inf"), float("inf"), float("nan"))


class ServerTime:
    """Bounds the time of a client's servers, from the Date headers of their answers. Thread-safe."""

    def __init__(
        self, steady: Callable[[], float] = steady_seconds, wall: Callable[[], float] = time.time
    ) -> None:
        """Start without a known time.

        Args:
            steady: Returns a time in seconds that never jumps.
            wall: Returns the machine's time, whose jumps show that the steady one may have stood still.
        """
        self._steady = steady
        self._wall = wall
        self._lock = threading.Lock()
        self._sent = threading.local()
        # How far the server's clock is ahead of the steady one, at least and at most; when that was measured;
        # how far the wall clock was ahead of the steady one then.
        self._ahead: tuple[float, float] | None = None
        self._as_of = 0.0
        self._wall_ahead = 0.0
        self._check_at = float("-inf")

    def sending(self, **_event: Any) -> None:
        """Note when a request is sent."""
        self._sent.at = self._steady()

    def received(self, response_dict: dict[str, Any] | None, **_event: Any) -> None:
        """Note the Date header of an answer."""
        sent, self._sent.at = getattr(self._sent, "at", None), None
        if sent is None or response_dict is None:
            return
        server = _seconds_of(response_dict["headers"].get("Date"))
        if server is not None:
            self.observe(sent, self._steady(), server)

    def observe(self, sent: float, received: float, server: float) -> None:
        """Note an answer.

        Args:
            sent: Steady time at which the request was sent.
            received: Steady time at which the answer was there.
            server: The time of the answer in its header, in seconds since the epoch.
        """
        found = (server - received, server + DATE_RESOLUTION_SECONDS + DATE_LAG_SECONDS - sent)
        with self._lock:
            known = self._known(received)
            if known is not None:
                both = (max(found[0], known[0]), min(found[1], known[1]))
                # If no time fits both, a clock was set: the newer answer counts.
                found = both if both[0] <= both[1] else found
            self._ahead, self._as_of = found, received
            self._wall_ahead = self._wall() - received

    def now(self, ask: Callable[[], object]) -> TimeRange:
        """Return bounds of the server's current time; unbounded if its answers have no Date header.

        Args:
            ask: Makes a call, if the time is not known.

        Raises:
            StoreError: If the time is not known and the call fails.
        """
        with self._lock:
            steady = self._steady()
            ahead = self._known(steady)
        if ahead is None:
            if steady < self._check_at:
                return ANY_TIME
            self._learn(ask)
            return self.now(ask)
        least, most = ahead[0] + steady, ahead[1] + steady
        # With answers at many parts of a second, the lower bound comes close to the true time.
        likely = least + max(0.0, most - DATE_LAG_SECONDS - least) / 2
        return TimeRange(least - SPREAD_SECONDS, most + SPREAD_SECONDS, likely)

    def _learn(self, ask: Callable[[], object]) -> None:
        """Make a call that shows the time; if its answer has no Date header, do not ask again for a while."""
        failure: StoreError | None = None
        try:
            ask()
        except StoreError as error:
            failure = error  # error responses have a Date header also
        with self._lock:
            steady = self._steady()
            known = self._known(steady)
        if known is None and failure is not None:
            raise failure
        if known is None:
            self._check_at = steady + CHECK_INTERVAL_SECONDS

    def _known(self, steady: float) -> tuple[float, float] | None:
        """Return how far the server's clock is ahead of the steady one; None if it is no longer known."""
        if self._ahead is None or abs(self._wall() - steady - self._wall_ahead) > JUMP_SECONDS:
            return None
        drift = MAX_DRIFT * (steady - self._as_of)
        return self._ahead[0] - drift, self._ahead[1] + drift


@lru_cache(maxsize=8)
def _seconds_of(date: str | None) -> float | None:
    """Return the time in a Date header, in seconds since the epoch; None if it has none."""
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def server_time(client: BaseClient) -> ServerTime:
    """Return the time of a client's servers; it listens to the client's answers from now on."""
    with _lock:
        if (found := _of_clients.get(client)) is None:
            found = _of_clients[client] = ServerTime()
            client.meta.events.register("before-send.dynamodb", found.sending)
            client.meta.events.register("response-received.dynamodb", found.received)
        return found


class ComparedClock:
    """The clock of this machine, corrected if it certainly differs from the store's time. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float],
        store_range: Callable[[], TimeRange],
        steady: Callable[[], float] = steady_seconds,
    ) -> None:
        """Compare a clock.

        Args:
            clock: Returns the time in seconds since the epoch.
            store_range: Returns between which times the store's clock is now.
            steady: Returns a time in seconds that never jumps.
        """
        self._clock = clock
        self._store_range = store_range
        self._steady = steady
        self._wrong = False

    def __call__(self) -> float:
        """Return the time in seconds since the epoch.

        Raises:
            StoreError: If the store's time was never read, and it does not answer.
        """
        asked = self._steady()
        true = self._store_range()
        given = self._clock()
        # The store's time went on after it was read.
        latest = true.latest + self._steady() - asked
        inset = INNER_PART * (true.latest - true.earliest) if self._wrong else 0.0
        wrong = not true.earliest + inset <= given <= latest - inset
        if wrong and not self._wrong:
            logger.warning(
                "the clock of this process is about %.1f s %s the store's; the store's time is used instead. "
                "Synchronize the clock",
                abs(given - true.likely),
                "ahead of" if given > true.likely else "behind",
            )
        self._wrong = wrong
        return true.likely if wrong else given


def table_clock(calls: TableCalls) -> Callable[[], float]:
    """Return the machine's clock, corrected if it certainly differs from the time of a table's servers."""
    return server_clock(calls.client, partial(calls.get, NO_ITEM))


def server_clock(client: BaseClient, ask: Callable[[], object]) -> Callable[[], float]:
    """Return the machine's clock, corrected if it certainly differs from the time of a client's servers.

    Args:
        client: The client.
        ask: Makes a call from which to learn the time, if it is not known.
    """
    return ComparedClock(time.time, partial(server_time(client).now, ask))
