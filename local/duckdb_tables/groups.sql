-- The table `groups`: offers and successes of each group of a queue. Jain's index is 1 if all are equal, 1/n if one has all.
create temp table groups as
with counted as (
  select queue, task_group, count(*) as offered, count(*) filter (outcome = 'success') as succeeded,
    count(*) filter (in_time) as in_time, count(*) filter (outcome = 'shed') as shed, coalesce(sum(run_us), 0) as run_us
  from lives group by queue, task_group
)
select queue, task_group, offered, succeeded, in_time, shed, run_us / 1e6 as run_seconds, offered / sum(offered) over all_of_it as offer_share,
  succeeded / nullif(sum(succeeded) over all_of_it, 0) as service_share,
  run_us / nullif(sum(run_us) over all_of_it, 0) as time_share, shed / nullif(sum(shed) over all_of_it, 0) as shed_share,
  pow(sum(succeeded) over all_of_it, 2) / nullif(count(*) over all_of_it * sum(pow(succeeded, 2)) over all_of_it, 0) as jain_index,
  pow(sum(succeeded / offered) over all_of_it, 2) / nullif(count(*) over all_of_it * sum(pow(succeeded / offered, 2)) over all_of_it, 0)
    as jain_index_of_demand
from counted window all_of_it as (partition by queue)
