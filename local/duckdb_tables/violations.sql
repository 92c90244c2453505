-- The table `violations`: one row per violation of a task.
create temp table violations as
select task_id, life, queue, strftime(make_timestamp(created_us), '%Y-%m-%d') as day, unnest(problems) as problem
from lives
