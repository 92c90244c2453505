-- `make sql-statements` writes this file: the tables, and the statements that are built in Python. What
-- claims, counts and freshq_put run is text already, in the .sql files of layers/freshq/freshq/stores/sql.

-- table tasks
CREATE TABLE tasks (
  task_id VARBINARY(1024) NOT NULL,
  queue VARBINARY(64) NOT NULL,
  status VARCHAR(16) NOT NULL,
  created_us BIGINT NOT NULL,
  updated_us BIGINT NOT NULL,
  deadline_us BIGINT NOT NULL,
  expires BIGINT NOT NULL,
  request_token VARCHAR(133) NOT NULL,
  put_token VARCHAR(133) NOT NULL,
  priority SMALLINT NOT NULL,
  task_group VARBINARY(256),
  kind VARBINARY(256),
  attempts INTEGER NOT NULL,
  lease_token VARCHAR(133),
  not_before_us BIGINT,
  lease_until_us BIGINT,
  put_us BIGINT,
  first_due_us BIGINT,
  first_claim_us BIGINT,
  last_claim_us BIGINT,
  dead_us BIGINT,
  shed_reason VARCHAR(32),
  trace_context VARCHAR(568),
  parent_id VARBINARY(1024),
  root_id VARBINARY(1024),
  value_millionths BIGINT,
  decay VARCHAR(8),
  cost_millionths BIGINT,
  line_class VARCHAR(4),
  line VARBINARY(262),
  agenda VARCHAR(8) NOT NULL,
  due_us BIGINT NOT NULL,
  progress_ppm INTEGER,
  progress_step VARCHAR(200),
  error MEDIUMTEXT CHARACTER
  SET utf8mb4,
  attempt_record MEDIUMTEXT CHARACTER
  SET utf8mb4,
  result MEDIUMTEXT CHARACTER
  SET utf8mb4,
  successor_record MEDIUMTEXT CHARACTER
  SET utf8mb4,
  payload MEDIUMTEXT CHARACTER
  SET utf8mb4 NOT NULL,
  PRIMARY KEY (task_id, queue)
  );
CREATE INDEX tasks_agenda ON tasks (agenda, queue, due_us, status);
CREATE INDEX tasks_dead ON tasks (queue, dead_us, task_id);
CREATE INDEX tasks_lines ON tasks (queue, line, created_us, task_id, deadline_us);

-- table tasks_counts
CREATE TABLE tasks_counts (
  queue VARBINARY(64) NOT NULL,
  name VARBINARY(200) NOT NULL,
  field VARBINARY(100) NOT NULL,
  number BIGINT NOT NULL,
  expires BIGINT,
  PRIMARY KEY (queue, name, field)
  );

-- table tasks_histories
CREATE TABLE tasks_histories (
  queue VARBINARY(64) NOT NULL,
  history_id VARCHAR(133) NOT NULL,
  keep_seconds DOUBLE NOT NULL,
  PRIMARY KEY (queue)
  );

-- table tasks_history
CREATE TABLE tasks_history (
  event_id BIGINT NOT NULL AUTO_INCREMENT,
  queue VARBINARY(64) NOT NULL,
  batch BIGINT NOT NULL DEFAULT 4611686018427387904,
  at_us BIGINT NOT NULL,
  change_kind VARCHAR(6) NOT NULL,
  ttl_removal SMALLINT NOT NULL,
  claimed_us BIGINT,
  claimed_attempts INTEGER,
  task_id VARBINARY(1024) NOT NULL,
  status VARCHAR(16) NOT NULL,
  task_group VARBINARY(256),
  kind VARBINARY(256),
  parent_id VARBINARY(1024),
  root_id VARBINARY(1024),
  value_millionths BIGINT,
  cost_millionths BIGINT,
  decay VARCHAR(8),
  priority SMALLINT NOT NULL,
  attempts INTEGER NOT NULL,
  created_us BIGINT NOT NULL,
  updated_us BIGINT NOT NULL,
  put_us BIGINT,
  deadline_us BIGINT,
  not_before_us BIGINT,
  lease_until_us BIGINT,
  lease_token VARCHAR(133),
  shed_reason VARCHAR(32),
  expires BIGINT NOT NULL,
  PRIMARY KEY (event_id)
  );
CREATE INDEX tasks_batches ON tasks_history (queue, batch, event_id);

-- table tasks_migrations
CREATE TABLE tasks_migrations (
  version INTEGER NOT NULL,
  name VARCHAR(100) NOT NULL,
  PRIMARY KEY (version)
  );

-- table tasks_records
CREATE TABLE tasks_records (
  queue VARBINARY(64) NOT NULL,
  name VARBINARY(200) NOT NULL,
  version VARCHAR(133) NOT NULL,
  record MEDIUMTEXT CHARACTER
  SET utf8mb4 NOT NULL,
  PRIMARY KEY (queue, name)
  );

-- trigger insert
-- Keep the recorded events, if the queue has a history.
CREATE TRIGGER IF NOT EXISTS tasks_history_insert AFTER INSERT ON tasks FOR EACH ROW INSERT INTO tasks_history (queue,
    at_us, change_kind, ttl_removal, task_id, status, created_us, updated_us, deadline_us, expires, priority,
    task_group, kind, attempts, not_before_us, lease_until_us, shed_reason, put_us, parent_id, root_id,
    value_millionths, decay, cost_millionths, lease_token)
SELECT NEW.queue, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), 'INSERT', 0, NEW.task_id, NEW.status,
    NEW.created_us, NEW.updated_us, NEW.deadline_us, NEW.expires, NEW.priority, NEW.task_group, NEW.kind,
    NEW.attempts, NEW.not_before_us, NEW.lease_until_us, NEW.shed_reason, NEW.put_us, NEW.parent_id, NEW.root_id,
    NEW.value_millionths, NEW.decay, NEW.cost_millionths, NEW.lease_token FROM tasks_histories kept
WHERE kept.queue = NEW.queue;

-- trigger update
-- Keep the recorded events, if the queue has a history.
CREATE TRIGGER IF NOT EXISTS tasks_history_update AFTER UPDATE ON tasks FOR EACH ROW INSERT INTO tasks_history (queue,
    at_us, change_kind, ttl_removal, task_id, status, created_us, updated_us, deadline_us, expires, priority,
    task_group, kind, attempts, not_before_us, lease_until_us, shed_reason, put_us, parent_id, root_id,
    value_millionths, decay, cost_millionths, lease_token, claimed_us, claimed_attempts)
SELECT NEW.queue, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), 'MODIFY', 0, NEW.task_id, NEW.status,
    NEW.created_us, NEW.updated_us, NEW.deadline_us, NEW.expires, NEW.priority, NEW.task_group, NEW.kind,
    NEW.attempts, NEW.not_before_us, NEW.lease_until_us, NEW.shed_reason, NEW.put_us, NEW.parent_id, NEW.root_id,
    NEW.value_millionths, NEW.decay, NEW.cost_millionths, NEW.lease_token, CASE WHEN OLD.status = 'PENDING'
AND NEW.status <> 'TAKEN'
AND NEW.last_claim_us IS NOT NULL
AND (OLD.last_claim_us IS NULL OR NEW.last_claim_us <> OLD.last_claim_us OR NEW.attempts > OLD.attempts) THEN
    NEW.last_claim_us END, CASE WHEN OLD.status = 'PENDING'
AND NEW.status <> 'TAKEN'
AND NEW.last_claim_us IS NOT NULL
AND (OLD.last_claim_us IS NULL OR NEW.last_claim_us <> OLD.last_claim_us OR NEW.attempts > OLD.attempts) THEN
    OLD.attempts + 1 END FROM tasks_histories kept
WHERE kept.queue = NEW.queue
AND NEW.request_token <> OLD.request_token;

-- trigger delete
-- Keep the recorded events, if the queue has a history.
CREATE TRIGGER IF NOT EXISTS tasks_history_delete AFTER DELETE ON tasks FOR EACH ROW INSERT INTO tasks_history (queue,
    at_us, change_kind, ttl_removal, task_id, status, created_us, updated_us, deadline_us, expires, priority,
    task_group, kind, attempts, not_before_us, lease_until_us, shed_reason, put_us, parent_id, root_id,
    value_millionths, decay, cost_millionths, lease_token)
SELECT OLD.queue, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), 'REMOVE', CASE WHEN OLD.agenda = 'over'
AND OLD.due_us <= CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) THEN 1 ELSE 0 END, OLD.task_id, OLD.status,
    OLD.created_us, OLD.updated_us, OLD.deadline_us, OLD.expires, OLD.priority, OLD.task_group, OLD.kind,
    OLD.attempts, OLD.not_before_us, OLD.lease_until_us, OLD.shed_reason, OLD.put_us, OLD.parent_id, OLD.root_id,
    OLD.value_millionths, OLD.decay, OLD.cost_millionths, OLD.lease_token FROM tasks_histories kept
WHERE kept.queue = OLD.queue;

-- put: put
-- Insert tasks whose ids are free.
INSERT INTO tasks (task_id, queue, status, created_us, updated_us, deadline_us, expires, request_token, put_token,
    priority, task_group, kind, attempts, lease_token, not_before_us, lease_until_us, put_us, first_due_us,
    first_claim_us, last_claim_us, dead_us, shed_reason, trace_context, parent_id, root_id, value_millionths, decay,
    cost_millionths, line_class, line, agenda, due_us, progress_ppm, progress_step, error, attempt_record, result,
    successor_record, payload)
VALUES (:task_id, :queue, :status, :created_us, :updated_us, :deadline_us, :expires, :request_token, :put_token,
    :priority, :task_group, :kind, :attempts, :lease_token, :not_before_us, :lease_until_us, :put_us, :first_due_us,
    :first_claim_us, :last_claim_us, :dead_us, :shed_reason, :trace_context, :parent_id, :root_id, :value_millionths,
    :decay, :cost_millionths, :line_class, :line, :agenda, :due_us, :progress_ppm, :progress_step, :error,
    :attempt_record, :result, :successor_record, :payload)
ON DUPLICATE KEY UPDATE task_id = tasks.task_id;

-- put: put_tokens
-- Puts remembered by the given tasks, by id.
SELECT tasks.task_id, tasks.put_token
FROM tasks
WHERE tasks.queue = :of_queue
AND tasks.task_id IN (:ids);

-- put: lock
-- One task and its remembered puts, locked until the transaction ends.
SELECT tasks.task_id, tasks.queue, tasks.status, tasks.created_us, tasks.updated_us, tasks.deadline_us, tasks.expires,
    tasks.request_token, tasks.payload, tasks.priority, tasks.task_group, tasks.attempts, tasks.not_before_us,
    tasks.lease_token, tasks.lease_until_us, tasks.error, tasks.result, tasks.shed_reason, tasks.put_us,
    tasks.first_due_us, tasks.kind, tasks.first_claim_us, tasks.last_claim_us, tasks.dead_us, tasks.progress_ppm,
    tasks.progress_step, tasks.trace_context, tasks.parent_id, tasks.root_id, tasks.value_millionths, tasks.decay,
    tasks.cost_millionths, tasks.line_class, tasks.attempt_record, tasks.successor_record, tasks.put_token
FROM tasks
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue
FOR UPDATE;

-- put: overwrite
-- Overwrite a task of the same id, unless it has changed.
UPDATE tasks
SET status=:status, created_us=:created_us, updated_us=:updated_us, deadline_us=:deadline_us, expires=:expires,
    request_token=:request_token, put_token=:put_token, priority=:priority, task_group=:task_group, kind=:kind,
    attempts=:attempts, lease_token=:lease_token, not_before_us=:not_before_us, lease_until_us=:lease_until_us,
    put_us=:put_us, first_due_us=:first_due_us, first_claim_us=:first_claim_us, last_claim_us=:last_claim_us,
    dead_us=:dead_us, shed_reason=:shed_reason, trace_context=:trace_context, parent_id=:parent_id, root_id=:root_id,
    value_millionths=:value_millionths, decay=:decay, cost_millionths=:cost_millionths, line_class=:line_class,
    line=:line, agenda=:agenda, due_us=:due_us, progress_ppm=:progress_ppm, progress_step=:progress_step,
    error=:error, attempt_record=:attempt_record, result=:result, successor_record=:successor_record, payload=:payload
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue
AND tasks.request_token = :of_request_token;

-- read: get
-- One task of a queue.
SELECT tasks.task_id, tasks.queue, tasks.status, tasks.created_us, tasks.updated_us, tasks.deadline_us, tasks.expires,
    tasks.request_token, tasks.payload, tasks.priority, tasks.task_group, tasks.attempts, tasks.not_before_us,
    tasks.lease_token, tasks.lease_until_us, tasks.error, tasks.result, tasks.shed_reason, tasks.put_us,
    tasks.first_due_us, tasks.kind, tasks.first_claim_us, tasks.last_claim_us, tasks.dead_us, tasks.progress_ppm,
    tasks.progress_step, tasks.trace_context, tasks.parent_id, tasks.root_id, tasks.value_millionths, tasks.decay,
    tasks.cost_millionths, tasks.line_class, tasks.attempt_record, tasks.successor_record
FROM tasks
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue;

-- read: get_anywhere
-- One task by its id, from the first queue that has it.
SELECT tasks.task_id, tasks.queue, tasks.status, tasks.created_us, tasks.updated_us, tasks.deadline_us, tasks.expires,
    tasks.request_token, tasks.payload, tasks.priority, tasks.task_group, tasks.attempts, tasks.not_before_us,
    tasks.lease_token, tasks.lease_until_us, tasks.error, tasks.result, tasks.shed_reason, tasks.put_us,
    tasks.first_due_us, tasks.kind, tasks.first_claim_us, tasks.last_claim_us, tasks.dead_us, tasks.progress_ppm,
    tasks.progress_step, tasks.trace_context, tasks.parent_id, tasks.root_id, tasks.value_millionths, tasks.decay,
    tasks.cost_millionths, tasks.line_class, tasks.attempt_record, tasks.successor_record
FROM tasks
WHERE tasks.task_id = :of_task_id
ORDER BY tasks.queue
LIMIT 1;

-- read: scan
-- A page of the tasks of a queue, by id.
SELECT tasks.task_id, tasks.queue, tasks.status, tasks.created_us, tasks.updated_us, tasks.deadline_us, tasks.expires,
    tasks.request_token, tasks.payload, tasks.priority, tasks.task_group, tasks.attempts, tasks.not_before_us,
    tasks.lease_token, tasks.lease_until_us, tasks.error, tasks.result, tasks.shed_reason, tasks.put_us,
    tasks.first_due_us, tasks.kind, tasks.first_claim_us, tasks.last_claim_us, tasks.dead_us, tasks.progress_ppm,
    tasks.progress_step, tasks.trace_context, tasks.parent_id, tasks.root_id, tasks.value_millionths, tasks.decay,
    tasks.cost_millionths, tasks.line_class, tasks.attempt_record, tasks.successor_record
FROM tasks
WHERE tasks.queue = :of_queue
AND tasks.task_id > :after
ORDER BY tasks.task_id
LIMIT :page;

-- read: dead
-- A page of the dead letters of a queue after a position, most recently dead first.
SELECT tasks.task_id, tasks.queue, tasks.status, tasks.created_us, tasks.updated_us, tasks.deadline_us, tasks.expires,
    tasks.request_token, tasks.payload, tasks.priority, tasks.task_group, tasks.attempts, tasks.not_before_us,
    tasks.lease_token, tasks.lease_until_us, tasks.error, tasks.result, tasks.shed_reason, tasks.put_us,
    tasks.first_due_us, tasks.kind, tasks.first_claim_us, tasks.last_claim_us, tasks.dead_us, tasks.progress_ppm,
    tasks.progress_step, tasks.trace_context, tasks.parent_id, tasks.root_id, tasks.value_millionths, tasks.decay,
    tasks.cost_millionths, tasks.line_class, tasks.attempt_record, tasks.successor_record
FROM tasks
WHERE tasks.queue = :of_queue
AND tasks.status = 'FAILURE'
AND tasks.dead_us <= :until_us
AND (tasks.dead_us < :until_us OR tasks.task_id < :before_id)
ORDER BY tasks.dead_us DESC, tasks.task_id DESC
LIMIT :page;

-- read: count_dead
-- Number of dead letters, counting at most `page`, and when the oldest died.
SELECT count(*) AS count_1, min(dead.dead_us) AS min_1
FROM (
  SELECT tasks.dead_us AS dead_us
  FROM tasks
  WHERE tasks.queue = :of_queue
  AND tasks.status = 'FAILURE'
  AND tasks.dead_us <= :until_us
  ORDER BY tasks.dead_us
  LIMIT :page) AS dead;

-- settle: replacements, guarded by status, lease, version
-- Store the new version of a task, for each form of guard.
UPDATE tasks
SET status=:status, created_us=:created_us, updated_us=:updated_us, deadline_us=:deadline_us, expires=:expires,
    request_token=:request_token, priority=:priority, attempts=:attempts, lease_token=:lease_token,
    not_before_us=:not_before_us, lease_until_us=:lease_until_us, first_claim_us=:first_claim_us,
    last_claim_us=:last_claim_us, dead_us=:dead_us, shed_reason=:shed_reason, cost_millionths=:cost_millionths,
    line=:line, agenda=:agenda, due_us=:due_us, progress_ppm=:progress_ppm, progress_step=:progress_step,
    error=:error, attempt_record=:attempt_record, result=:result
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue
AND tasks.status = :of_status
AND tasks.lease_token = :of_lease_token
AND tasks.request_token = :of_request_token;

-- settle: replacements, guarded by status, lease
-- Store the new version of a task, for each form of guard.
UPDATE tasks
SET status=:status, created_us=:created_us, updated_us=:updated_us, deadline_us=:deadline_us, expires=:expires,
    request_token=:request_token, priority=:priority, attempts=:attempts, lease_token=:lease_token,
    not_before_us=:not_before_us, lease_until_us=:lease_until_us, first_claim_us=:first_claim_us,
    last_claim_us=:last_claim_us, dead_us=:dead_us, shed_reason=:shed_reason, cost_millionths=:cost_millionths,
    line=:line, agenda=:agenda, due_us=:due_us, progress_ppm=:progress_ppm, progress_step=:progress_step,
    error=:error, attempt_record=:attempt_record, result=:result
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue
AND tasks.status = :of_status
AND tasks.lease_token = :of_lease_token;

-- settle: replacements, guarded by status, version
-- Store the new version of a task, for each form of guard.
UPDATE tasks
SET status=:status, created_us=:created_us, updated_us=:updated_us, deadline_us=:deadline_us, expires=:expires,
    request_token=:request_token, priority=:priority, attempts=:attempts, lease_token=:lease_token,
    not_before_us=:not_before_us, lease_until_us=:lease_until_us, first_claim_us=:first_claim_us,
    last_claim_us=:last_claim_us, dead_us=:dead_us, shed_reason=:shed_reason, cost_millionths=:cost_millionths,
    line=:line, agenda=:agenda, due_us=:due_us, progress_ppm=:progress_ppm, progress_step=:progress_step,
    error=:error, attempt_record=:attempt_record, result=:result
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue
AND tasks.status = :of_status
AND tasks.request_token = :of_request_token;

-- settle: replacements, guarded by status
-- Store the new version of a task, for each form of guard.
UPDATE tasks
SET status=:status, created_us=:created_us, updated_us=:updated_us, deadline_us=:deadline_us, expires=:expires,
    request_token=:request_token, priority=:priority, attempts=:attempts, lease_token=:lease_token,
    not_before_us=:not_before_us, lease_until_us=:lease_until_us, first_claim_us=:first_claim_us,
    last_claim_us=:last_claim_us, dead_us=:dead_us, shed_reason=:shed_reason, cost_millionths=:cost_millionths,
    line=:line, agenda=:agenda, due_us=:due_us, progress_ppm=:progress_ppm, progress_step=:progress_step,
    error=:error, attempt_record=:attempt_record, result=:result
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue
AND tasks.status = :of_status;

-- settle: lock_listed
-- Lock several tasks, except tasks whose row is already locked.
SELECT tasks.task_id, tasks.status, tasks.lease_token, tasks.request_token
FROM tasks FORCE INDEX (PRIMARY)
WHERE tasks.queue = :of_queue
AND tasks.task_id IN (:ids)
FOR UPDATE SKIP LOCKED;

-- settle: replace_locked
-- Store the new version of a locked task.
UPDATE tasks
SET status=:status, created_us=:created_us, updated_us=:updated_us, deadline_us=:deadline_us, expires=:expires,
    request_token=:request_token, priority=:priority, attempts=:attempts, lease_token=:lease_token,
    not_before_us=:not_before_us, lease_until_us=:lease_until_us, first_claim_us=:first_claim_us,
    last_claim_us=:last_claim_us, dead_us=:dead_us, shed_reason=:shed_reason, cost_millionths=:cost_millionths,
    line=:line, agenda=:agenda, due_us=:due_us, progress_ppm=:progress_ppm, progress_step=:progress_step,
    error=:error, attempt_record=:attempt_record, result=:result
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue;

-- settle: deletions, guarded by status, lease, version
-- Delete a task, for each form of guard.
DELETE FROM tasks
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue
AND tasks.status = :of_status
AND tasks.lease_token = :of_lease_token
AND tasks.request_token = :of_request_token;

-- settle: deletions, guarded by status, lease
-- Delete a task, for each form of guard.
DELETE FROM tasks
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue
AND tasks.status = :of_status
AND tasks.lease_token = :of_lease_token;

-- settle: deletions, guarded by status, version
-- Delete a task, for each form of guard.
DELETE FROM tasks
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue
AND tasks.status = :of_status
AND tasks.request_token = :of_request_token;

-- settle: deletions, guarded by status
-- Delete a task, for each form of guard.
DELETE FROM tasks
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue
AND tasks.status = :of_status;

-- settle: finish
-- End one held task; takes the values of `HELD_END`.
UPDATE tasks
SET status=:status, updated_us=:updated_us, expires=:expires, request_token=:request_token, lease_token=NULL,
    lease_until_us=NULL, dead_us=:dead_us, cost_millionths=:cost_millionths, line=NULL, agenda=:agenda,
    due_us=:due_us, progress_ppm=:progress_ppm, progress_step=:progress_step, error=:error,
    attempt_record=:attempt_record, result=:result
WHERE tasks.task_id = :of_task_id
AND tasks.queue = :of_queue
AND tasks.status = 'TAKEN'
AND tasks.lease_token = :of_lease_token;

-- upkeep: due
-- Held and delayed tasks that are due, earliest first.
SELECT STRAIGHT_JOIN tasks.task_id, tasks.queue, tasks.status, tasks.created_us, tasks.updated_us, tasks.deadline_us,
    tasks.expires, tasks.request_token, tasks.payload, tasks.priority, tasks.task_group, tasks.attempts,
    tasks.not_before_us, tasks.lease_token, tasks.lease_until_us, tasks.error, tasks.result, tasks.shed_reason,
    tasks.put_us, tasks.first_due_us, tasks.kind, tasks.first_claim_us, tasks.last_claim_us, tasks.dead_us,
    tasks.progress_ppm, tasks.progress_step, tasks.trace_context, tasks.parent_id, tasks.root_id,
    tasks.value_millionths, tasks.decay, tasks.cost_millionths, tasks.line_class, tasks.attempt_record,
    tasks.successor_record
FROM (
  SELECT tasks.task_id AS task_id, tasks.queue AS queue, tasks.due_us AS due_us
  FROM tasks
  WHERE tasks.queue = :of_queue
  AND tasks.agenda = 'due'
  AND tasks.due_us > :from_us
  AND tasks.due_us <= :now_us
  ORDER BY tasks.due_us
  LIMIT :looked) AS found INNER
JOIN tasks FORCE INDEX (PRIMARY) ON tasks.task_id = found.task_id
AND tasks.queue = found.queue
WHERE tasks.agenda = 'due'
AND tasks.due_us = found.due_us
LIMIT :page
FOR UPDATE SKIP LOCKED;

-- upkeep: next_due
-- Time at which the next delay or lease ends.
SELECT tasks.due_us
FROM tasks
WHERE tasks.queue = :of_queue
AND tasks.agenda = 'due'
AND tasks.due_us > :now_us
ORDER BY tasks.due_us
LIMIT 1;

-- upkeep: coming
-- Tasks of a status among the first `looked` held and delayed tasks, next due first.
SELECT tasks.task_id, tasks.queue, tasks.status, tasks.created_us, tasks.updated_us, tasks.deadline_us, tasks.expires,
    tasks.request_token, tasks.payload, tasks.priority, tasks.task_group, tasks.attempts, tasks.not_before_us,
    tasks.lease_token, tasks.lease_until_us, tasks.error, tasks.result, tasks.shed_reason, tasks.put_us,
    tasks.first_due_us, tasks.kind, tasks.first_claim_us, tasks.last_claim_us, tasks.dead_us, tasks.progress_ppm,
    tasks.progress_step, tasks.trace_context, tasks.parent_id, tasks.root_id, tasks.value_millionths, tasks.decay,
    tasks.cost_millionths, tasks.line_class, tasks.attempt_record, tasks.successor_record
FROM (
  SELECT tasks.task_id AS task_id, tasks.due_us AS due_us
  FROM tasks
  WHERE tasks.queue = :of_queue
  AND tasks.agenda = 'due'
  ORDER BY tasks.due_us
  LIMIT :looked) AS coming INNER
JOIN tasks ON tasks.task_id = coming.task_id
WHERE tasks.queue = :of_queue
AND tasks.agenda = 'due'
AND tasks.status = :of_status
ORDER BY coming.due_us
LIMIT :page;

-- upkeep: listed_by_status
-- A page of the tasks of a status that need one kind of attention, next due first.
SELECT tasks.task_id, tasks.queue, tasks.status, tasks.created_us, tasks.updated_us, tasks.deadline_us, tasks.expires,
    tasks.request_token, tasks.payload, tasks.priority, tasks.task_group, tasks.attempts, tasks.not_before_us,
    tasks.lease_token, tasks.lease_until_us, tasks.error, tasks.result, tasks.shed_reason, tasks.put_us,
    tasks.first_due_us, tasks.kind, tasks.first_claim_us, tasks.last_claim_us, tasks.dead_us, tasks.progress_ppm,
    tasks.progress_step, tasks.trace_context, tasks.parent_id, tasks.root_id, tasks.value_millionths, tasks.decay,
    tasks.cost_millionths, tasks.line_class, tasks.attempt_record, tasks.successor_record, tasks.due_us
FROM tasks
WHERE tasks.queue = :of_queue
AND tasks.agenda = :of_agenda
AND tasks.status = :of_status
AND tasks.created_us > :created_after_us
AND tasks.due_us >= :from_us
AND (tasks.due_us > :from_us OR tasks.task_id > :after_id)
ORDER BY tasks.due_us, tasks.task_id
LIMIT :page;

-- upkeep: any_over
-- The id of a task past its retention.
SELECT tasks.task_id
FROM tasks
WHERE tasks.queue = :of_queue
AND tasks.agenda = 'over'
AND tasks.due_us > :from_us
AND tasks.due_us <= :now_us
ORDER BY tasks.due_us
LIMIT 1;

-- upkeep: over_ids
-- Ids of tasks past their retention, earliest first, locked until the transaction ends.
SELECT STRAIGHT_JOIN tasks.task_id
FROM (
  SELECT tasks.task_id AS task_id, tasks.queue AS queue, tasks.due_us AS due_us
  FROM tasks
  WHERE tasks.queue = :of_queue
  AND tasks.agenda = 'over'
  AND tasks.due_us > :from_us
  AND tasks.due_us <= :now_us
  ORDER BY tasks.due_us
  LIMIT :looked) AS found INNER
JOIN tasks FORCE INDEX (PRIMARY) ON tasks.task_id = found.task_id
AND tasks.queue = found.queue
WHERE tasks.agenda = 'over'
AND tasks.due_us = found.due_us
LIMIT :page
FOR UPDATE SKIP LOCKED;

-- upkeep: page_of_ids
-- A page of ids of a queue.
SELECT tasks.task_id
FROM tasks
WHERE tasks.queue = :of_queue
LIMIT :page;

-- upkeep: purge
-- Delete tasks, whatever their status.
--
-- Ids are the only condition, because the transaction has locked the tasks: with the retention as a
-- condition, databases would read the index of all tasks past it.
DELETE tasks FROM JSON_TABLE(:ids, '$[*]' COLUMNS (task_id VARCHAR(1024) CHARSET utf8mb4 PATH '$')) AS listed
    STRAIGHT_JOIN tasks FORCE INDEX (PRIMARY) ON tasks.task_id = listed.task_id
AND tasks.queue = :of_queue;

-- records: read
-- One record.
SELECT tasks_records.record, tasks_records.version
FROM tasks_records
WHERE tasks_records.queue = :of_queue
AND tasks_records.name = :of_name;

-- records: with_prefix
-- The records whose names begin with a prefix.
SELECT tasks_records.record, tasks_records.version
FROM tasks_records
WHERE tasks_records.queue = :of_queue
AND tasks_records.name >= :prefix
AND tasks_records.name < :after_prefix;

-- records: next_queues
-- The first names after `of_queue`, each from the beginning of an index.
SELECT min(tasks_records.queue) AS min_1
FROM tasks_records
WHERE tasks_records.queue > :of_queue UNION
SELECT min(tasks_counts.queue) AS min_2
FROM tasks_counts
WHERE tasks_counts.queue > :of_queue UNION
SELECT min(tasks.queue) AS min_3
FROM tasks
WHERE tasks.queue > :of_queue
AND tasks.line IS NOT NULL UNION
SELECT min(tasks.queue) AS min_4
FROM tasks
WHERE tasks.queue > :of_queue
AND tasks.status = 'FAILURE';

-- records: add
-- Insert a record unless its name is taken.
INSERT INTO tasks_records (queue, name, version, record)
VALUES (:queue, :name, :version, :record)
ON DUPLICATE KEY UPDATE queue = tasks_records.queue;

-- records: change
-- Change a record if its version is `of_version`.
UPDATE tasks_records
SET version=:version, record=:record
WHERE tasks_records.queue = :of_queue
AND tasks_records.name = :of_name
AND tasks_records.version = :of_version;

-- records: read_counts
-- The numbers of a record of counts.
SELECT tasks_counts.field, tasks_counts.number
FROM tasks_counts
WHERE tasks_counts.queue = :of_queue
AND tasks_counts.name = :of_name;

-- records: add_counts
-- Add numbers to the stored ones, or insert them.
INSERT INTO tasks_counts (queue, name, field, number, expires)
VALUES (:queue, :name, :field, :number, :expires)
ON DUPLICATE KEY UPDATE number = (tasks_counts.number +
  VALUES(number)), expires =
VALUES(expires);

-- records: drop_counts
-- Delete the expired counts of a queue.
DELETE FROM tasks_counts
WHERE tasks_counts.queue = :of_queue
AND tasks_counts.expires < :before;

-- history: switch
-- Id and retention of a queue's history.
SELECT tasks_histories.history_id, tasks_histories.keep_seconds
FROM tasks_histories
WHERE tasks_histories.queue = :of_queue;

-- history: any_switch
-- Whether any queue of the table keeps a history.
SELECT EXISTS (
  SELECT *
  FROM tasks_histories) AS anon_1;

-- history: keep
-- Change the retention of a history.
UPDATE tasks_histories
SET keep_seconds=:seconds
WHERE tasks_histories.queue = :of_queue;

-- history: switch_off
-- Stop keeping the history of a queue.
DELETE FROM tasks_histories
WHERE tasks_histories.queue = :of_queue;

-- history: lock_state
-- A shared record, which stays locked until the transaction ends.
SELECT tasks_records.record, tasks_records.version
FROM tasks_records
WHERE tasks_records.queue = :of_queue
AND tasks_records.name = :of_name
FOR UPDATE;

-- history: change_state
-- Change a shared record that the transaction has locked.
UPDATE tasks_records
SET version=:version, record=:record
WHERE tasks_records.queue = :of_queue
AND tasks_records.name = :of_name;

-- history: drop_state
-- Delete a shared record.
DELETE FROM tasks_records
WHERE tasks_records.queue = :of_queue
AND tasks_records.name = :of_name;

-- history: first_of_batch
-- Numbers of the first events of a batch.
SELECT tasks_history.event_id
FROM tasks_history
WHERE tasks_history.queue = :of_queue
AND tasks_history.batch = :of_batch
ORDER BY tasks_history.event_id
LIMIT :page;

-- history: put_into_batch
-- Put events into a batch.
UPDATE tasks_history FORCE INDEX (PRIMARY)
SET batch=:new_batch
WHERE tasks_history.event_id IN (:event_ids);

-- history: events
-- The events of a batch.
SELECT tasks_history.event_id, tasks_history.queue, tasks_history.batch, tasks_history.at_us,
    tasks_history.change_kind, tasks_history.ttl_removal, tasks_history.claimed_us, tasks_history.claimed_attempts,
    tasks_history.task_id, tasks_history.status, tasks_history.task_group, tasks_history.kind,
    tasks_history.parent_id, tasks_history.root_id, tasks_history.value_millionths, tasks_history.cost_millionths,
    tasks_history.decay, tasks_history.priority, tasks_history.attempts, tasks_history.created_us,
    tasks_history.updated_us, tasks_history.put_us, tasks_history.deadline_us, tasks_history.not_before_us,
    tasks_history.lease_until_us, tasks_history.lease_token, tasks_history.shed_reason, tasks_history.expires
FROM tasks_history
WHERE tasks_history.queue = :of_queue
AND tasks_history.batch = :of_batch
ORDER BY tasks_history.event_id;

-- history: oldest
-- Oldest events of a queue; unbatched events come last.
SELECT tasks_history.event_id, tasks_history.batch, tasks_history.at_us
FROM tasks_history
WHERE tasks_history.queue = :of_queue
AND tasks_history.batch <= 4611686018427387904
ORDER BY tasks_history.batch, tasks_history.event_id
LIMIT :page;

-- history: lock_events
-- Lock events, except those that another transaction has locked.
SELECT tasks_history.event_id
FROM tasks_history FORCE INDEX (PRIMARY)
WHERE tasks_history.event_id IN (:event_ids)
FOR UPDATE SKIP LOCKED;

-- history: delete
-- Delete events.
DELETE tasks_history FROM JSON_TABLE(:event_ids, '$[*]' COLUMNS (event_id BIGINT PATH '$')) AS listed STRAIGHT_JOIN
    tasks_history FORCE INDEX (PRIMARY) ON tasks_history.event_id = listed.event_id;
