-- What claims, and parts of other statements, are on PostgreSQL, beside `claim.sql`, which explains the form.
--
-- The plans must hold without statistics too. So a row that was found is changed or read by its place (ctid): a
-- join by keys would depend on statistics.

-- name: taken
-- The columns that a claim changes.
status = 'TAKEN', line = NULL, attempts = attempts + 1, updated_us = :now_us, last_claim_us = :now_us,
first_claim_us = coalesce(first_claim_us, :now_us), lease_token = :token, request_token = :version,
lease_until_us = :lease_until_us, agenda = 'due', due_us = :lease_until_us, expires = :new_expires

-- name: no_better_line
-- No line is in one of the ranges of keys, which are arrays of their first keys and of their ends. It must
-- search the index of lines once for each range: for EXISTS, PostgreSQL may choose the index of the agenda.
(
    SELECT found.line
    FROM unnest(CAST(:unless_first AS text[]), CAST(:unless_until AS text[])) AS gap (first, until)
    CROSS JOIN LATERAL (
        SELECT task.line FROM {tasks} AS task
        WHERE task.queue = :of_queue AND task.line >= gap.first AND task.line < gap.until
        ORDER BY task.line LIMIT 1
    ) AS found
    LIMIT 1
) IS NULL

-- name: take_line
-- Take the live tasks among the best :at_most of a line, unless there is a better line, in one of two ranges of
-- keys. It must read the index of lines in its order. It is `take_lines` without what takes time: arrays, and the
-- join by which that looks past expired tasks.
UPDATE {tasks}
SET {taken}
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {tasks}
    WHERE queue = :of_queue AND line = :of_line AND created_us > :created_after_us
      AND (
        SELECT line FROM {tasks}
        WHERE queue = :of_queue AND line >= :first_1 AND line < :until_1
        ORDER BY line LIMIT 1
      ) IS NULL
      AND (
        SELECT line FROM {tasks}
        WHERE queue = :of_queue AND line >= :first_2 AND line < :until_2
        ORDER BY line LIMIT 1
      ) IS NULL
    ORDER BY created_us {desc}, task_id {desc}
    LIMIT :at_most
    FOR UPDATE SKIP LOCKED
  ))
  AND deadline_us > :deadline_after_us
RETURNING {columns}

-- name: seen
-- The first :looked tasks of a line that were created within a span. It must read the index of lines in its
-- order, within the span only: beside an old snapshot, the rest of the line has entries of ended tasks.
SELECT ctid AS place, created_us, deadline_us FROM {tasks}
WHERE queue = :of_queue AND line = wanted.line
  AND created_us > span.after_us AND created_us < span.before_us
ORDER BY created_us {desc}, task_id {desc}
LIMIT :looked

-- name: wanted
-- The lines, and how many tasks of each.
unnest(CAST(:wanted_line AS text[]), CAST(:wanted_count AS integer[])) AS wanted (line, count)

-- name: span
-- The spans of creation times in which to search the lines, in the order of the search.
unnest(
    CAST(:span_line AS text[]), CAST(:span_after_us AS bigint[]), CAST(:span_before_us AS bigint[])
) AS span (line, after_us, before_us)

-- name: take_lines
-- Take the best live tasks of lines, in their order, unless there is a better line. It must read the index of
-- lines in its order, and no more than it takes: nested loops keep the order, so nothing is sorted.
UPDATE {tasks}
SET {taken}
WHERE ctid = ANY (ARRAY(
    SELECT best.place
    FROM {wanted}
    CROSS JOIN LATERAL (
        SELECT held.ctid AS place
        FROM {span}
        CROSS JOIN LATERAL ({seen}) AS seen
        JOIN {tasks} AS held ON held.ctid = seen.place
        WHERE span.line = wanted.line AND seen.deadline_us > :deadline_after_us
          AND coalesce(held.line, '') = wanted.line
        LIMIT wanted.count
        FOR UPDATE OF held SKIP LOCKED
    ) AS best
    WHERE {no_better_line}
    LIMIT :at_most
  ))
RETURNING {columns}

-- name: best
-- When the best live task of each line was created, as `take_lines` would find it, without a lock.
SELECT wanted.line, best.created_us
FROM {wanted}
CROSS JOIN LATERAL (
    SELECT seen.created_us
    FROM {span}
    CROSS JOIN LATERAL ({seen}) AS seen
    JOIN {tasks} AS held ON held.ctid = seen.place
    WHERE span.line = wanted.line AND seen.deadline_us > :deadline_after_us
      AND coalesce(held.line, '') = wanted.line
    LIMIT wanted.count
) AS best

-- name: shown
-- The best :at_most of the first :looked tasks of a line that were created within a span, without
-- those of full kinds. It must read the index of lines in its order, and then each task by its place.
SELECT {columns}
FROM (
    SELECT ctid AS place, created_us AS seen_us, task_id AS seen_id, deadline_us AS seen_deadline_us
    FROM {tasks}
    WHERE queue = :of_queue AND line = :of_line
      AND created_us > :created_after_us AND created_us < :created_before_us
    ORDER BY created_us {desc}, task_id {desc}
    LIMIT :looked
) AS seen
JOIN {tasks} AS task ON task.ctid = seen.place
WHERE seen_deadline_us > :deadline_after_us AND coalesce(line, '') = :of_line
  AND (kind IS NULL OR kind <> ALL (CAST(:of_full_kinds AS text[])))
ORDER BY seen_us {desc}, seen_id {desc}
LIMIT :at_most

-- name: page
-- As `shown`, locked until the transaction ends; without the tasks that others have locked.
{shown}
FOR UPDATE OF task SKIP LOCKED

-- name: found
-- Those of the tasks :of_ids that are in their lines. It must search by id, as `take`.
SELECT {columns} FROM {tasks}
WHERE queue || '' = :of_queue AND task_id = ANY (:of_ids) AND line IS NOT NULL

-- name: found_locked
-- As `found`, locked until the transaction ends; without the tasks that others have locked.
{found}
FOR UPDATE SKIP LOCKED

-- name: take
-- Take tasks of `page`. It must search by id: without statistics it would search by queue, and read all of its
-- rows, but for this form of the condition it has no index.
UPDATE {tasks}
SET {taken}
WHERE queue || '' = :of_queue AND task_id = ANY (:of_ids) AND line IS NOT NULL

-- name: keep_others_out
-- Let no other claim within the limits of groups count or take until the transaction ends.
SELECT pg_advisory_xact_lock(:lock_id)

-- name: leave_lines
-- Remove the first :page stale tasks from their lines, without those that others have locked. It must read the
-- index of the agenda in its order, and then each task by its place.
UPDATE {tasks}
SET {out_of_line}
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {tasks} WHERE {past} ORDER BY due_us LIMIT :page FOR UPDATE SKIP LOCKED
  ))
RETURNING deadline_us

-- name: running
-- The running tasks of a queue that are in a group, as the index of running tasks has them.
queue = :of_queue AND status = 'TAKEN' AND task_group IS NOT NULL

-- name: running_of_groups
-- As `running_by_group`, of the groups :of_names. It must search for each group: a list is looked up among the
-- running tasks of all groups.
SELECT wanted.name, (SELECT count(*) FROM {tasks} WHERE {running} AND task_group = wanted.name)
FROM unnest(CAST(:of_names AS text[])) AS wanted (name)

-- name: locked
-- Lock what a transaction reads.
FOR UPDATE

-- name: skip_locked
-- Lock it, except what is locked already.
FOR UPDATE SKIP LOCKED

-- name: by_key
-- See `tasks.sql`.

-- name: queue_by_id
-- See `tasks.sql`.
queue || ''

-- name: float_1
-- One as a float.
CAST(1 AS double precision)
