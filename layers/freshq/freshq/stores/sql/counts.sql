-- What counts and ages run on every database, in the form that `claim.sql` explains. Each reads a bounded part of
-- an index, in its order; only `exact` and `shed_by_group` read as much as the queue has.

-- name: waiting
-- The claimable tasks of a queue, and those past the queue's max age.
queue = :of_queue AND agenda = 'stale' AND due_us > :now_us

-- name: soonest
-- The :page of them with the nearest deadlines.
SELECT priority, created_us, task_id FROM {tasks} WHERE {waiting} ORDER BY due_us LIMIT :page

-- name: latest
-- The :page of them with the latest deadlines.
SELECT created_us, task_group FROM {tasks} WHERE {waiting} ORDER BY due_us DESC LIMIT :page

-- name: count_line
-- The number of live tasks among the first :looked of a line, counted up to :at_most.
SELECT count(*)
FROM (
    SELECT created_us
    FROM (
        SELECT created_us, deadline_us FROM {tasks}
        WHERE queue = :of_queue AND line = :of_line AND created_us > :created_after_us
        ORDER BY created_us, task_id
        LIMIT :looked
    ) AS seen
    WHERE deadline_us > :deadline_after_us
    LIMIT :at_most
) AS counted

-- name: newest_of_line
-- When the newest live tasks among the last :looked of a line were created.
SELECT created_us
FROM (
    SELECT created_us, deadline_us FROM {tasks}
    WHERE queue = :of_queue AND line = :of_line AND created_us > :created_after_us
    ORDER BY created_us DESC, task_id DESC
    LIMIT :looked
) AS seen
WHERE deadline_us > :deadline_after_us
LIMIT :at_most

-- name: count_groups
-- The number of claimable tasks by group, among those with the latest deadlines.
SELECT task_group, count(*) FROM ({latest}) AS latest WHERE created_us > :created_after_us GROUP BY task_group

-- name: newest_by_group
-- When they were created, and their groups.
SELECT created_us, task_group FROM ({latest}) AS latest WHERE created_us > :created_after_us

-- name: newest_waiting
-- When the newest of them was created.
SELECT max(created_us) FROM ({latest}) AS latest WHERE created_us > :created_after_us

-- name: oldest_waiting
-- The levels, creation times and ids of the claimable tasks among those with the nearest deadlines.
SELECT priority, created_us, task_id FROM ({soonest}) AS soonest WHERE created_us > :created_after_us

-- name: sum_up
-- The number of tasks with the nearest deadlines, how many of them are claimable, and when the oldest and the
-- newest of these were created.
SELECT count(*), count(claimable_us), min(claimable_us), max(claimable_us)
FROM (
    SELECT CASE WHEN created_us > :created_after_us THEN created_us END AS claimable_us
    FROM ({soonest}) AS soonest
) AS summed

-- name: expiring
-- When some claimable tasks whose deadlines are not after :until_us were created.
SELECT created_us
FROM (
    SELECT created_us FROM {tasks} WHERE {waiting} AND due_us <= :until_us ORDER BY due_us LIMIT :page
) AS soonest
WHERE created_us > :created_after_us

-- name: count_stale
-- The number of tasks in the lines that went stale after :since_us, counting at most :page.
SELECT count(*)
FROM (
    SELECT due_us FROM {tasks}
    WHERE queue = :of_queue AND agenda = 'stale' AND due_us > :since_us AND due_us <= :now_us
    LIMIT :page
) AS stale

-- name: statuses
-- The number of tasks by status that need a kind of attention by :until_us, counting at most :page.
SELECT status, count(*)
FROM (
    SELECT status FROM {tasks}
    WHERE queue = :of_queue AND agenda = :agenda AND due_us <= :until_us
    ORDER BY due_us
    LIMIT :page
) AS counted
GROUP BY status

-- name: is_stale
-- The deadline of a waiting task has passed, or the queue's max age.
(deadline_us <= :now_us OR created_us <= :created_until_us)

-- name: is_shed
-- A task that waits in no line was shed.
(status = 'SHED' OR {is_stale})

-- name: reason
-- Why a stale task was shed. Python fills in :in_windows: whether it went stale while the reserve shed tasks.
CASE WHEN :in_windows THEN 'reserve' ELSE 'expired' END

-- name: worth
-- The value of a task in millionths, as a float: sums of values may exceed 64 bits.
{float_1} * coalesce(value_millionths, {default_value})

-- name: delivered
-- What a completed task was worth when it was done, as `value_at` has it; otherwise 0.
CASE
    WHEN status <> 'SUCCESS' OR updated_us > deadline_us THEN 0
    WHEN decay IS NULL OR deadline_us >= {never_us} OR updated_us <= created_us THEN {worth}
    ELSE {worth} * ({float_1} * (deadline_us - updated_us) / (deadline_us - created_us))
END

-- name: valued
-- Set if a task has a value or a decay.
CASE WHEN value_millionths IS NOT NULL OR decay IS NOT NULL THEN 1 END

-- name: aside
-- The tasks that wait in no line, and those that were shed.
queue = :of_queue AND agenda IN ('due', 'over') AND status IN ('PENDING', 'SHED')

-- name: exact
-- The number of tasks by state and shed reason, with the oldest and the newest creation time; and what they were
-- worth, what they delivered, and how many have a value. It is one statement, so that it counts each task once,
-- whatever is committed at the same time. The values of shed tasks come apart from their number, which the index of
-- lines alone has.
SELECT state, reason, count(*), min(created_us), max(created_us), 0, 0, 0
FROM (
    SELECT
        CASE WHEN {is_stale} THEN 'SHED' ELSE 'PENDING' END AS state,
        CASE WHEN {is_stale} THEN {reason} END AS reason,
        created_us
    FROM {tasks}
    WHERE queue = :of_queue AND line IS NOT NULL
    UNION ALL
    SELECT
        CASE WHEN {is_shed} THEN 'SHED' WHEN not_before_us IS NOT NULL THEN 'delayed' ELSE 'PENDING' END,
        CASE WHEN {is_shed} THEN coalesce(shed_reason, {reason}) END,
        created_us
    FROM {tasks}
    WHERE {aside}
) AS unended
GROUP BY state, reason
UNION ALL
SELECT status, NULL, count(*), NULL, NULL, sum({worth}), sum({delivered}), count({valued})
FROM {tasks}
WHERE queue = :of_queue AND agenda IN ('due', 'over') AND status NOT IN ('PENDING', 'SHED')
GROUP BY status
UNION ALL
SELECT 'SHED', NULL, 0, NULL, NULL, sum({worth}), 0, count({valued})
FROM {tasks}
WHERE queue = :of_queue AND line IS NOT NULL AND {is_stale}
UNION ALL
SELECT 'SHED', NULL, 0, NULL, NULL, sum({worth}), 0, count({valued}) FROM {tasks} WHERE {aside} AND {is_shed}

-- name: shed_by_group
-- The number of tasks by group that were shed: early, or because they are stale.
SELECT task_group, count(*) FROM {tasks}
WHERE queue = :of_queue AND (status = 'SHED' OR status = 'PENDING' AND {is_stale})
GROUP BY task_group
