-- What reads and upkeep run on every database, in the form that `claim.sql` explains; `tasks.mariadb.sql` has what
-- MariaDB and MySQL need instead. There `by_key` keeps to the primary key: for many keys the databases prefer another
-- index or the whole table, and lock every row that they read, most of them only for a moment; claims would skip the
-- waiting tasks among these rows. `queue_by_id` is the queue in a form for which PostgreSQL has no index: without
-- statistics it would search by queue, and read all of its rows.

-- name: get
-- One task of a queue.
SELECT {columns} FROM {tasks} WHERE task_id = :of_task_id AND queue = :of_queue

-- name: get_anywhere
-- One task by its id, from the first queue that has it.
SELECT {columns} FROM {tasks} WHERE task_id = :of_task_id ORDER BY queue LIMIT 1

-- name: lock
-- One task and its remembered puts, locked until the transaction ends.
SELECT {columns}, put_token FROM {tasks} WHERE task_id = :of_task_id AND queue = :of_queue {locked}

-- name: put_tokens
-- The puts that the given tasks remember, by id.
SELECT task_id, put_token FROM {tasks} WHERE {queue_by_id} = :of_queue AND task_id IN :of_ids

-- name: lock_listed
-- Lock several tasks, except those that are locked already.
SELECT task_id, status, lease_token, request_token FROM {tasks} {by_key}
WHERE queue = :of_queue AND task_id IN :of_ids
{skip_locked}

-- name: scan
-- A page of the tasks of a queue, by id.
SELECT {columns} FROM {tasks} WHERE queue = :of_queue AND task_id > :of_after ORDER BY task_id LIMIT :page

-- name: dead
-- A page of the dead letters of a queue after a position, most recently dead first.
SELECT {columns} FROM {tasks}
WHERE queue = :of_queue AND status = 'FAILURE' AND dead_us <= :until_us
  AND (dead_us < :until_us OR task_id < :of_before_id)
ORDER BY dead_us DESC, task_id DESC
LIMIT :page

-- name: count_dead
-- The number of dead letters, counting at most :page, and when the oldest died. The bound leaves out tasks that never
-- died, which are also in MariaDB's index.
SELECT count(*), min(dead_us)
FROM (
    SELECT dead_us FROM {tasks}
    WHERE queue = :of_queue AND status = 'FAILURE' AND dead_us <= :until_us
    ORDER BY dead_us
    LIMIT :page
) AS dead

-- name: past
-- The tasks that need a kind of attention by now.
queue = :of_queue AND agenda = :agenda AND due_us > :from_us AND due_us <= :now_us

-- name: any_past
-- The id of one of them, without a lock: if there is none, no transaction begins, which keeps others from writing. It
-- must read one entry of the index of the agenda.
SELECT task_id FROM {tasks} WHERE {past} ORDER BY due_us LIMIT 1

-- name: first_past
-- The first :page of them, locked until the transaction ends, except those that are locked already.
FROM {tasks} WHERE {past} ORDER BY due_us LIMIT :page {skip_locked}

-- name: due
-- The first held and delayed tasks that are due.
SELECT {columns} {first_past}

-- name: over_ids
-- The ids of the first tasks past their retention.
SELECT task_id {first_past}

-- name: next_due
-- When the next delay or lease ends.
SELECT due_us FROM {tasks}
WHERE queue = :of_queue AND agenda = 'due' AND due_us > :now_us
ORDER BY due_us
LIMIT 1

-- name: coming
-- The tasks of a status among the first :looked held and delayed tasks, next due first.
SELECT {columns}
FROM (
    SELECT task_id AS coming_id, due_us AS coming_us FROM {tasks}
    WHERE queue = :of_queue AND agenda = 'due'
    ORDER BY due_us
    LIMIT :looked
) AS coming
JOIN {tasks} ON task_id = coming_id
WHERE queue = :of_queue AND agenda = 'due' AND status = :status
ORDER BY coming_us
LIMIT :page

-- name: listed_by_status
-- A page of the tasks of a status that need one kind of attention, next due first.
SELECT {columns}, due_us FROM {tasks}
WHERE queue = :of_queue AND agenda = :agenda AND status = :status AND created_us > :created_after_us
  AND due_us >= :from_us AND (due_us > :from_us OR task_id > :of_after_id)
ORDER BY due_us, task_id
LIMIT :page

-- name: ids_of_queue
-- A page of ids of a queue.
SELECT task_id FROM {tasks} WHERE queue = :of_queue LIMIT :page

-- name: purge
-- Delete tasks, whatever their status. Ids are the only condition, because the transaction has locked the tasks: with
-- the retention as a condition, databases would read the index of all tasks past it.
DELETE FROM {tasks} WHERE {queue_by_id} = :of_queue AND task_id IN :of_ids
