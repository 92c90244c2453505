-- What shared records, counts and histories run on every database, in the form that `claim.sql` explains;
-- `tasks.mariadb.sql` has what MariaDB and MySQL need instead. Events are found without locks: there, a search that
-- locks also locks the first event after the page, which may be of another queue.

-- name: read_record
-- One record.
SELECT record, version FROM {records} WHERE queue = :of_queue AND name = :of_name

-- name: lock_record
-- It, locked until the transaction ends.
{read_record} {locked}

-- name: read_records
-- The records whose names begin with a prefix.
SELECT record, version FROM {records}
WHERE queue = :of_queue AND name >= :of_prefix AND name < :of_after_prefix

-- name: add_record
-- Add a record, unless its name is taken.
INSERT INTO {records} (queue, name, version, record) VALUES (:of_queue, :of_name, :version, :record)
ON CONFLICT DO NOTHING

-- name: change_record
-- Change a record if its version is the one that was read.
UPDATE {records} SET version = :version, record = :record
WHERE queue = :of_queue AND name = :of_name AND version = :earlier_version

-- name: change_locked_record
-- Change a record that the transaction has locked.
UPDATE {records} SET version = :version, record = :record WHERE queue = :of_queue AND name = :of_name

-- name: drop_record
-- Delete a record.
DELETE FROM {records} WHERE queue = :of_queue AND name = :of_name

-- name: next_queues
-- The first names after :of_queue, each from the beginning of an index.
SELECT min(queue) AS queue FROM {records} WHERE queue > :of_queue
UNION
SELECT min(queue) FROM {counts} WHERE queue > :of_queue
UNION
SELECT min(queue) FROM {tasks} WHERE queue > :of_queue AND line IS NOT NULL
UNION
SELECT min(queue) FROM {tasks} WHERE queue > :of_queue AND status = 'FAILURE'

-- name: read_counts
-- The numbers of a record of counts.
SELECT field, number FROM {counts} WHERE queue = :of_queue AND name = :of_name

-- name: drop_counts
-- Delete the expired counts of a queue.
DELETE FROM {counts} WHERE queue = :of_queue AND expires < :before

-- name: switch
-- The id and the retention of a queue's history.
SELECT history_id, keep_seconds FROM {histories} WHERE queue = :of_queue

-- name: any_switch
-- Whether any queue of the table keeps a history.
SELECT EXISTS (SELECT 1 FROM {histories})

-- name: keep
-- Change the retention of a history.
UPDATE {histories} SET keep_seconds = :seconds WHERE queue = :of_queue

-- name: switch_off
-- Stop keeping the history of a queue.
DELETE FROM {histories} WHERE queue = :of_queue

-- name: first_of_batch
-- The numbers of the first events of a batch.
SELECT event_id FROM {history} WHERE queue = :of_queue AND batch = :batch ORDER BY event_id LIMIT :page

-- name: put_into_batch
-- Put events into a batch.
UPDATE {history} {by_key} SET batch = :new_batch WHERE event_id IN :event_ids

-- name: events
-- The events of a batch.
SELECT * FROM {history} WHERE queue = :of_queue AND batch = :batch ORDER BY event_id

-- name: oldest_events
-- The oldest events of a queue; unbatched events come last.
SELECT event_id, batch, at_us FROM {history}
WHERE queue = :of_queue AND batch <= {no_batch}
ORDER BY batch, event_id
LIMIT :page

-- name: lock_events
-- Lock events, except those that are locked already.
SELECT event_id FROM {history} {by_key} WHERE event_id IN :event_ids {skip_locked}

-- name: delete_events
-- Delete events.
DELETE FROM {history} WHERE event_id IN :event_ids
