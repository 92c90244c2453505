-- One row per change of a task, without duplicates, with the previous and the next change.
create temp table changes as
with delivered as (
  select distinct on (event_id) task_id, lpad(sequence, 40, '0') as sequence, change, status, queue, "group" as task_group, kind,
    parent as parent_id, root as root_id, floor(value * 1e6 + 0.5)::bigint as value_millionths, decay,
    coalesce(priority, 0) as priority, coalesce(attempts, 0) as attempts, lease, worker, shed_reason,
    change = 'REMOVE' as removed, coalesce(ttl_removal, false) as ttl_removal,
    round(case when change = 'REMOVE' then stream_ms else updated_ms end * 1000)::bigint as at_us,
    round(created_ms * 1000)::bigint as created_us, round(coalesce(put_ms, created_ms) * 1000)::bigint as put_us, round(deadline_ms * 1000)::bigint as deadline_us,
    round(lease_until_ms * 1000)::bigint as lease_until_us, round(not_before_ms * 1000)::bigint as not_before_us
  from read_json(getvariable('files'), format = 'newline_delimited', columns = {
    event_id: 'varchar', sequence: 'varchar', change: 'varchar', stream_ms: 'double', ttl_removal: 'boolean',
    task_id: 'varchar', queue: 'varchar', status: 'varchar', "group": 'varchar', kind: 'varchar', parent: 'varchar', root: 'varchar', value: 'double', decay: 'varchar', shed_reason: 'varchar',
    updated_ms: 'double', created_ms: 'double', deadline_ms: 'double', lease_until_ms: 'double',
    not_before_ms: 'double', put_ms: 'double', priority: 'int', attempts: 'int', lease: 'varchar', worker: 'varchar'
  })
),
-- A life begins with an insert, or when a task that is over is replaced: only then is its put later.
begun as (
  select *, change = 'INSERT' or coalesce(
      change = 'MODIFY' and status = 'PENDING' and put_us > lag(put_us) over task
      and (lag(status) over task in ('SUCCESS', 'FAILURE', 'CANCELLED', 'SHED')
        or (lag(status) over task = 'PENDING' and lag(deadline_us) over task <= at_us)), false) as born,
    not removed and status = 'TAKEN' and (
      born or lag(status) over task is distinct from 'TAKEN' or coalesce(lease <> lag(lease) over task, false)
    ) as claimed
  from delivered window task as (partition by queue, task_id order by sequence)
),
placed as (
  select *, (sum(born::int) over (task rows unbounded preceding)
      + (not first_value(born) over (task rows unbounded preceding))::int)::int as life,
    case when not born then lag(status) over task end as before,
    case when not born then lag(attempts) over task end as before_attempts,
    case when not born then lag(worker) over task end as before_worker,
    not born and change = 'MODIFY' and put_us <= lag(put_us) over task and lag(status) over task is not null
      and (value_millionths is distinct from lag(value_millionths) over task
        or decay is distinct from lag(decay) over task) as revalued,
    case when not born then lag(lease_until_us) over task end as before_until_us,
    case when not lead(born) over task then lead(at_us) over task end as next_us,
    coalesce(lead(born) over task, true) as final,
    last_value(case when claimed then at_us end ignore nulls)
      over (task rows between unbounded preceding and 1 preceding) as claimed_us
  from begun window task as (partition by queue, task_id order by sequence)
),
-- A change from one lease to another ends one claim and begins another.
ended as (
  select *, coalesce(before = 'TAKEN', false) and (claimed or removed or status <> 'TAKEN') as given_up,
    given_up and not removed and status = 'PENDING' as gone_back,
    given_up and not removed and coalesce(at_us >= before_until_us, false)
      and (status = 'FAILURE' or (status = 'PENDING' and not_before_us is null)) as lease_lost
  from placed
)
select *,
  change = 'MODIFY' and before <> status and before || ' ' || status not in (
    'PENDING TAKEN', 'PENDING FAILURE', 'PENDING CANCELLED', 'PENDING SHED', 'TAKEN SUCCESS', 'TAKEN FAILURE',
    'TAKEN PENDING', 'TAKEN CANCELLED', 'TAKEN SHED', 'FAILURE PENDING', 'FAILURE TAKEN') as illegal,
  gone_back and not lease_lost and attempts < before_attempts as released,
  gone_back and not lease_lost and attempts >= before_attempts as retried,
  case when given_up then greatest(at_us - claimed_us, 0) end as held_us
from ended;

-- The end of the recording.
set variable as_of_us = (select max(at_us) from changes)
