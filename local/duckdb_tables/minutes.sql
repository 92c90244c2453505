-- The table `minutes`: events per minute, queue and group, and backlog and taken tasks at the end of the minute.
create temp table minutes as
with flows as (
  select at_us // 60_000_000 as minute, queue, task_group, count(*) filter (claimed) as taken,
    count(*) filter (given_up and not removed and status = 'SUCCESS') as succeeded,
    count(*) filter (given_up and not removed and status = 'FAILURE' or buried) as failed,
    count(*) filter (retried) as retried, count(*) filter (released) as released,
    count(*) filter (lease_lost) as lease_losses, count(*) filter (timely) as goodput,
    sum(held_us) filter (not timely) / 1e6 as wasted_seconds,
    max(at_us - created_us) filter (claimed) / 1e6 as service_horizon_seconds
  from (
    select *, given_up and not removed and status = 'SUCCESS' and coalesce(at_us <= deadline_us, true) as timely,
      not removed and status = 'FAILURE' and before is not distinct from 'PENDING' as buried
    from changes where claimed or given_up or buried
  ) group by all
),
offers as (
  select created_us // 60_000_000 as minute, queue, task_group, count(*) as offered from lives
  where created_us <= getvariable('as_of_us') or created_us = put_us group by all
),
ends as (
  select finished_us // 60_000_000 as minute, queue, task_group, count(*) filter (outcome = 'shed') as shed,
    count(*) filter (outcome = 'cancelled') as cancelled
  from lives where outcome in ('cancelled', 'shed') group by all
),
waits as (
  select first_taken_us // 60_000_000 as minute, queue, task_group, wait_us,
    -- Each class is 2 % wider than the previous one. Rounding could only matter at the bound 1, where the
    -- logarithm is exact.
    ceil(ln(greatest(wait_us, 1)) / ln(1.02))::int as bucket
  from lives where first_taken_us is not null
),
percentiles as (
  select minute, queue, task_group, quantile_cont(wait_us, [0.5, 0.9, 0.99]) as wait_us from waits group by all
),
histograms as (
  select minute, queue, task_group, list({bucket: bucket, count: count} order by bucket) as wait_histogram
  from (select minute, queue, task_group, bucket, count(*) as count from waits group by all) group by all
),
places as (
  from (select minute, queue, task_group from flows) union (select minute, queue, task_group from offers)
  union (select minute, queue, task_group from ends) union (select minute, queue, task_group from waits)
  union (select minute, queue, task_group from standing)
)
select p.minute * 60_000 as minute_ms, p.queue, p.task_group, coalesce(offered, 0) as offered, coalesce(taken, 0) as taken,
  coalesce(succeeded, 0) as succeeded, coalesce(failed, 0) as failed, coalesce(cancelled, 0) as cancelled,
  coalesce(shed, 0) as shed, coalesce(retried, 0) as retried, coalesce(released, 0) as released,
  coalesce(lease_losses, 0) as lease_losses, coalesce(backlog, 0) as backlog, coalesce(in_flight, 0) as in_flight,
  percentiles.wait_us[1] / 1e6 as wait_p50_seconds, percentiles.wait_us[2] / 1e6 as wait_p90_seconds,
  percentiles.wait_us[3] / 1e6 as wait_p99_seconds, wait_histogram,
  (end_us - oldest_us) / 1e6 as oldest_pending_seconds, (end_us - newest_us) / 1e6 as newest_pending_seconds,
  service_horizon_seconds, coalesce(goodput, 0) as goodput, coalesce(wasted_seconds, 0) as wasted_seconds,
  backlog_by_age
from (select *, least((minute + 1) * 60_000_000, getvariable('as_of_us')) as end_us from places) p
left join flows on flows.minute = p.minute and flows.queue is not distinct from p.queue
  and flows.task_group is not distinct from p.task_group
left join offers on offers.minute = p.minute and offers.queue is not distinct from p.queue
  and offers.task_group is not distinct from p.task_group
left join ends on ends.minute = p.minute and ends.queue is not distinct from p.queue
  and ends.task_group is not distinct from p.task_group
left join percentiles on percentiles.minute = p.minute and percentiles.queue is not distinct from p.queue
  and percentiles.task_group is not distinct from p.task_group
left join histograms on histograms.minute = p.minute and histograms.queue is not distinct from p.queue
  and histograms.task_group is not distinct from p.task_group
left join standing on standing.minute = p.minute and standing.queue is not distinct from p.queue
  and standing.task_group is not distinct from p.task_group
