-- The table `workers`. A lost lease is counted against who had it, and so is no settling.
create temp table workers as
with deeds as (
  select worker, 1 as claims, 0 as settles, 0 as lease_losses from changes where claimed
  union all
  select before_worker, 0, 1, 0 from changes where given_up and not (lease_lost or removed or claimed)
  union all
  select before_worker, 0, 0, 1 from changes where lease_lost
)
select worker, sum(claims)::bigint as claims, sum(settles)::bigint as settles,
  sum(lease_losses)::bigint as lease_losses
from deeds group by worker
