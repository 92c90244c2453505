"""After a power cut in the middle of work, everything confirmed is still there.

`tests/support/machine.py` has the disk that loses what was not synced. `make soak` sets FRESHQ_SOAK_SECONDS,
and tries more cuts; without it, this is the short form of `make test-all`.
"""

import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from local.servers import MariaDB, Postgres, Server
from typing_extensions import override

from freshq import Queue, StoreError
from freshq.queue.core import core_of
from tests.soak.actors import Place
from tests.soak.cast import alive
from tests.soak.history import OK, balance, check, read, traced
from tests.soak.test_soak import drain
from tests.support.machine import NOTES, Change, Disk, changes, on_machine
from tests.support.patience import PATIENCE_SECONDS
from tests.support.postgres import answer, kill_all
from tests.support.readings import STATES, within_seconds

IS_LONG: Final = "FRESHQ_SOAK_SECONDS" in os.environ
SOAK_SECONDS: Final = float(os.environ.get("FRESHQ_SOAK_SECONDS", "2"))
# Calls that are answered before the power is cut, and power cuts that are tried of each run.
CALLS: Final = 4_000 if IS_LONG else 400
CUTS: Final = round(2 * SOAK_SECONDS) if IS_LONG else 12
SERVER_CUTS: Final = round(SOAK_SECONDS / 10) if IS_LONG else 3
ACTORS: Final = 3
SEED: Final = 20_280_000
LONG_SECONDS: Final = 1_200.0 if IS_LONG else 240.0


@contextmanager
def powered(place: Place, folder: Path, environment: dict[str, str], *more: str) -> Iterator[None]:
    """Let processes act on a queue, and write their journals into a folder."""
    command = [sys.executable, "-m", "tests.soak.powered", place.url, str(folder)]
    with ExitStack() as actors:
        for seed in range(ACTORS):
            actors.enter_context(
                alive([*command, f"actor{seed}", str(seed), *more], os.environ | environment)
            )
        yield


def answered(folder: Path) -> int:
    """Return how many calls were answered."""
    return sum(path.read_bytes().count(b'"outcome"') for path in folder.glob(f"*{NOTES}"))


def cuts(notes: Sequence[Change], number: int, rng: random.Random, after: int = 0) -> list[int]:
    """Return the numbers of changes at which to cut the power: two thirds right after an answer."""
    answers = [place for place in range(after, len(notes)) if b'"outcome": "ok"' in notes[place].data]
    at_answers = [1 + place for place in rng.sample(answers, min(number - number // 3, len(answers)))]
    return sorted({*at_answers, *rng.sample(range(after + 1, len(notes)), number - len(at_answers))})


@dataclass
class Aftermath:
    """The state after a power cut.

    Attributes:
        answered: The calls that were answered before it.
        problems: What should not be.
    """

    answered: int
    problems: list[str]


def aftermath(queue: Queue, folder: Path, *, to_the_end: bool) -> Aftermath:
    """Compare the remaining tasks with the confirmed calls; at the end, also finish them."""
    events = read(folder.glob(f"*{NOTES}"))
    tasks = {task.task_id: task for task in core_of(queue).store.scan(queue.name)}
    # The rest of a lease depends on the machine's speed, not on its disk.
    broken = [each for each in check(events, tasks) if each.rule != "used-up lease"]
    found = [*map(str, broken), *map(str, traced(events, tasks))]
    now = queue.admin.now()
    stats, kept = queue.stats(), Counter(task.status_at(now).lower() for task in tasks.values())
    in_all = sum(getattr(stats, state) for state in STATES)
    if in_all != len(tasks):
        found.append(f"ledger: {in_all} counted, {len(tasks)} kept: {stats}, {kept}")
    if to_the_end:
        assert within_seconds(PATIENCE_SECONDS, lambda: all_recovered(queue))
        drained = drain(queue)
        after = {
            task.task_id: task.status_at(queue.admin.now()) for task in core_of(queue).store.scan(queue.name)
        }
        found += map(str, balance(events, after, drained))
    return Aftermath(sum(event.outcome == OK for event in events), found)


def all_recovered(queue: Queue) -> bool:
    """Recover the tasks whose leases ran out; return whether no other lease is left."""
    queue.admin.recover()
    return queue.stats().taken == 0


def sqlite_aftermath(folder: Path, *, to_the_end: bool) -> Aftermath:
    """Open a SQLite database after a cut."""
    url = f"sqlite:///{folder}/tasks.db"
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        sound = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    engine.dispose()
    if sound != ["ok"]:
        return Aftermath(0, [f"integrity: {sound[0]}"])
    with closing(Place(url).open()) as queue:
        assert isinstance(queue, Queue)
        return aftermath(queue, folder, to_the_end=to_the_end)


def cut_sqlite(tmp_path: Path, number: int, *more: str) -> list[Aftermath]:
    """Let processes use a SQLite database, and cut the power at some moments of that."""
    machine, journal = tmp_path / "machine", tmp_path / "changes"
    machine.mkdir()
    place = Place(f"sqlite:///{machine}/tasks.db")
    environment = on_machine(machine, journal)
    with closing(place.open()) as queue:
        queue.create_table()
    disk = Disk.of(machine)
    with powered(place, machine, environment, *more):
        assert within_seconds(LONG_SECONDS, lambda: answered(machine) >= CALLS)
    notes, rng, done, found = changes(journal), random.Random(SEED), 0, list[Aftermath]()
    for moment in (moments := cuts(notes, number, rng)):
        for note in notes[done:moment]:
            disk.change(note)
        done = moment
        with_what_is_left = tmp_path / f"after{moment}"
        disk.cut(with_what_is_left, rng)
        try:
            found.append(sqlite_aftermath(with_what_is_left, to_the_end=moment in (moments[-1], moments[0])))
        except (StoreError, sa.exc.DatabaseError) as error:
            found.append(Aftermath(0, [f"unreadable: {error}"]))
        shutil.rmtree(with_what_is_left)
    return found


@pytest.mark.timeout(2 * LONG_SECONDS)
def test_sqlite_keeps_what_it_confirmed(tmp_path: Path) -> None:
    found = cut_sqlite(tmp_path, CUTS)

    assert [each.problems for each in found if each.problems] == []
    assert max(each.answered for each in found) > CALLS / 2


@pytest.mark.timeout(2 * LONG_SECONDS)
def test_sqlite_that_does_not_wait_may_lose_the_last_calls_and_stays_sound(tmp_path: Path) -> None:
    found = cut_sqlite(tmp_path, CUTS, "--synchronous", "NORMAL")

    problems = [problem for each in found for problem in each.problems]
    assert problems, "a control: the machine loses something"
    assert not [each for each in problems if each.startswith(("integrity", "unreadable", "ledger"))]


@pytest.mark.timeout(2 * LONG_SECONDS)
def test_sqlite_without_any_sync_breaks(tmp_path: Path) -> None:
    found = cut_sqlite(tmp_path, CUTS, "--synchronous", "OFF")

    assert [
        each for each in found if any(one.startswith(("integrity", "unreadable")) for one in each.problems)
    ]


@dataclass(frozen=True)
class Kind:
    """A database server.

    Attributes:
        made: Makes one that waits for the disk.
        options: How it is started, so that a short run writes to each of its files.
        forgetful: Options with which its log is not on the disk when a call is confirmed.
    """

    made: Callable[[], Server]
    options: tuple[str, ...]
    forgetful: tuple[str, ...]


KINDS: Final = {
    "postgres": Kind(
        lambda: Postgres(durable=True),
        ("--shared_buffers=2MB", "--wal_init_zero=off"),
        # A commit does not wait, and no full buffer has the log written earlier than its writer does.
        (
            "--synchronous_commit=off",
            "--wal_writer_delay=10s",
            "--wal_buffers=64MB",
            "--shared_buffers=64MB",
            "--autovacuum=off",
        ),
    ),
    # The defaults of MariaDB, except that small pools and the lack of patience with changed pages let it
    # write pages all the time, and that the preloaded library does not see io_uring.
    "mariadb": Kind(
        MariaDB,
        (
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-flush-method=O_DIRECT",
            "--innodb-doublewrite=1",
            "--innodb-use-native-aio=0",
            "--innodb-buffer-pool-size=8M",
            "--innodb-log-file-size=4M",
            "--innodb-max-dirty-pages-pct=0",
        ),
        (
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-flush-log-at-timeout=2700",
            "--innodb-max-dirty-pages-pct=90",
        ),
    ),
}
# Its log stays in the process's memory, because nothing fills up: neither the log nor the memory for pages.
UNWRITTEN: Final = (
    *KINDS["mariadb"].forgetful,
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-log-buffer-size=64M",
    "--innodb-log-file-size=256M",
    "--innodb-buffer-pool-size=128M",
    "--innodb-adaptive-flushing=0",
)
WAL_WRITER: Final = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"


class Powered(Server):
    """A server that waits for the disk, on a machine whose power is cut.

    Attributes:
        disk: What is on it before the server starts.
    """

    disk: Disk

    def __init__(self, kind: Kind, options: Sequence[str] = (), *, is_watched: bool = False) -> None:
        super().__init__()
        self._server = kind.made()
        self._options = (*kind.options, *options)
        self._is_watched = is_watched
        self.stop_signal, self.users = self._server.stop_signal, self._server.users

    @override
    def prepare(self, folder: Path) -> None:
        self._server.prepare(folder)
        self.folder = folder
        self.disk = Disk.of(folder)
        for path in (self.actors, self.journal.parent):
            path.mkdir()
            path.chmod(0o777)

    @property
    def actors(self) -> Path:
        """The folder of the actors' journals, ordered together with the server's files."""
        return self.folder / "actors"

    @property
    def journal(self) -> Path:
        """The machine's journal, to which several users write."""
        return self.folder / "journal" / "changes"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process on the machine."""
        return on_machine(self.folder, self.journal) if self._is_watched else {}

    @override
    def command(self, folder: Path) -> list[str]:
        self._server.port = self.port
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return ["env", *variables, *self._server.command(folder), *self._options]

    @property
    @override
    def url(self) -> str:
        self._server.port = self.port
        return self._server.url

    def aftermath(self, *, to_the_end: bool) -> Aftermath:
        """Check its contents after the restart."""
        with closing(Place(self.url).open()) as queue:
            assert isinstance(queue, Queue)
            return aftermath(queue, self.actors, to_the_end=to_the_end)


class Recovered(Powered):
    """A server that starts on the files left by a power cut."""

    def __init__(self, kind: Kind, cut: Callable[[Path], None]) -> None:
        super().__init__(kind)
        self._cut = cut

    @override
    def prepare(self, folder: Path) -> None:
        self.folder = folder
        self._cut(folder)
        (folder / "data" / "postmaster.pid").unlink(missing_ok=True)  # another process may have its id
        for path in folder.rglob("*"):
            if (user := self.user()) is not None:
                shutil.chown(path, user)
        (folder / "data").chmod(0o700)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return a kind of server; skip visibly if it is not installed."""
    request.getfixturevalue(f"{request.param}_server")
    return KINDS[request.param]


def create_table(kind: Kind, server: Powered) -> None:
    """Create the table of tasks, so that it is on the disk."""
    with closing(Place(server.url).open()) as queue:
        queue.create_table()
    if kind is KINDS["postgres"]:
        answer(server, "CHECKPOINT")
        return
    # Its function is in a system table of the engine Aria, which syncs only at a checkpoint, every 30 s.
    engine = sa.create_engine(server.url)
    with engine.connect() as connection:
        connection.exec_driver_sql("FLUSH TABLES")
    engine.dispose()


def cut_server(kind: Kind, options: Sequence[str] = ()) -> list[Aftermath]:
    """Let processes use a server, and cut the power at some moments of that."""
    with Powered(kind, options, is_watched=True) as server:
        create_table(kind, server)
        already = len(changes(server.journal))
        with powered(Place(server.url), server.actors, server.environment):
            half = within_seconds(LONG_SECONDS, lambda: answered(server.actors) >= CALLS / 2)
            if kind is KINDS["postgres"]:
                answer(server, "CHECKPOINT")
            assert half
            assert within_seconds(LONG_SECONDS, lambda: answered(server.actors) >= CALLS)
        server.stop()
        notes, disk, rng, done = changes(server.journal), server.disk, random.Random(SEED), 0
    found = list[Aftermath]()
    for moment in (moments := cuts(notes, SERVER_CUTS, rng, after=already)):
        for note in notes[done:moment]:
            disk.change(note)
        done = moment
        with Recovered(kind, lambda folder: disk.cut(folder, rng)) as after:
            found.append(after.aftermath(to_the_end=moment == moments[-1]))
    return found


@pytest.mark.timeout(2 * LONG_SECONDS)
def test_a_server_keeps_what_it_confirmed(kind: Kind) -> None:
    found = cut_server(kind)

    assert [each.problems for each in found if each.problems] == []
    assert max(each.answered for each in found) > CALLS / 4


@pytest.mark.timeout(2 * LONG_SECONDS)
def test_a_server_that_does_not_wait_loses_the_last_calls(kind: Kind) -> None:
    found = cut_server(kind, kind.forgetful)

    assert [each for each in found if any(one.startswith("lost") for one in each.problems)]


@pytest.mark.parametrize(
    ("kind", "options", "is_kept"),
    [
        ("postgres", (), True),
        ("postgres", KINDS["postgres"].forgetful, False),
        ("mariadb", (), True),
        # The system has its log, which is enough unless the power fails.
        ("mariadb", KINDS["mariadb"].forgetful, True),
        ("mariadb", UNWRITTEN, False),
    ],
    indirect=["kind"],
)
@pytest.mark.timeout(2 * LONG_SECONDS)
def test_a_server_whose_processes_are_killed(kind: Kind, options: Sequence[str], *, is_kept: bool) -> None:
    with Powered(kind, options) as server:
        create_table(kind, server)
        if kind is KINDS["postgres"] and not is_kept:
            # It writes each full page of the log, so the last calls are lost only by chance beside it.
            os.kill(answer(server, WAL_WRITER), signal.SIGSTOP)
        with powered(Place(server.url), server.actors, {}):
            assert within_seconds(LONG_SECONDS, lambda: answered(server.actors) >= CALLS)
            kill_all(server)
        server.start()
        found = server.aftermath(to_the_end=is_kept)
    assert (found.problems == []) == is_kept, found.problems
    assert found.answered >= CALLS / 4
