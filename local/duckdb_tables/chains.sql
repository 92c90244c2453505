-- The table `chains`: a row for each life of a root with children in its queue. The root is hop 1; so is an unknown parent.
create temp table chains as
with recursive roots as (
  select *, row_number() over (partition by queue, task_id order by created_us, life) as turn from lives
  where root_id is null and (queue, task_id) in (select (queue, root_id) from lives where root_id is not null)
),
-- A child belongs to the last root of its name that is not younger, or else to the first.
members as (
  select queue, task_id as root_id, turn, 0 as place, * exclude (queue, root_id, turn) from roots
  union all by name
  select *, greatest(1, (select count(*) from roots where roots.queue is not distinct from child.queue
      and roots.task_id = child.root_id and roots.created_us <= child.created_us)) as turn, 1 as place
  from lives as child where root_id is not null
),
placed as (
  select queue, root_id, turn, task_id, life, 1 as hop from members where place = 0
  union all
  select child.queue, child.root_id, child.turn, child.task_id, child.life, 2 from members as child where place = 1
    and not exists (from members as parent where parent.queue is not distinct from child.queue and parent.place = 1
      and parent.root_id = child.root_id and parent.turn = child.turn and parent.task_id = child.parent_id)
  union all
  select child.queue, child.root_id, child.turn, child.task_id, child.life, hop + 1
  from members as child join placed on child.place = 1 and placed.hop > 1 and placed.queue is not distinct from child.queue
    and placed.root_id = child.root_id and placed.turn = child.turn and placed.task_id = child.parent_id
),
timed as (
  select members.*, hop, coalesce(wait_us, greatest(finished_us - members.created_us, 0), 0) as waited_us, coalesce(run_us, 0) as ran_us
  from members join placed on placed.queue is not distinct from members.queue and placed.root_id = members.root_id
    and placed.turn = members.turn and placed.task_id = members.task_id and placed.life = members.life
),
steps as (
  select queue, root_id, turn, hop, count(*) as tasks, sum(waited_us) / 1e6 as wait_seconds, sum(ran_us) / 1e6 as run_seconds,
    count(*) filter (outcome = 'shed') as shed
  from timed group by all
),
listed as (
  select queue, root_id, turn, min(hop) filter (shed > 0) as shed_hop,
    list({'hop': hop::int, 'tasks': tasks, 'wait_seconds': wait_seconds, 'run_seconds': run_seconds, 'shed': shed} order by hop) as by_hop
  from steps group by all
)
select timed.queue, timed.root_id, max(life) filter (place = 0) as life, min(created_us) / 1e3 as created_ms,
  case when count(*) filter (place = 0) = 0 then max(deadline_us) else max(deadline_us) filter (place = 0) end / 1e3 as deadline_ms,
  case when count(*) filter (outcome in ('pending', 'taken')) = 0 then max(finished_us) end / 1e3 as ended_ms,
  max(hop)::int as hops, count(*) as tasks, sum(waited_us) / 1e6 as wait_seconds, sum(ran_us) / 1e6 as run_seconds,
  case when count(*) filter (outcome in ('pending', 'taken')) > 0 then 'pending' when count(*) filter (outcome = 'shed') > 0 then 'shed'
    when count(*) filter (outcome = 'failure') > 0 then 'failure' when count(*) filter (outcome = 'cancelled') > 0 then 'cancelled'
    else 'success' end as outcome,
  any_value(shed_hop)::int as shed_hop, bool_and(in_time) as in_time, any_value(by_hop) as by_hop
from timed join listed on listed.queue is not distinct from timed.queue and listed.root_id = timed.root_id and listed.turn = timed.turn
group by timed.queue, timed.root_id, timed.turn
having count(*) filter (place = 1) > 0
