"""Read the time of DynamoDB from its answers."""

from __future__ import annotations

import logging
import threading
import time
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


class ServerTime:
    """The machine's clock, corrected if it is certainly not the time of a client's servers. Thread-safe.

    The Date headers of their answers bound the time of the servers.
    """

    def __init__(
        self, steady: Callable[[], float] = steady_seconds, wall: Callable[[], float] = time.time
    ) -> None:
        """Start without a known time.

        Args:
            steady: Returns a time in seconds that never jumps.
            wall: Returns the machine's time in seconds since the epoch. Its jumps show that the steady one
                may have stood still.
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
        self._is_wrong = False

    def sending(self, **_event: Any) -> None:
        """Note when a request is sent."""
        self._sent.at = self._steady()

    def received(self, response_dict: dict[str, Any] | None, **_event: Any) -> None:
        """Note the Date header of an answer."""
        sent, self._sent.at = getattr(self._sent, "at", None), None
        if sent is None or response_dict is None:
            return
        if (server := _seconds_of(response_dict["headers"].get("Date"))) is None:
            return
        steady, wall = self._steady(), self._wall()
        found = (server - steady, server + DATE_RESOLUTION_SECONDS + DATE_LAG_SECONDS - sent)
        with self._lock:
            if (known := self._known(steady, wall)) is not None:
                both = (max(found[0], known[0]), min(found[1], known[1]))
                # If no time fits both, a clock was set: the newer answer counts.
                found = both if both[0] <= both[1] else found
            self._ahead, self._as_of, self._wall_ahead = found, steady, wall - steady

    def now(self, ask: Callable[[], object]) -> float:
        """Return the time in seconds since the epoch: the machine's, unless it is certainly wrong.

        Without Date headers in the answers it is never certain.

        Args:
            ask: Makes a call, if the time is not known.

        Raises:
            StoreError: If the time is not known and the call fails.
        """
        while True:
            with self._lock:
                steady, wall = self._steady(), self._wall()
                ahead = self._known(steady, wall)
            if ahead is not None:
                least, most = ahead[0] + steady, ahead[1] + self._steady()
                width = most - least + 2 * SPREAD_SECONDS
                margin = SPREAD_SECONDS - (INNER_PART * width if self._is_wrong else 0.0)
                if not least - margin <= wall <= most + margin:
                    return self._corrected(wall, least, most)
                self._is_wrong = False
                return wall
            if steady < self._check_at:
                return wall
            self._learn(ask)

    def _corrected(self, wall: float, least: float, most: float) -> float:
        """Return the best estimate between two times, instead of a wrong one; say so the first time."""
        # With answers at many parts of a second, the lower bound comes close to the true time.
        likely = least + max(0.0, most - DATE_LAG_SECONDS - least) / 2
        if not self._is_wrong:
            logger.warning(
                "the clock of this process is about %.1f s %s the store's; the store's time is used instead. "
                "Synchronize the clock",
                abs(wall - likely),
                "ahead of" if wall > likely else "behind",
            )
        self._is_wrong = True
        return likely

    def _learn(self, ask: Callable[[], object]) -> None:
        """Make a call that shows the time; if its answer has no Date header, do not ask again for a while."""
        failure: StoreError | None = None
        try:
            ask()
        except StoreError as error:
            failure = error  # error responses have a Date header also
        with self._lock:
            steady = self._steady()
            known = self._known(steady, self._wall())
        if known is None and failure is not None:
            raise failure
        if known is None:
            self._check_at = steady + CHECK_INTERVAL_SECONDS

    def _known(self, steady: float, wall: float) -> tuple[float, float] | None:
        """Return how far the server's clock is ahead of the steady one; None if it is no longer known."""
        if self._ahead is None or abs(wall - steady - self._wall_ahead) > JUMP_SECONDS:
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


def table_clock(calls: TableCalls) -> Callable[[], float]:
    """Return the machine's clock, corrected if it certainly differs from the time of a table's servers."""
    return server_clock(calls.client, partial(calls.get, NO_ITEM))


def server_clock(client: BaseClient, ask: Callable[[], object]) -> Callable[[], float]:
    """Return the machine's clock, corrected if it certainly differs from the time of a client's servers.

    Args:
        client: The client.
        ask: Makes a call from which to learn the time, if it is not known.
    """
    with _lock:
        if (found := _of_clients.get(client)) is None:
            found = _of_clients[client] = ServerTime()
            client.meta.events.register("before-send.dynamodb", found.sending)
            client.meta.events.register("response-received.dynamodb", found.received)
    return partial(found.now, ask)
