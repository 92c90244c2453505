-- The table `kinds`: tasks and values of each kind of a queue. A value is lost if it was not delivered, withdrawn or open.
create temp table kinds as
with sums as (
  select queue, kind, count(*) as offered, count(*) filter (in_time) as in_time, count(*) filter (outcome = 'shed') as shed,
    sum(worth_millionths) as worth, coalesce(sum(delivered_millionths), 0) as delivered,
    coalesce(sum(worth_millionths - delivered_millionths) filter (outcome in ('success', 'failure', 'shed')), 0) as lost
  from lives group by queue, kind
)
select queue, kind, offered, in_time, shed, (worth::varchar || 'e-6')::double as value_offered,
  (delivered::varchar || 'e-6')::double as value_delivered, (lost::varchar || 'e-6')::double as value_lost,
  delivered::varchar::double / worth::varchar::double as value_share
from sums
