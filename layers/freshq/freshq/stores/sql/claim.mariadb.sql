-- What claims run on MariaDB and MySQL.
--
-- `-- name:` begins a statement, or a part of statements; its comment says what the planner must do, and
-- tests/sql/test_claim_plans.py checks that. A word in braces stands for another part, for a table (tasks,
-- records), for the columns of a task (columns), or for the direction of an order (desc): DESC if the newest task
-- of a line is first. A word after a colon is a parameter; of_... is compared with a key.
--
-- UPDATE returns no rows here, so a claim is a transaction: `page` locks tasks, and `take` takes them. Both name
-- the index, because the databases lock every row that they read.

-- name: lines
-- The first :count lines between :of_after and :of_until. It must search the index of lines once for each.
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
-- index of lines only, in its order.
SELECT created_us, task_id
FROM (
    SELECT created_us, task_id, deadline_us FROM {tasks}
    WHERE queue = :of_queue AND line = :of_line AND created_us > :created_after_us
    ORDER BY created_us, task_id
    LIMIT :looked
) AS seen
WHERE deadline_us > :deadline_after_us
LIMIT :at_most

-- name: first_to_expire
-- When the tasks of a line among the :page that expire first were created, and their deadlines. It must read
-- the index of the agenda in its order.
SELECT created_us, deadline_us
FROM (
    SELECT created_us, deadline_us, line FROM {tasks}
    WHERE queue = :of_queue AND agenda = 'stale' AND due_us > :now_us
    ORDER BY due_us
    LIMIT :page
) AS first_tasks
WHERE created_us > :created_after_us AND line = :of_line

-- name: shown
-- The best :at_most of the first :looked tasks of a line. It must read the index of lines in its order, and then
-- each task by its key: coalesce keeps it off the index of lines, which it has read already.
SELECT STRAIGHT_JOIN {columns}
FROM (
    SELECT task_id AS seen_id, queue AS seen_queue, deadline_us AS seen_deadline_us FROM {tasks}
    WHERE queue = :of_queue AND line = :of_line AND created_us > :created_after_us
    ORDER BY created_us {desc}, task_id {desc}
    LIMIT :looked
) AS seen
JOIN {tasks} FORCE INDEX (PRIMARY) ON task_id = seen_id AND queue = seen_queue
WHERE seen_deadline_us > :deadline_after_us AND coalesce(line, '') = :of_line
LIMIT :at_most

-- name: page
-- As `shown`, locked until the transaction ends; without the tasks that others have locked.
{shown}
FOR UPDATE SKIP LOCKED

-- name: take
-- Take tasks of `page`. It must search by key: for many keys the databases prefer another index or the whole
-- table, and lock every row that they read, most of them only for a moment; other claims would skip the waiting
-- tasks among these rows.
UPDATE {tasks} FORCE INDEX (PRIMARY)
SET
    status = 'TAKEN', line = NULL, attempts = attempts + 1, updated_us = :now_us, last_claim_us = :now_us,
    first_claim_us = coalesce(first_claim_us, :now_us), lease_token = :token, request_token = :version,
    lease_until_us = :lease_until_us, agenda = 'due', due_us = :lease_until_us, expires = :new_expires
WHERE queue = :of_queue AND task_id IN :of_ids AND line IS NOT NULL

-- name: taken_earlier
-- The tasks that are held under a token, with a lease that ends in a range. It must search the index of the
-- agenda for the range.
SELECT {columns} FROM {tasks}
WHERE queue = :of_queue AND agenda = 'due' AND due_us BETWEEN :lease_from_us AND :lease_until_us
  AND lease_token = :token

-- name: past_deadline
-- The tasks in lines whose deadline has passed.
queue = :of_queue AND agenda = 'stale' AND due_us > :from_us AND due_us <= :now_us

-- name: out_of_line
-- The columns of a stale task that leaves its line, and stays in the table until its retention ends.
line = NULL, agenda = 'over', due_us = expires * 1000000

-- name: any_stale
-- A stale task: if there is none, no transaction begins. It must read one entry of the index of the agenda.
SELECT task_id FROM {tasks} WHERE {past_deadline} ORDER BY due_us LIMIT 1

-- name: stale
-- The first :page stale tasks that others have not locked, among the first :looked, locked until the transaction
-- ends. It must find them without locks, and then read each by its key: a search that locks also locks the first
-- entry after the range, a waiting task, which claims would then skip.
SELECT STRAIGHT_JOIN task_id, deadline_us
FROM (
    SELECT task_id AS found_id, queue AS found_queue, due_us AS found_us FROM {tasks}
    WHERE {past_deadline}
    ORDER BY due_us
    LIMIT :looked
) AS found
JOIN {tasks} FORCE INDEX (PRIMARY) ON task_id = found_id AND queue = found_queue
WHERE agenda = 'stale' AND due_us = found_us
LIMIT :page
FOR UPDATE SKIP LOCKED

-- name: leave_lines
-- Remove tasks of `stale` from their lines. It must search by key, as `take`.
UPDATE {tasks} FORCE INDEX (PRIMARY)
SET {out_of_line}
WHERE queue = :of_queue AND task_id IN :of_ids

-- name: running
-- The running tasks of a queue that are in a group. The databases have no index of these, so they count through
-- the index of the agenda.
queue = :of_queue AND agenda = 'due' AND status = 'TAKEN' AND task_group IS NOT NULL

-- name: running_by_group
-- The number of running tasks of each group. It must read the leases in the index of the agenda.
SELECT task_group, count(*) FROM {tasks} WHERE {running} GROUP BY task_group

-- name: running_of_groups
-- As `running_by_group`, of the groups :of_names.
SELECT task_group, count(*) FROM {tasks} WHERE {running} AND task_group IN :of_names GROUP BY task_group

-- name: running_between
-- The number of running tasks of all groups from :of_first to :of_last.
SELECT count(*) FROM {tasks} WHERE {running} AND task_group >= :of_first AND task_group <= :of_last

-- name: starts
-- The record of the recent starts of groups, locked until the transaction ends. The lock also keeps other claims
-- within limits from counting and taking.
SELECT record, version FROM {records} WHERE queue = :of_queue AND name = :of_name
FOR UPDATE

-- name: add_starts
-- Add it, unless it is there.
INSERT INTO {records} (queue, name, version, record) VALUES (:of_queue, :of_name, :version, :record)
ON DUPLICATE KEY UPDATE version = version

-- name: change_starts
-- Replace it, if its version is the one that was read.
UPDATE {records} SET version = :version, record = :record
WHERE queue = :of_queue AND name = :of_name AND version = :earlier_version
