"""What `benchmarks.sql` measures of others: queues that another interpreter has, and pgbench."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from benchmarks.sql_contenders import PAYLOAD, divided, shares
from freshq.stores.sql.engine import open_engine

if TYPE_CHECKING:
    from benchmarks.sql_contenders import Server

DRAIN_SECONDS: Final = 300
POLL_SECONDS: Final = 0.2
PROGRAM: Final = str(Path(__file__).with_name("sql_peers.py"))
# What a peer has recorded of each verb: how many jobs, and the seconds from the first start to the last end.
RECORDS: Final = {
    ("oban", "work"): """
        SELECT count(*), extract(epoch FROM max(completed_at) - min(attempted_at)) FROM oban_jobs
        WHERE state = 'completed'""",
    ("procrastinate", "work"): """
        SELECT count(*) FILTER (WHERE type = 'succeeded'),
               extract(epoch FROM max(at) - min(at) FILTER (WHERE type = 'started'))
        FROM procrastinate_events""",
    ("procrastinate", "put"): """
        SELECT count(*), extract(epoch FROM max(at) - min(at)) FROM procrastinate_events
        WHERE type = 'deferred'""",
}
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


def versions(python: str) -> dict[str, str]:
    """Return the versions of the peers that an interpreter has."""
    found: dict[str, str] = json.loads(_output(python, "versions"))
    return found


def fill_peer(server: Server, python: str, peer: str, jobs: int) -> None:
    """Empty the tables of a peer, and fill them."""
    _output(python, "fill", peer, server.conninfo, str(jobs))


def run_peer(server: Server, python: str, peer: str, workers: int, jobs: int) -> float:
    """Return the jobs a second that a peer runs, in at most two processes, by its own record."""
    fill_peer(server, python, peer, jobs)
    each = [[str(share)] for share in shares(workers)]
    return jobs / _seconds(server, python, peer, "work", each, jobs)


def put_by_peer(server: Server, python: str, peer: str, workers: int, jobs: int) -> float:
    """Return the jobs a second that a peer puts one by one, in at most two processes, by its own record."""
    fill_peer(server, python, peer, 0)
    each = shares(workers)
    counts = [[str(share), str(part)] for share, part in zip(each, divided(jobs, len(each)), strict=True)]
    return jobs / _seconds(server, python, peer, "put", counts, jobs)


def drain_file(python: str, peer: str, file: Path, jobs: int) -> float:
    """Return the jobs a second that a peer takes from a file of SQLite, in one loop."""
    return jobs / float(_output(python, "drain", peer, str(file), str(jobs)))


def _output(python: str, *arguments: str) -> str:
    done = subprocess.run(
        [python, PROGRAM, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DRAIN_SECONDS,
    )
    return done.stdout.splitlines()[-1] if done.stdout else ""


def _seconds(
    server: Server, python: str, peer: str, verb: str, arguments: list[list[str]], jobs: int
) -> float:
    """Start a process for each list of arguments, all at once; return the seconds that the peer recorded."""
    running = [
        subprocess.Popen(
            [python, PROGRAM, verb, peer, server.conninfo, *each],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for each in arguments
    ]
    try:
        for process in running:
            _await_ready(process, peer)
        for process in running:
            _input(process, "go\n")
        return _recorded_seconds(server, peer, verb, jobs)
    finally:
        for process in running:
            process.communicate(timeout=60)


def _await_ready(process: subprocess.Popen[str], peer: str) -> None:
    if process.stdout is None or process.stdout.readline() != "ready\n":
        msg = f"{peer} did not start"
        raise RuntimeError(msg)


def _input(process: subprocess.Popen[str], text: str) -> None:
    if process.stdin is not None:
        process.stdin.write(text)
        process.stdin.flush()


def _recorded_seconds(server: Server, peer: str, verb: str, jobs: int) -> float:
    """Wait until all jobs are done; return the seconds from the first start to the last end."""
    query = sa.text(RECORDS[peer, verb])
    engine = open_engine(server.url)
    deadline = time.monotonic() + DRAIN_SECONDS
    try:
        while time.monotonic() < deadline:
            with engine.connect() as connection:
                done, seconds = connection.execute(query).one()
            if done == jobs:
                return float(seconds)
            time.sleep(POLL_SECONDS)
    finally:
        engine.dispose()
    msg = f"{peer}: {done} of {jobs} jobs after {DRAIN_SECONDS} s of {verb}"
    raise TimeoutError(msg)


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
    output = subprocess.run(
        [pgbench, *options, f"--transactions={jobs // workers}", f"--file={script}", *where],
        check=True,
        capture_output=True,
        text=True,
        timeout=DRAIN_SECONDS,
    ).stdout
    line = next(line for line in output.splitlines() if line.startswith("tps = "))
    return float(line.split()[2])
