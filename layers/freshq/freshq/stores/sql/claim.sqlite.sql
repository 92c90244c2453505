-- What claims, and parts of other statements, are on SQLite, beside `claim.sql`, which explains the form.

-- name: taken
-- The columns that a claim changes.
status = 'TAKEN', line = NULL, attempts = attempts + 1, updated_us = :now_us, last_claim_us = :now_us,
first_claim_us = coalesce(first_claim_us, :now_us), lease_token = :token, request_token = :version,
lease_until_us = :lease_until_us, agenda = 'due', due_us = :lease_until_us, expires = :new_expires

-- name: no_better_line
-- No line is in one of the ranges of keys :unless, JSON like [["1", ":"]]. It must search the index of lines
-- once for each range.
(
    SELECT 1
    FROM json_each(:unless) AS gap
    WHERE (
        SELECT line FROM {tasks}
        WHERE queue = :of_queue
          AND line >= json_extract(gap.value, '$[0]') AND line < json_extract(gap.value, '$[1]')
        ORDER BY line LIMIT 1
    ) IS NOT NULL
    LIMIT 1
) IS NULL

-- name: take_line
-- Take the best :at_most of the first :looked tasks of a line, unless there is a better line. It must read the
-- index of lines in its order, and then each task by its key. `take_lines` costs 6 microseconds more.
UPDATE {tasks}
SET {taken}
WHERE queue = :of_queue
  AND task_id IN (
    SELECT task_id
    FROM (
        SELECT task_id, deadline_us FROM {tasks}
        WHERE queue = :of_queue AND line = :of_line AND created_us > :created_after_us
        ORDER BY created_us {desc}, task_id {desc}
        LIMIT :looked
    )
    WHERE deadline_us > :deadline_after_us
    LIMIT :at_most
  )
  AND {no_better_line}
RETURNING {columns}

-- name: take_lines
-- As `take_line`, of each line as many tasks as :wanted says, in its order: JSON like [["0a", 2], ["0b", 1]].
-- SQLite has no lateral joins, but a function in FROM may depend on the row before it: the second json_each
-- returns the best tasks of each line, up to :most, the highest number wanted.
UPDATE {tasks}
SET {taken}
WHERE queue = :of_queue
  AND task_id IN (
    SELECT best.value
    FROM json_each(:wanted) AS wanted, json_each((
        SELECT json_group_array(task_id)
        FROM (
            SELECT task_id
            FROM (
                SELECT task_id, deadline_us FROM {tasks}
                WHERE queue = :of_queue AND line = json_extract(wanted.value, '$[0]')
                  AND created_us > :created_after_us
                ORDER BY created_us {desc}, task_id {desc}
                LIMIT :looked
            )
            WHERE deadline_us > :deadline_after_us
            LIMIT :most
        )
    )) AS best
    WHERE best.key < json_extract(wanted.value, '$[1]')
    LIMIT :at_most
  )
  AND {no_better_line}
RETURNING {columns}

-- name: shown
-- The best :at_most of the first :looked tasks of a line, without those of full kinds. It must read the index of
-- lines in its order, and then each task by its key: coalesce keeps it off the index of lines, which it has read
-- already.
SELECT {columns}
FROM (
    SELECT task_id AS seen_id, deadline_us AS seen_deadline_us FROM {tasks}
    WHERE queue = :of_queue AND line = :of_line AND created_us > :created_after_us
    ORDER BY created_us {desc}, task_id {desc}
    LIMIT :looked
) AS seen
JOIN {tasks} ON task_id = seen_id AND queue = :of_queue
WHERE seen_deadline_us > :deadline_after_us AND coalesce(line, '') = :of_line
  AND (kind IS NULL OR kind NOT IN :of_full_kinds)
LIMIT :at_most

-- name: page
-- As `shown`, in a transaction that takes tasks: on SQLite nobody else writes until it ends.
{shown}

-- name: found
-- Those of the tasks :of_ids that are in their lines. It must search by key.
SELECT {columns} FROM {tasks} WHERE queue = :of_queue AND task_id IN :of_ids AND line IS NOT NULL

-- name: found_locked
-- As `found`, in a transaction that takes tasks: on SQLite nobody else writes until it ends.
{found}

-- name: take
-- Take tasks of `page`. It must search by key.
UPDATE {tasks}
SET {taken}
WHERE queue = :of_queue AND task_id IN :of_ids AND line IS NOT NULL

-- name: leave_lines
-- Remove the first :page stale tasks from their lines. It must read the index of the agenda in its order, and then
-- each task by its key.
UPDATE {tasks}
SET {out_of_line}
WHERE queue = :of_queue
  AND task_id IN (SELECT task_id FROM {tasks} WHERE {past} ORDER BY due_us LIMIT :page)
RETURNING deadline_us

-- name: running
-- The running tasks of a queue that are in a group, as the index of running tasks has them.
queue = :of_queue AND status = 'TAKEN' AND task_group IS NOT NULL

-- name: running_of_groups
-- As `running_by_group`, of the groups :of_names. It must search for each group: to group by the column itself,
-- SQLite would read all of them.
SELECT task_group, count(*) FROM {tasks}
WHERE {running} AND task_group IN :of_names
GROUP BY coalesce(task_group, '')

-- name: locked
-- Lock what a transaction reads. On SQLite nobody else writes until a transaction ends.

-- name: skip_locked
-- Lock it, except what is locked already.

-- name: by_key
-- See `tasks.sql`.

-- name: queue_by_id
-- See `tasks.sql`.
queue

-- name: float_1
-- One as a float.
1e0
