-- `make sql-statements` writes this file: the tables, and the statements that are built in Python. The others
-- are text already, in the .sql files of layers/freshq/freshq/stores/sql.

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

-- records: add_counts
-- Add numbers to the stored ones, or insert them.
INSERT INTO tasks_counts (queue, name, field, number, expires)
VALUES (:queue, :name, :field, :number, :expires)
ON DUPLICATE KEY UPDATE number = (tasks_counts.number +
  VALUES(number)), expires =
VALUES(expires);
