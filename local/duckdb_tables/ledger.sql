-- The table `ledger`: created = all fates, of each queue by day of creation and, without a day, in total.
create temp table ledger as
with sums as (
  select queue, strftime(make_timestamp(created_us), '%Y-%m-%d') as day,
    count(*) filter (not list_contains(problems, 'no creation recorded')) as created,
    count(*) filter (outcome = 'success') as success, count(*) filter (outcome = 'failure') as failure,
    count(*) filter (outcome = 'cancelled') as cancelled, count(*) filter (outcome = 'shed') as shed,
    count(*) filter (outcome = 'pending') as pending, count(*) filter (outcome = 'taken') as taken,
    created - success - failure - cancelled - shed - pending - taken as difference,
    count(*) filter (len(problems) > 0) as violations,
    count(*) filter (value_millionths is not null or decay is not null) as valued,
    coalesce(sum(worth_millionths) filter (not list_has_any(problems, ['no creation recorded', 'illegal step to another value'])), 0) as put,
    coalesce(sum(delivered_millionths), 0) as delivered, coalesce(sum(worth_millionths - delivered_millionths) filter (in_time), 0) as decayed,
    coalesce(sum(worth_millionths) filter (outcome = 'success' and not in_time), 0) as late,
    coalesce(sum(worth_millionths) filter (outcome = 'failure'), 0) as lost,
    coalesce(sum(worth_millionths) filter (outcome = 'shed'), 0) as unserved,
    coalesce(sum(worth_millionths) filter (outcome = 'cancelled'), 0) as withdrawn,
    coalesce(sum(worth_millionths) filter (outcome in ('pending', 'taken')), 0) as open
  from lives group by grouping sets ((queue, day), (queue))
)
-- By way of text, which DuckDB rounds to the nearest number, unlike large integers.
select * exclude (put, delivered, decayed, late, lost, unserved, withdrawn, open),
  (put::varchar || 'e-6')::double as value_put,
  (delivered::varchar || 'e-6')::double as value_delivered,
  (decayed::varchar || 'e-6')::double as value_decayed,
  (late::varchar || 'e-6')::double as value_late,
  (lost::varchar || 'e-6')::double as value_failure,
  (unserved::varchar || 'e-6')::double as value_shed,
  (withdrawn::varchar || 'e-6')::double as value_cancelled,
  (open::varchar || 'e-6')::double as value_open,
  ((put - delivered - decayed - late - lost - unserved - withdrawn - open)::varchar || 'e-6')::double as value_difference
from sums
