-- The table `workers`, of each queue. A lost lease counts for its holder, and not as a settle.
create temp table workers as
with actions as (
  select queue, worker, 1 as claims, 0 as settles, 0 as lease_losses from changes where claimed
  union all
  select queue, before_worker, 0, 1, 0 from changes where given_up and not (lease_lost or removed or claimed)
  union all
  select queue, before_worker, 0, 0, 1 from changes where lease_lost
)
select queue, worker, sum(claims)::bigint as claims, sum(settles)::bigint as settles,
  sum(lease_losses)::bigint as lease_losses
from actions group by queue, worker
