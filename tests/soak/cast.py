"""The processes that act on one queue, and what goes wrong around them."""

import multiprocessing
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from local.faults import Fault, Proxy

from tests.soak.actors import LEASE_SECONDS, OPENING, Place, play
from tests.soak.history import OK, Stop, read

# Duration of a network fault.
FAULT_SECONDS: Final = 0.4
# Delay of a late answer: more than the checker's slack for leases.
DELAY_SECONDS: Final = 0.3
# Downtime of the store before it is started again.
DOWN_SECONDS: Final = 0.5
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.soak.actors"])


@contextmanager
def alive(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """Run a program, which must live until the end of the block; then kill it."""
    actor = subprocess.Popen(command, env=environment)
    try:
        yield
        assert actor.poll() is None
    finally:
        actor.kill()
        actor.wait()


@dataclass
class Network:
    """The network between the actors and their store.

    Attributes:
        proxy: Passes their connections on.
        restart: Stops the store and starts it again, with its data; None: never.
    """

    proxy: Proxy
    restart: Callable[[], None] | None = None


class Cast:
    """Processes that are randomly killed and replaced, or stopped for longer than a lease.

    The network between them and their store fails for moments, and the store is stopped and started.
    """

    def __init__(
        self, place: Place, folder: Path, size: int, seed: int, network: Network | None = None
    ) -> None:
        """Start the processes."""
        self._place = place
        self._network = network
        self._folder = folder
        self._rng = random.Random(seed)
        self._started = 0
        self._actors = [self._start(OPENING[number::size]) for number in range(size)]
        self.killed = self.faults = self.restarts = 0
        self.stops: list[Stop] = []
        self._untried = [act for act, _weight in self._bad_things()]
        self._rng.shuffle(self._untried)

    def _start(self, opening: Sequence[str] = ()) -> BaseProcess:
        self._started += 1
        journal = self._folder / f"actor{self._started}.jsonl"
        process = CONTEXT.Process(
            target=play,
            args=(self._place, journal, self._started, opening),
            name=journal.stem,
            daemon=True,
        )
        process.start()
        return process

    def unopened(self) -> set[tuple[str, str]]:
        """Return the verbs of the opening that the first actors have not done yet."""
        size = len(self._actors)
        events = read(self._folder.glob("*.jsonl"))
        done = {(event.process, event.verb) for event in events if event.outcome == OK}
        shares = {f"actor{number + 1}": OPENING[number::size] for number in range(size)}
        return {(name, verb) for name, share in shares.items() for verb in (*share, "cancel")} - done

    def disturb(self) -> None:
        """Cause one kind of trouble; at first each kind once."""
        if self._untried:
            self._untried.pop()()
            return
        verbs, weights = zip(*self._bad_things(), strict=True)
        self._rng.choices(verbs, weights)[0]()

    @property
    def tried_all(self) -> bool:
        """Whether each kind of trouble was caused."""
        return not self._untried

    def _bad_things(self) -> list[tuple[Callable[[], None], int]]:
        """Return the kinds of trouble, with their weights."""
        things: list[tuple[Callable[[], None], int]] = [(self._kill, 6), (self._stop, 4)]
        if self._network is not None:
            things.append((self._fail, 5))
            if self._network.restart is not None:
                things.append((self._restart, 1))
        return things

    def _victim(self) -> tuple[int, BaseProcess]:
        number = self._rng.randrange(len(self._actors))
        victim = self._actors[number]
        assert victim.is_alive(), f"an actor ended by itself with status {victim.exitcode}"
        return number, victim

    def _kill(self) -> None:
        number, victim = self._victim()
        victim.kill()
        victim.join()
        self.killed += 1
        self._actors[number] = self._start()

    def _stop(self) -> None:
        """Stop an actor for one and a half leases."""
        _number, victim = self._victim()
        assert victim.pid is not None
        began = time.time()
        os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(1.5 * LEASE_SECONDS)
        os.kill(victim.pid, signal.SIGCONT)
        self.stops.append(Stop(victim.name, began, time.time()))

    def _fail(self) -> None:
        """Let the network fail for a moment."""
        assert self._network is not None
        proxy = self._network.proxy
        proxy.delay_seconds = DELAY_SECONDS
        proxy.fault = self._rng.choice((Fault.DELAY, Fault.CUT, Fault.SWALLOW, Fault.RESET))
        time.sleep(FAULT_SECONDS)
        proxy.fault = Fault.NONE
        self.faults += 1

    def _restart(self) -> None:
        assert self._network is not None
        assert self._network.restart is not None
        self._network.restart()
        self.restarts += 1

    def end(self) -> None:
        """Kill all that are left."""
        for actor in self._actors:
            actor.kill()
            actor.join()
