-- Tasks that waited, and were claimable, or were taken at the end of a minute, that is at its last microsecond. The last minute ends
-- with the recording.
create temp table standing as
with held as (
  select queue, task_group, status = 'PENDING' as waits, created_us,
    if(status = 'PENDING', greatest(at_us, coalesce(not_before_us, at_us)), at_us) as since_us,
    least(next_us, if(status = 'PENDING', deadline_us, null), getvariable('as_of_us') + 1) as until_us
  from changes where not removed and status in ('PENDING', 'TAKEN')
),
probed as (
  select *, least((minute + 1) * 60_000_000 - 1, getvariable('as_of_us')) as probe_us,
    (probe_us - created_us) // 1_000_000 as age_seconds
  from (select *, unnest(range(since_us // 60_000_000, until_us // 60_000_000 + 1)) as minute from held)
),
by_age as (
  select minute, queue, task_group, waits, case
      when not waits then null
      when age_seconds < 10 then 0 when age_seconds < 60 then 10 when age_seconds < 300 then 60
      when age_seconds < 900 then 300 when age_seconds < 3600 then 900 when age_seconds < 21_600 then 3600
      else 21_600 end as from_seconds,
    count(*) as count, min(created_us) as oldest_us, max(created_us) as newest_us
  from probed where since_us <= probe_us and probe_us < until_us and (created_us <= probe_us or not waits) group by all
)
select minute, queue, task_group, (sum(count) filter (waits))::bigint as backlog,
  (sum(count) filter (not waits))::bigint as in_flight,
  min(oldest_us) filter (waits) as oldest_us, max(newest_us) filter (waits) as newest_us,
  coalesce(list({from_seconds: from_seconds, count: count} order by from_seconds) filter (waits), [])
    as backlog_by_age
from by_age group by all
