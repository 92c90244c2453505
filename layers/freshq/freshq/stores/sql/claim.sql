-- What claims run on every database; `claim.sqlite.sql` and its neighbours have what differs.
--
-- `-- name:` begins a statement, or a part of statements; its comment says what the planner must do, and
-- tests/sql/test_claim_plans.py checks that. A word in braces stands for another part, for a table (tasks,
-- records), for the columns of a task (columns), or for the direction of an order (desc): DESC if the newest task
-- of a line is first. A word after a colon is a parameter; of_... is compared with a key.

-- name: lines
-- The first :count lines between :of_after and :of_until. It must search the index of lines once for each:
-- without statistics, PostgreSQL would read all lines for min().
WITH RECURSIVE next_lines (line, place) AS (
    SELECT
        (
            SELECT line FROM {tasks}
            WHERE queue = :of_queue AND line > :of_after AND line < :of_until
            ORDER BY line LIMIT 1
        ),
        1
    UNION ALL
    SELECT
        (
            SELECT task.line FROM {tasks} AS task
            WHERE task.queue = :of_queue AND task.line > next_lines.line AND task.line < :of_until
            ORDER BY task.line LIMIT 1
        ),
        place + 1
    FROM next_lines
    WHERE line IS NOT NULL AND place < :count
)
SELECT line FROM next_lines WHERE line IS NOT NULL

-- name: last_line
-- The last line before :of_until. It must read one entry of the index of lines.
SELECT line FROM {tasks} WHERE queue = :of_queue AND line < :of_until ORDER BY line DESC LIMIT 1

-- name: oldest_of_line
-- When the oldest live tasks among the first :looked of a line were created, and their ids. It must read the
-- index of lines in its order, and on SQLite and MariaDB nothing else.
SELECT created_us, task_id
FROM (
    SELECT created_us, task_id, deadline_us FROM {tasks}
    WHERE queue = :of_queue AND line = :of_line AND created_us > :created_after_us
    ORDER BY created_us, task_id
    LIMIT :looked
) AS seen
WHERE deadline_us > :deadline_after_us
LIMIT :at_most

-- name: heads
-- The live tasks among the first :looked of a line, without a lock. It must read the index of lines in its
-- order, and on SQLite and MariaDB nothing else.
SELECT task_id, created_us, deadline_us
FROM (
    SELECT task_id, created_us, deadline_us FROM {tasks}
    WHERE queue = :of_queue AND line = :of_line AND created_us > :created_after_us
    ORDER BY created_us {desc}, task_id {desc}
    LIMIT :looked
) AS seen
WHERE deadline_us > :deadline_after_us

-- name: first_to_expire
-- When the tasks of a line among the :page that expire first were created, and their deadlines; if :of_line is
-- empty, of all lines. It must read the index of the agenda in its order.
SELECT created_us, deadline_us
FROM (
    SELECT created_us, deadline_us, line FROM {tasks}
    WHERE queue = :of_queue AND agenda = 'stale' AND due_us > :now_us
    ORDER BY due_us
    LIMIT :page
) AS first_tasks
WHERE created_us > :created_after_us AND :of_line IN ('', line)

-- name: taken_earlier
-- The tasks that are held under a token, with a lease that ends in a range. It must search the index of the
-- agenda for the range.
SELECT {columns} FROM {tasks}
WHERE queue = :of_queue AND agenda = 'due' AND due_us BETWEEN :lease_from_us AND :lease_until_us
  AND lease_token = :token

-- name: out_of_line
-- The columns of a stale task that leaves its line, and stays in the table until its retention ends.
line = NULL, agenda = 'over', due_us = expires * 1000000

-- name: running_by_group
-- The number of running tasks of each group. It must read the index of running tasks.
SELECT task_group, count(*) FROM {tasks} WHERE {running} GROUP BY task_group

-- name: running_between
-- The number of running tasks of all groups from :of_first to :of_last. It must search for the range.
SELECT count(*) FROM {tasks} WHERE {running} AND task_group >= :of_first AND task_group <= :of_last
