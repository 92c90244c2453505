"""The other queues that `benchmarks.sql` measures, where they are installed."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from benchmarks.sql_contenders import MAX_PROCESSES, PAYLOAD, Server, shares
from freshq.stores.sql.engine import open_engine

if TYPE_CHECKING:
    from collections.abc import Callable

DRAIN_SECONDS: Final = 300
POLL_SECONDS: Final = 0.2
# The bare minimum that claims a job and finishes it, in two transactions.
PGBENCH_SCRIPT: Final = """\
UPDATE bare_jobs SET status = 1 WHERE id = (SELECT id FROM bare_jobs WHERE status = 0 ORDER BY id
 LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id AS job \\gset
UPDATE bare_jobs SET status = 2 WHERE id = :job;
"""
BARE_TABLE: Final = (
    "DROP TABLE IF EXISTS bare_jobs",
    "CREATE TABLE bare_jobs (id bigserial PRIMARY KEY, status smallint NOT NULL, payload text NOT NULL)",
    "CREATE INDEX bare_waiting ON bare_jobs (id) WHERE status = 0",
)


# --- procrastinate


def procrastinate_app(server: Server) -> Any:  # noqa: ANN401 - a package that may not be there
    """Return an application of procrastinate with one task that does nothing."""
    procrastinate = importlib.import_module("procrastinate")
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=server.conninfo))

    @app.task(name="nothing")  # type: ignore[untyped-decorator]
    async def nothing(**_payload: object) -> None:
        """Do nothing."""

    return app


def fill_procrastinate(server: Server, tasks: int) -> None:
    """Empty its tables, and fill them."""
    app = procrastinate_app(server)
    engine = open_engine(server.url)
    present = sa.inspect(engine).has_table("procrastinate_jobs")

    async def fill() -> None:
        async with app.open_async():
            if not present:
                await app.schema_manager.apply_schema_async()
            await app.tasks["nothing"].batch_defer_async(*[PAYLOAD for _ in range(tasks)])

    if present:
        with engine.begin() as connection:
            connection.execute(sa.text("TRUNCATE procrastinate_jobs CASCADE"))
    asyncio.run(fill())
    engine.dispose()


def put_procrastinate(workers: int, ready: Callable[[], None], server: Server, tasks: int) -> None:
    """Defer jobs one by one, in coroutines."""
    app = procrastinate_app(server)
    count = tasks // workers // min(MAX_PROCESSES, workers)

    async def put() -> None:
        for _ in range(count):
            await app.tasks["nothing"].defer_async(**PAYLOAD)

    async def run() -> None:
        async with app.open_async():
            await app.tasks["nothing"].defer_async(**PAYLOAD)
            ready()
            await asyncio.gather(*(put() for _ in range(workers)))

    asyncio.run(run())


def drain_procrastinate(workers: int, ready: Callable[[], None], server: Server) -> None:
    """Run all jobs there are."""
    app = procrastinate_app(server)

    async def run() -> None:
        async with app.open_async():
            ready()
            await app.run_worker_async(
                concurrency=workers, wait=False, listen_notify=False, install_signal_handlers=False
            )

    asyncio.run(run())


# --- oban


def drain_oban(server: Server, python: str, workers: int, jobs: int) -> float:
    """Return the jobs a second that oban runs, by its own record of when each began and ended.

    It claims as many jobs as it has free places and settles several at once, at most every 5 ms.
    """
    program = [python, str(Path(__file__).with_name("sql_oban.py")), server.conninfo]
    subprocess.run([*program, "fill", str(jobs)], check=True, timeout=120)  # noqa: S603 - fixed arguments
    running = [
        subprocess.Popen([*program, "work", str(share)], stdin=subprocess.PIPE)  # noqa: S603 - fixed arguments
        for share in shares(workers)
    ]
    engine = open_engine(server.url)
    try:
        return jobs / _seconds_of_oban(engine, jobs)
    finally:
        for process in running:
            process.communicate(timeout=60)
        engine.dispose()


def _seconds_of_oban(engine: sa.Engine, jobs: int) -> float:
    """Return the seconds from the first start to the last end, once all jobs are done."""
    query = sa.text(
        "SELECT count(*), extract(epoch FROM max(completed_at) - min(attempted_at)) FROM oban_jobs"
        " WHERE state = 'completed'"
    )
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        with engine.connect() as connection:
            done, seconds = connection.execute(query).one()
        if done == jobs:
            return float(seconds)
        time.sleep(POLL_SECONDS)
    msg = f"oban finished {done} of {jobs} jobs in {DRAIN_SECONDS} s"
    raise TimeoutError(msg)


# --- pgbench


def drain_pgbench(server: Server, folder: Path, workers: int, jobs: int) -> float:
    """Return the bare claims and finishes a second that pgbench gets through."""
    engine = open_engine(server.url)
    with engine.begin() as connection:
        for statement in BARE_TABLE:
            connection.execute(sa.text(statement))
        connection.execute(
            sa.text("INSERT INTO bare_jobs (status, payload) SELECT 0, :payload FROM generate_series(1, :n)"),
            {"payload": str(PAYLOAD), "n": jobs + workers},
        )
    engine.dispose()
    script = folder / "claim.sql"
    script.write_text(PGBENCH_SCRIPT)
    pgbench = shutil.which("pgbench") or "pgbench"
    options = ["--no-vacuum", "--protocol=prepared", f"--client={workers}", f"--jobs={min(2, workers)}"]
    where = [f"--host={server.host}", f"--port={server.port}", "--username=freshq", "postgres"]
    output = subprocess.run(  # noqa: S603 - fixed arguments, no shell
        [pgbench, *options, f"--transactions={jobs // workers}", f"--file={script}", *where],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout
    line = next(line for line in output.splitlines() if line.startswith("tps = "))
    return float(line.split()[2])


# --- SQLite


def sqlite_litequeue(folder: Path, tasks: int) -> float:
    """Return the same of litequeue."""
    queue = importlib.import_module("litequeue").LiteQueue(str(folder / "litequeue.db"))
    for _ in range(tasks):
        queue.put(str(PAYLOAD))
    started = time.monotonic()
    while (message := queue.pop()) is not None:
        queue.done(message.message_id, claim_id=message.claim_id)
    seconds = time.monotonic() - started
    queue.conn.close()
    return tasks / seconds


def sqlite_huey(folder: Path, tasks: int) -> float:
    """Return the dequeues a second of SqliteHuey, which deletes a job when it hands it out."""
    huey = importlib.import_module("huey").SqliteHuey(filename=str(folder / "huey.db"))
    for _ in range(tasks):
        huey.storage.enqueue(str(PAYLOAD).encode())
    started = time.monotonic()
    while huey.storage.dequeue() is not None:
        pass
    seconds = time.monotonic() - started
    huey.storage.close()
    return tasks / seconds
