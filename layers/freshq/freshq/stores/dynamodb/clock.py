"""Read the time of DynamoDB from its answers."""

from __future__ import annotations

import logging
import threading
import time
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from math import inf
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from freshq.errors import StoreError
from freshq.model.forks import new_lock
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
# While nobody answers, ask again after this time.
ASK_AGAIN_SECONDS: Final = 1.0
# A clock that was wrong counts as right again once it is this part of the range away from both ends.
INNER_PART: Final = 0.25
# An item that does not exist. Reading it shows the time.
NO_ITEM: Final = CONTROL_PREFIX
logger = logging.getLogger(__name__)
_lock = new_lock()
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
        self._lock = new_lock()
        self._sent = threading.local()
        # How far the server's clock is ahead of the steady one, at least and at most; when that was measured;
        # how far the wall clock was ahead of the steady one then, which changes only if one jumps.
        self._ahead: tuple[float, float] | None = None
        self._as_of = 0.0
        self._wall_ahead = inf
        # What to add to the machine's time; 0 unless it is wrong.
        self._correction = 0.0
        self._check_at = -inf

    def sending(self, **_event: Any) -> None:
        """Note when a request is sent."""
        self._sent.at = self._steady()

    def received(self, response_dict: dict[str, Any] | None, **_event: Any) -> None:
        """Compare the machine's clock with the Date header of an answer."""
        sent, self._sent.at = getattr(self._sent, "at", None), None
        if sent is None or response_dict is None:
            return
        if (server := _seconds_of(response_dict["headers"].get("Date"))) is None:
            return
        with self._lock:
            steady, wall = self._steady(), self._wall()
            least, most = server - steady, server + DATE_RESOLUTION_SECONDS + DATE_LAG_SECONDS - sent
            if self._ahead is not None and abs(wall - steady - self._wall_ahead) <= JUMP_SECONDS:
                drift = MAX_DRIFT * (steady - self._as_of)
                both = (max(least, self._ahead[0] - drift), min(most, self._ahead[1] + drift))
                # If no time fits both, a clock was set: the newer answer counts.
                least, most = both if both[0] <= both[1] else (least, most)
            self._ahead, self._as_of, self._wall_ahead = (least, most), steady, wall - steady
            least, most = least - self._wall_ahead, most - self._wall_ahead
            if self._correction or not least - SPREAD_SECONDS <= 0 <= most + SPREAD_SECONDS:
                self._correct(least, most)

    def _correct(self, least: float, most: float) -> None:
        """Correct the machine's clock, which was or is certainly wrong, unless it is right again.

        Args:
            least: How far ahead it is at least, in seconds.
            most: How far ahead it is at most, in seconds.
        """
        was_right = self._correction == 0
        width = most - least + 2 * SPREAD_SECONDS
        margin = SPREAD_SECONDS - (0.0 if was_right else INNER_PART * width)
        if least - margin <= 0 <= most + margin:
            self._correction = 0.0
            return
        # With answers at many parts of a second, the lower bound comes close to the true time.
        self._correction = least + max(0.0, most - DATE_LAG_SECONDS - least) / 2
        if was_right:
            logger.warning(
                "the clock of this process is about %.1f s %s the store's; the store's time is used instead. "
                "Synchronize the clock",
                abs(self._correction),
                "behind" if self._correction > 0 else "ahead of",
            )

    def now(self, ask: Callable[[], object]) -> float:
        """Return the time in seconds since the epoch: the machine's, unless it is certainly wrong.

        Without Date headers in the answers it is never certain. If one of the machine's clocks jumped and
        nobody answers, the later one counts, so that no lease seems longer than it is.

        Args:
            ask: Makes a call, if the server's time is not known.

        Raises:
            StoreError: If the server's time was never known and the call fails.
        """
        with self._lock:
            steady, wall = self._steady(), self._wall()
            if abs(wall - steady - self._wall_ahead) <= JUMP_SECONDS:
                return wall + self._correction
        if steady >= self._check_at:
            self._learn(ask)
        return self._likely()

    def _learn(self, ask: Callable[[], object]) -> None:
        """Ask for the server's time; if the answer does not show it, do so again later.

        Raises:
            StoreError: If the server's time was never known and the call fails.
        """
        failure: StoreError | None = None
        try:
            ask()
        except StoreError as error:
            failure = error  # error responses have a Date header also
        with self._lock:
            steady, wall = self._steady(), self._wall()
            if abs(wall - steady - self._wall_ahead) <= JUMP_SECONDS:
                return
            if failure is not None and self._ahead is None:
                raise failure
            self._check_at = steady + (CHECK_INTERVAL_SECONDS if failure is None else ASK_AGAIN_SECONDS)

    def _likely(self) -> float:
        with self._lock:
            steady, wall = self._steady(), self._wall()
            if self._ahead is None:
                return wall
            has_jumped = abs(wall - steady - self._wall_ahead) > JUMP_SECONDS
            corrected = wall + self._correction
            return max(corrected, steady + self._ahead[0]) if has_jumped else corrected


@lru_cache(maxsize=8)
def _seconds_of(date: str | None) -> float | None:
    """Return the time in a Date header, in seconds since the epoch; None if it has none."""
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (OverflowError, ValueError):
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
