"""A queue whose clients try again, as coroutines on a virtual clock: written without the code of freshq.

Each client, each run of a task and the outage is a generator that yields how many seconds to sleep.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random


class RetryingQueue:
    """A queue with retrying clients and one outage.

    Attributes:
        done: When each request was done before its client gave up.
        asked: When each request was first put.
    """

    def __init__(self, servers: int, seed: int, *, newest_first: bool, max_age: float) -> None:
        """Start idle; service takes 1 s on average."""
        self.done: list[float] = []
        self.asked: list[float] = []
        self._free = servers
        self._out = False
        self._newest_first = newest_first
        self._max_age = max_age
        self._waiting: list[tuple[float, int, float]] = []  # put at, number, service
        self._ended: dict[int, float] = {}
        self._rng = Random(seed)
        self._numbers = count()
        self._now = 0.0
        self._sleeping: list[tuple[float, int, Iterator[float]]] = []

    def run(
        self, rate: float, seconds: float, outage: tuple[float, float], timeout: float, tries: int
    ) -> None:
        """Run clients that come at a rate for some seconds, and the outage, from its start to its end."""
        self._spawn(self._outage(*outage))
        self._spawn(self._clients(rate, seconds, timeout, tries))
        while self._sleeping:
            self._now, _number, process = heappop(self._sleeping)
            self._resume(process)

    def _spawn(self, process: Iterator[float]) -> None:
        heappush(self._sleeping, (self._now, next(self._numbers), process))

    def _resume(self, process: Iterator[float]) -> None:
        pause = next(process, None)
        if pause is not None:
            heappush(self._sleeping, (self._now + pause, next(self._numbers), process))

    def _outage(self, start: float, end: float) -> Iterator[float]:
        yield start
        self._out = True
        yield end - start
        self._out = False
        self._claim()

    def _clients(self, rate: float, seconds: float, timeout: float, tries: int) -> Iterator[float]:
        while self._now < seconds:
            yield self._rng.expovariate(rate)
            self._spawn(self._client(timeout, tries))

    def _client(self, timeout: float, tries: int) -> Iterator[float]:
        self.asked.append(self._now)
        service = self._rng.expovariate(1.0)
        for _ in range(tries):
            number = next(self._numbers)
            self._waiting.append((self._now, number, service))
            self._claim()
            yield timeout
            if number in self._ended:
                self.done.append(self._ended[number])
                return
            yield timeout * self._rng.random() / 2

    def _claim(self) -> None:
        while self._free and self._waiting and not self._out:
            put_at, number, service = self._waiting.pop(-1 if self._newest_first else 0)
            if self._now < put_at + self._max_age:
                self._free -= 1
                self._spawn(self._run(number, service))

    def _run(self, number: int, service: float) -> Iterator[float]:
        yield service
        self._ended[number] = self._now
        self._free += 1
        self._claim()


def kella_yechiali(servers: int, loads: list[float], erlang_c: float) -> list[tuple[float, float]]:
    """Return the mean wait and its second moment of each level of M/M/c, non-preemptive, mean service 1.

    Kella and Yechiali, "Waiting times in the non-preemptive priority M/M/c queue", Stochastic Models 1(2),
    1985.

    Args:
        servers: Number of servers.
        loads: Load of each level as a share of the capacity, the highest level first.
        erlang_c: Probability of waiting.
    """
    found, above = [], 0.0
    for load in loads:
        upto = above + load
        mean = erlang_c / servers / ((1 - above) * (1 - upto))
        second = 2 * erlang_c / servers**2 * (1 - above * upto) / ((1 - above) ** 3 * (1 - upto) ** 2)
        found.append((mean, second))
        above = upto
    return found
