-- What MariaDB and MySQL run instead of statements of `tasks.sql` and `records.sql`.

-- name: first_past
-- The first :page tasks that need a kind of attention, among the first :looked, locked until the transaction ends,
-- except those that are locked already. It must find them without locks, and then read each by its key: a search that
-- locks also locks the first entry after the range, a waiting task, which claims would then skip.
FROM (
    SELECT task_id AS found_id, queue AS found_queue, due_us AS found_us FROM {tasks}
    WHERE {past}
    ORDER BY due_us
    LIMIT :looked
) AS found
STRAIGHT_JOIN {tasks} FORCE INDEX (PRIMARY) ON task_id = found_id AND queue = found_queue
WHERE agenda = :agenda AND due_us = found_us
LIMIT :page
FOR UPDATE SKIP LOCKED

-- name: purge
-- The usual DELETE takes no hint, and waits for every locked row that it or a subquery reads.
DELETE {tasks}
FROM JSON_TABLE(:of_ids, '$[*]' COLUMNS (listed_id VARCHAR(1024) CHARSET utf8mb4 PATH '$')) AS listed
STRAIGHT_JOIN {tasks} FORCE INDEX (PRIMARY) ON task_id = listed_id AND queue = :of_queue

-- name: delete_events
-- As `purge`.
DELETE {history}
FROM JSON_TABLE(:event_ids, '$[*]' COLUMNS (listed_id BIGINT PATH '$')) AS listed
STRAIGHT_JOIN {history} FORCE INDEX (PRIMARY) ON event_id = listed_id

-- name: add_record
-- INSERT IGNORE would also shorten what is too long.
INSERT INTO {records} (queue, name, version, record) VALUES (:of_queue, :of_name, :version, :record)
ON DUPLICATE KEY UPDATE version = version
