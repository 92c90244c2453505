"""The same facts by DuckDB, from the same files, written down independently of the pipeline.

It knows landed events only, and takes every line to be sound. Everything is computed from each task's
list of changes; nothing is shared with the pipeline but the meaning of the columns.
"""

from __future__ import annotations

from typing import Final

# One row for each change of a task, duplicates gone, in order, with the change before and after it.
CHANGES: Final = """
create temp table changes as
with raw as (
  select distinct on (event_id) * from read_json('{files}', format='newline_delimited', columns={{
    event_id: 'varchar', sequence: 'hugeint', change: 'varchar', stream_ms: 'double', ttl_removal: 'boolean',
    task_id: 'varchar', queue: 'varchar', status: 'varchar', "group": 'varchar', shed_reason: 'varchar',
    updated_ms: 'double', created_ms: 'double', deadline_ms: 'double', lease_until_ms: 'double',
    not_before_ms: 'double', priority: 'int', attempts: 'int', lease: 'varchar', worker: 'varchar'
  }})
)
select *, coalesce(updated_ms, stream_ms) as at_ms,
  lag(status) over task as before, lag(attempts) over task as before_attempts, lag(lease) over task as before_lease,
  lag(lease_until_ms) over task as before_until_ms, lag(coalesce(updated_ms, stream_ms)) over task as since_ms,
  lead(coalesce(updated_ms, stream_ms)) over task as next_ms, lead(change) over task is null as final
from raw window task as (partition by task_id order by sequence)
"""

TASKS: Final = """
create temp table facts as
with ended as (
  select c.task_id, c."group" as task_group, c.deadline_ms, c.at_ms, c.shed_reason as reason,
    case when c.change = 'REMOVE' then c.before else c.status end as status,
    c.change = 'REMOVE' as removed, c.ttl_removal,
    {as_of} as as_of
  from changes c where final
), lived as (
  select task_id, min(created_ms) as created_ms,
    min(at_ms) filter (change <> 'REMOVE' and status = 'TAKEN') as first_taken_ms,
    max(at_ms) filter (change <> 'REMOVE' and status in ('SUCCESS', 'FAILURE', 'CANCELLED', 'SHED')) as settled_ms,
    max(attempts) as attempts,
    sum(round((at_ms - since_ms) * 1000)) filter (before = 'TAKEN') / 1e6 as run_seconds,
    count(*) filter (change <> 'REMOVE' and before = 'TAKEN' and at_ms >= before_until_ms
      and ((status = 'PENDING' and not_before_ms is null) or status = 'FAILURE')) as lease_losses
  from changes group by task_id
), fated as (
  select *, case
    when status = 'PENDING' and removed and not ttl_removal and at_ms + 1000 <= deadline_ms then 'cancelled'
    when status = 'PENDING' and (deadline_ms <= as_of or (removed and ttl_removal)) then 'shed'
    else lower(status) end as outcome
  from ended
)
select task_id, task_group, outcome, created_ms, first_taken_ms,
  case when outcome in ('pending', 'taken') then null
    when status <> 'PENDING' then settled_ms
    when outcome = 'shed' then deadline_ms else at_ms end as finished_ms,
  attempts::int as attempts, round(first_taken_ms * 1000 - created_ms * 1000) / 1e6 as wait_seconds, run_seconds,
  case when outcome = 'shed' then case when status = 'PENDING' then 'expired' else reason end end as shed_reason,
  lease_losses::int as lease_losses
from fated join lived using (task_id)
"""

MINUTES: Final = """
with ends as (
  select m * 60000 as minute_ms, least((m + 1) * 60000, {as_of}) as end_ms,
    -- What changes at the end of the record has changed, at the end of another minute it has not yet.
    least((m + 1) * 60000, {as_of} + 0.0005) as probe_ms
  from range((select min(created_ms)::bigint // 60000 from facts), {as_of}::bigint // 60000 + 1) r(m)
), held as (
  select "group" as task_group, status, created_ms, at_ms,
    coalesce(case when status = 'PENDING' then least(coalesce(next_ms, deadline_ms), deadline_ms) else next_ms end, 1e18)
      as until_ms
  from changes where change <> 'REMOVE' and status in ('PENDING', 'TAKEN')
), standing as (
  select minute_ms, task_group, count(*) filter (status = 'PENDING') as backlog,
    count(*) filter (status = 'TAKEN') as in_flight,
    max(round((end_ms - created_ms) * 1000)) filter (status = 'PENDING') / 1e6 as oldest_pending_seconds,
    min(round((end_ms - created_ms) * 1000)) filter (status = 'PENDING') / 1e6 as newest_pending_seconds
  from ends join held on at_ms < probe_ms and until_ms >= probe_ms
  group by all
), flows as (
  select floor(created_ms / 60000)::bigint * 60000 as minute_ms, task_group, 'offered' as flow from facts
  union all select floor(finished_ms / 60000)::bigint * 60000, task_group, 'shed' from facts where outcome = 'shed'
  union all select floor(at_ms / 60000)::bigint * 60000, "group", 'taken' from changes
    where change <> 'REMOVE' and status = 'TAKEN' and (before is distinct from 'TAKEN' or lease <> before_lease)
  union all select floor(at_ms / 60000)::bigint * 60000, "group", case status
      when 'SUCCESS' then 'succeeded' when 'FAILURE' then 'failed' else 'back' end
    from changes where change <> 'REMOVE' and before = 'TAKEN' and status in ('SUCCESS', 'FAILURE', 'PENDING')
), flowed as (
  select minute_ms, task_group, {flows} from flows group by all
), waits as (
  select floor(first_taken_ms / 60000)::bigint * 60000 as minute_ms, task_group,
    quantile_cont(wait_seconds, 0.5) as wait_p50_seconds, quantile_cont(wait_seconds, 0.99) as wait_p99_seconds
  from facts where first_taken_ms is not null group by all
), keys as (
  select minute_ms, task_group from standing union select minute_ms, task_group from flowed
)
select k.minute_ms, k.task_group, {zeros}, coalesce(backlog, 0) as backlog, coalesce(in_flight, 0) as in_flight,
  wait_p50_seconds, wait_p99_seconds, oldest_pending_seconds, newest_pending_seconds
from keys k
left join flowed f on f.minute_ms = k.minute_ms and f.task_group is not distinct from k.task_group
left join standing s on s.minute_ms = k.minute_ms and s.task_group is not distinct from k.task_group
left join waits w on w.minute_ms = k.minute_ms and w.task_group is not distinct from k.task_group
"""

FLOWS: Final = ("offered", "taken", "succeeded", "failed", "shed", "back")


def tasks_sql(files: str, as_of_ms: float | None = None) -> list[str]:
    """Return the statements that make the table `facts`."""
    as_of = "(select max(at_ms) from changes)" if as_of_ms is None else str(as_of_ms)
    return [CHANGES.format(files=files), TASKS.format(as_of=as_of)]


def minutes_sql(as_of_ms: float) -> str:
    """Return the query of the minutes, once there are `facts`; `back` is retried, released or lost."""
    flows = ", ".join(f"count(*) filter (flow = '{name}') as {name}" for name in FLOWS)
    zeros = ", ".join(f"coalesce({name}, 0) as {name}" for name in FLOWS)
    return MINUTES.format(as_of=float(as_of_ms), flows=flows, zeros=zeros)
