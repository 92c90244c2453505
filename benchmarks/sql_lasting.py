"""Tasks a second of 8 workers on PostgreSQL, minute by minute, beside many finished rows.

python -m benchmarks.sql_lasting [--minutes N] [--finished ROWS]
"""

from __future__ import annotations

import argparse
from typing import Final

from local.servers import HOST, Postgres
from rich.console import Console
from rich.table import Table

from benchmarks import figures
from benchmarks import sql_contenders as contenders

WORKERS: Final = 8


def steadily(server: contenders.Server, rows: int, minutes: int) -> list[int]:
    """Return the tasks a second in each of some minutes, one by one, beside finished rows."""
    contenders.fill_freshq(server, 0)
    contenders.add_finished(server, rows)
    per_minute = contenders.CONTEXT.Array("q", minutes)
    contenders.timed(contenders.keep_up, WORKERS, server, minutes, per_minute)
    return [round(tasks / 60) for tasks in per_minute[:]]


def main() -> None:
    """Measure one long run, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--finished", type=int, default=1_000_000)
    options = parser.parse_args()
    with Postgres(durable=True) as running:
        server = contenders.Server(running.url, HOST, running.port)
        found = steadily(server, options.finished, options.minutes)
    table = Table("minute", "tasks/s", title=f"{WORKERS} workers, {options.finished:,} finished rows")
    for minute, tasks in enumerate(found, start=1):
        table.add_row(str(minute), f"{tasks:,}")
    Console().print(table)
    report = {
        "workers": WORKERS,
        "finished_rows": options.finished,
        "tasks_per_second_by_minute": found,
    }
    figures.write("sql_lasting", report, ("psycopg", "sqlalchemy"))


if __name__ == "__main__":
    main()
