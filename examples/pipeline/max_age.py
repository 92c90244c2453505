# %% [markdown]
# # Which max age?
#
# A late answer is worth nothing, and neither is a missing one. `max_age_seconds` trades one for the other: a
# longer max age serves more tasks after a burst, but older ones. This notebook replays a recorded burst with
# several max ages and picks one.
#
# It needs `pip install 'freshq[pipeline]'` and a Java from 17 to 23. To open it as a notebook, run
# `jupytext --to ipynb max_age.py`.

# %%
import os
import subprocess
import sys
from pathlib import Path

import altair as alt
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from freshq import Order
from freshq_pipeline import Grid, replay, run

# %% [markdown]
# ## The events
#
# To analyze your own stack, set `STACK`: the events come from its archive. To analyze a queue in a SQL
# database, set `QUEUE_URL`: the events come from its history. Each pull copies new events.
#
# Without either, the notebook uses a recorded demonstration: for 30 seconds, three times as many tasks arrive
# as the downstream can serve, with a max age of 8 seconds.

# %%
STACK = os.environ.get("STACK", "")
QUEUE_URL = os.environ.get("QUEUE_URL", "")
source = ["--stack", STACK] if STACK else ["--queue", QUEUE_URL] if QUEUE_URL else []
EVENTS = os.environ.get("EVENTS", "events" if source else "demo-events")
if source:
    pull = [sys.executable, "-m", "freshq_pipeline", "pull", *source, "--out", EVENTS]
    subprocess.run(pull, check=True)  # noqa: S603 - no shell, and your own queue

# %%
OUT = Path(os.environ.get("OUT", "out"))

# The queue to analyze. Empty: the queue with the most tasks.
QUEUE = os.environ.get("QUEUE", "")

# At most one task in a hundred may be older than this when its run begins.
OLDEST_SECONDS = 5.0

# Spark's workers would otherwise run the first python3 in PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
recorded = run(spark, EVENTS, OUT)
tasks = recorded.tables["tasks"]

# %% [markdown]
# ## What happened
#
# Every task has exactly one outcome. `in_time` counts the tasks that succeeded before their deadline. Waits
# are measured until the first claim, in seconds.

# %%
tasks.groupBy("queue", "outcome", "shed_reason").agg(
    F.count("*").alias("tasks"),
    F.count_if("in_time").alias("in_time"),
    F.round(F.percentile_approx("wait_seconds", 0.5), 2).alias("wait_p50"),
    F.round(F.percentile_approx("wait_seconds", 0.99), 2).alias("wait_p99"),
).orderBy("queue", "outcome").show()

# %% [markdown]
# ## The same load with other max ages
#
# The replay runs the recorded tasks of one queue through the policy objects of a worker, newest first and
# oldest first. For a long recording, select some days: `tasks.where("day >= '2026-11-01'")`.

# %%
largest = tasks.groupBy("queue").count().orderBy(F.desc("count"), "queue").take(1)[0]
queue = QUEUE or largest["queue"]
MAX_AGES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0, 30.0)
grid = Grid(policies=(Order.LIFO, Order.FIFO), capacities=(1.0,), deadlines_seconds=MAX_AGES, queue=queue)
scenarios = replay(tasks, grid)
candidates = scenarios.where("policy = 'lifo' and not recorded").orderBy("deadline_seconds")
candidates.select(
    "deadline_seconds", "served_in_time", "served_late", "wait_p50_seconds", "wait_p99_seconds"
).show()

# %% [markdown]
# How far can you trust the replay? One more scenario replays the recorded policy. If its tasks in time
# differ from the recording, the machine was usually busy during the recording. The comparison of max ages
# suffers less from that than the figures themselves.

# %%
(check,) = scenarios.where("recorded").collect()
print(
    f"Queue {queue}: replayed as recorded, {check.served_in_time} tasks are served in time, "
    f"{check.difference_ratio:.0%} off the recording."
)

# %% [markdown]
# ## The decision
#
# Among the max ages that keep 99% of the waits short enough, choose the one that serves the most tasks.

# %%
fresh = candidates.where(F.col("wait_p99_seconds") <= OLDEST_SECONDS)
best = next(iter(fresh.orderBy(F.desc("served_in_time"), "deadline_seconds").take(1)), None)
if best is None:
    title = f"None of these max ages keeps 99% of waits within {OLDEST_SECONDS:g} s"
    print(f"{title}. Try shorter max ages in MAX_AGES, or accept older answers.")
else:
    title = (
        f"Newest first with a max age of {best.deadline_seconds:g} s keeps 99% of waits within "
        f"{OLDEST_SECONDS:g} s"
    )
    print(
        f"max_age_seconds={best.deadline_seconds:g}: {best.served_in_time} of {best.offered} tasks are "
        f"served in time, and 99% of waits are at most {best.wait_p99_seconds:.1f} s."
    )

# %%
named = F.when(F.col("policy") == "lifo", "newest first").otherwise("oldest first")
rows = scenarios.where("not recorded").select("*", named.alias("order")).drop("shed_by_reason").toArrow()
order = alt.Color("order:N", title=None, scale=alt.Scale(range=["#0072B2", "#E69F00"]))
age = alt.X("deadline_seconds:Q", title="max age (s)")
lines = alt.Chart(rows).mark_line(point=True).encode(age, color=order)
once = alt.Chart(alt.Data(values=[{}]))
chosen = (
    [] if best is None else [once.mark_rule(strokeDash=[4, 4]).encode(x=alt.datum(best.deadline_seconds))]
)
limit = once.mark_rule(color="#D55E00").encode(y=alt.datum(OLDEST_SECONDS))
chart = alt.hconcat(
    alt.layer(lines.encode(y=alt.Y("served_in_time:Q", title="tasks served in time")), *chosen),
    alt.layer(lines.encode(y=alt.Y("wait_p99_seconds:Q", title="wait, 99th percentile (s)")), *chosen, limit),
).properties(title=title)
chart.save(OUT / "max_age.svg")
chart
