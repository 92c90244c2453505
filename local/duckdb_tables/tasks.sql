-- The table `tasks`: first `lives` with times in microseconds, then as published.
create temp table lives as
with gathered as (
  select queue, task_id, life, min(created_us) as created_us, min(put_us) as put_us, bool_or(born or change = 'SNAPSHOT') as begun,
    min(min(at_us)) over (partition by queue) as start_us,
    min(at_us) filter (claimed) as first_taken_us,
    max(at_us) filter (not removed and status in ('SUCCESS', 'FAILURE', 'CANCELLED', 'SHED')) as settled_us,
    count(*) filter (claimed) - count(*) filter (released) as claims,
    sum(held_us)::bigint as run_us, (count(*) filter (lease_lost))::int as lease_losses,
    list(if(illegal, before || ' -> ' || status, 'to another value') order by sequence) filter (illegal or revalued)
      as illegal_steps
  from changes group by queue, task_id, life
),
-- The outcome of a removed task depends on its last state.
ended as (
  select task_id, life, queue, task_group, kind, parent_id, root_id, priority, value_millionths, decay, deadline_us, attempts, shed_reason,
    case when removed then coalesce(before, status) else status end as status,
    case when removed then at_us end as removed_us, removed and ttl_removal as by_ttl,
    removed and not ttl_removal as by_client,
    -- The stream's time is a whole second, rounded down.
    coalesce(at_us + 1_000_000 <= deadline_us, deadline_us is null) as surely_timely
  from changes where final
),
fated as (
  select *, case
      when status not in ('PENDING', 'TAKEN') then lower(status)
      when status = 'PENDING' and (by_ttl
        or (deadline_us <= getvariable('as_of_us') and not (by_client and surely_timely))) then 'shed'
      when by_client then 'cancelled'
      else lower(status) end as outcome
  from ended
),
-- A task that still waits is shed at its deadline, whenever TTL removes it.
finished as (
  select *, case
      when outcome in ('pending', 'taken') then null
      when status = 'PENDING' and outcome = 'shed' then coalesce(deadline_us, removed_us)
      when status in ('PENDING', 'TAKEN') then removed_us
      else coalesce(settled_us, created_us) end as finished_us
  from fated join gathered using (queue, task_id, life)
)
select task_id, life, queue, task_group, kind, parent_id, root_id, priority, value_millionths, decay, put_us, created_us, deadline_us, first_taken_us, finished_us, removed_us,
  greatest(claims, attempts)::int as attempts,
  case when first_taken_us >= created_us then first_taken_us - created_us when first_taken_us is not null then 0 end
    as wait_us,
  run_us, outcome,
  case when outcome = 'shed' then if(status = 'PENDING', 'expired', coalesce(shed_reason, 'unknown')) end
    as shed_reason,
  lease_losses,
  -- Only resources and callers have such ids; they are matched oldest first.
  case when not ends_with(task_id, '#' || created_us) then (queue, task_id, life) in (from inversions) end as inverted,
  outcome = 'success' and coalesce(finished_us <= deadline_us, true) as in_time,
  -- Of a value that falls steadily, the part of its life that was left when the task ended.
  case when in_time and decay = 'linear' and deadline_us is not null
      then floor(coalesce(value_millionths, 1_000_000) * least(1, (deadline_us - finished_us) / greatest(1, deadline_us - created_us)) + 0.5)
    when in_time then coalesce(value_millionths, 1_000_000)
    when outcome not in ('pending', 'taken') then 0 end / 1e6 as value_delivered,
  -- Sums are of the published values, in millionths.
  floor(coalesce(value_millionths / 1e6, 1) * 1e6 + 0.5)::bigint as worth_millionths,
  floor(value_delivered * 1e6 + 0.5)::bigint as delivered_millionths,
  list_concat(
    list_filter([
      if(not begun and put_us >= start_us, 'no creation recorded', null),
      if(by_ttl and status = 'TAKEN', 'lost while it was taken', null),
      if(by_ttl and status = 'PENDING' and deadline_us >= removed_us + 1_000_000, 'removed before its deadline', null)
    ], lambda problem: problem is not null),
    list_transform(coalesce(illegal_steps, []), lambda step: 'illegal step ' || step)
  ) as problems
from finished;

create temp table tasks as
select task_id, life, queue, task_group, kind, parent_id, root_id, priority, value_millionths / 1e6 as value, decay, put_us / 1e3 as put_ms, created_us / 1e3 as created_ms, deadline_us / 1e3 as deadline_ms,
  first_taken_us / 1e3 as first_taken_ms, finished_us / 1e3 as finished_ms, removed_us / 1e3 as removed_ms, attempts,
  wait_us / 1e6 as wait_seconds, run_us / 1e6 as run_seconds, outcome, shed_reason, lease_losses, inverted, in_time,
  value_delivered, problems
from lives
