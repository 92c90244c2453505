-- Tasks that were claimed while a newer claimable one of their queue and level waited.
create temp table inversions as
with claims as (
  select task_id, life, queue, priority, at_us, created_us from changes where claimed
),
waits as (
  select queue, priority, created_us, at_us as since_us,
    coalesce(least(next_us, deadline_us), getvariable('as_of_us') + 1) as until_us
  from changes where status = 'PENDING' and not removed and not_before_us is null
),
-- A task that waits from its put is newer than the claimed one and waits already, if it was put between that one's
-- put and its claim. One of these still waits if the wait that ends last has not ended. (Ending the frame at
-- `1 preceding` is equivalent, and takes DuckDB four times as long.)
moments as (
  select queue, priority, at_us as moment_us, created_us, null as until_us, task_id, life from claims
  union all
  select queue, priority, since_us, since_us, until_us, null, null from waits where since_us = created_us
),
after_puts as (
  select queue, task_id, life, moment_us, max(until_us) over (
      partition by queue, priority order by moment_us
      range between greatest(moment_us - created_us - 1, 0) preceding and current row exclude group
    ) as last_us
  from moments
),
-- Other waits begin when a task returns or becomes due. They are few, and are joined with the claims of the same
-- ten seconds.
returns as (
  select queue, priority, created_us, since_us, until_us,
    unnest(range(since_us // 10_000_000, least(until_us, getvariable('as_of_us')) // 10_000_000 + 1)) as place
  from waits where since_us <> created_us
),
after_returns as (
  select c.queue, c.task_id, c.life
  from (select *, at_us // 10_000_000 as place from claims) c join returns r using (queue, priority, place)
  where r.since_us < c.at_us and c.at_us < r.until_us and r.created_us > c.created_us
)
select queue, task_id, life from after_puts where task_id is not null and last_us > moment_us
union
select queue, task_id, life from after_returns
