-- The table `ledger`: created = all fates, of each queue by day of creation and, without a day, in total.
create temp table ledger as
select queue, strftime(make_timestamp(created_us), '%Y-%m-%d') as day,
  count(*) filter (not list_contains(problems, 'no creation recorded')) as created,
  count(*) filter (outcome = 'success') as success, count(*) filter (outcome = 'failure') as failure,
  count(*) filter (outcome = 'cancelled') as cancelled, count(*) filter (outcome = 'shed') as shed,
  count(*) filter (outcome = 'pending') as pending, count(*) filter (outcome = 'taken') as taken,
  created - success - failure - cancelled - shed - pending - taken as difference,
  count(*) filter (len(problems) > 0) as violations
from lives group by grouping sets ((queue, day), (queue))
