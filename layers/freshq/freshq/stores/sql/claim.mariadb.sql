-- What claims, and parts of other statements, are on MariaDB and MySQL, beside `claim.sql`, which explains the form.
--
-- UPDATE returns no rows here, so a claim is a transaction: `page` locks tasks, and `take` takes them. Both name
-- the index, because the databases lock every row that they read.

-- name: shown
-- The best :at_most of the first :looked tasks of a line, without those of full kinds. It must read the index of
-- lines in its order, and then each task by its key: coalesce keeps it off the index of lines, which it has read
-- already.
SELECT STRAIGHT_JOIN {columns}
FROM (
    SELECT task_id AS seen_id, queue AS seen_queue, deadline_us AS seen_deadline_us FROM {tasks}
    WHERE queue = :of_queue AND line = :of_line AND created_us > :created_after_us
    ORDER BY created_us {desc}, task_id {desc}
    LIMIT :looked
) AS seen
JOIN {tasks} FORCE INDEX (PRIMARY) ON task_id = seen_id AND queue = seen_queue
WHERE seen_deadline_us > :deadline_after_us AND coalesce(line, '') = :of_line
  AND (kind IS NULL OR kind NOT IN :of_full_kinds)
LIMIT :at_most

-- name: page
-- As `shown`, locked until the transaction ends; without the tasks that others have locked.
{shown}
FOR UPDATE SKIP LOCKED

-- name: found
-- Those of the tasks :of_ids that are in their lines. It must search by key, as `take`.
SELECT {columns} FROM {tasks} FORCE INDEX (PRIMARY)
WHERE queue = :of_queue AND task_id IN :of_ids AND line IS NOT NULL

-- name: found_locked
-- As `found`, locked until the transaction ends; without the tasks that others have locked.
{found}
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

-- name: stale
-- The first stale tasks, locked until the transaction ends.
SELECT task_id, deadline_us {first_past}

-- name: leave_lines
-- Remove tasks of `stale` from their lines. It must search by key, as `take`.
UPDATE {tasks} FORCE INDEX (PRIMARY)
SET {out_of_line}
WHERE queue = :of_queue AND task_id IN :of_ids

-- name: running
-- The running tasks of a queue that are in a group. The databases have no index of these, so they count through
-- the index of the agenda.
queue = :of_queue AND agenda = 'due' AND status = 'TAKEN' AND task_group IS NOT NULL

-- name: running_of_groups
-- As `running_by_group`, of the groups :of_names.
SELECT task_group, count(*) FROM {tasks} WHERE {running} AND task_group IN :of_names GROUP BY task_group

-- name: locked
-- Lock what a transaction reads.
FOR UPDATE

-- name: skip_locked
-- Lock it, except what is locked already.
FOR UPDATE SKIP LOCKED

-- name: by_key
-- See `tasks.sql`.
FORCE INDEX (PRIMARY)

-- name: queue_by_id
-- See `tasks.sql`.
queue

-- name: float_1
-- One as a float: the databases know no common cast.
1e0
