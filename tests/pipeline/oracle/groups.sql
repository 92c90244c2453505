-- The table `groups`: offers and successes of each group. Jain's index is 1 if all are equal, 1/n if one has all.
create temp table groups as
with counted as (
  select task_group, count(*) as offered, count(*) filter (outcome = 'success') as succeeded,
    count(*) filter (outcome = 'shed') as shed
  from lives group by task_group
)
select task_group, offered, succeeded, shed, offered / sum(offered) over () as offer_share,
  succeeded / nullif(sum(succeeded) over (), 0) as service_share, shed / nullif(sum(shed) over (), 0) as shed_share,
  pow(sum(succeeded) over (), 2) / nullif(count(*) over () * sum(pow(succeeded, 2)) over (), 0) as jain_index,
  pow(sum(succeeded / offered) over (), 2) / nullif(count(*) over () * sum(pow(succeeded / offered, 2)) over (), 0)
    as jain_index_of_demand
from counted
