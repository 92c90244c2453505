-- `make sql-statements` writes this file: the tables, and the statements that are built in Python. The others
-- are text already, in the .sql files of layers/freshq/freshq/stores/sql.

-- table tasks
CREATE TABLE tasks (
  task_id TEXT NOT NULL,
  queue TEXT NOT NULL,
  status VARCHAR(16) NOT NULL,
  created_us BIGINT NOT NULL,
  updated_us BIGINT NOT NULL,
  deadline_us BIGINT NOT NULL,
  expires BIGINT NOT NULL,
  request_token VARCHAR(133) NOT NULL,
  put_token VARCHAR(133) NOT NULL,
  priority SMALLINT NOT NULL,
  task_group TEXT,
  kind TEXT,
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
  parent_id TEXT,
  root_id TEXT,
  value_millionths BIGINT,
  decay VARCHAR(8),
  cost_millionths BIGINT,
  line_class VARCHAR(4),
  line TEXT,
  agenda VARCHAR(8) NOT NULL,
  due_us BIGINT NOT NULL,
  progress_ppm INTEGER,
  progress_step VARCHAR(200),
  error TEXT,
  attempt_record TEXT,
  result TEXT,
  successor_record TEXT,
  payload TEXT NOT NULL,
  PRIMARY KEY (task_id, queue)
  );
CREATE INDEX tasks_agenda ON tasks (agenda, queue, due_us, status);
CREATE INDEX tasks_dead ON tasks (queue, dead_us, task_id)
WHERE status = 'FAILURE';
CREATE INDEX tasks_lines ON tasks (queue, line, created_us, task_id, deadline_us)
WHERE line IS NOT NULL;
CREATE INDEX tasks_running ON tasks (queue, task_group)
WHERE status = 'TAKEN'
AND task_group IS NOT NULL;

-- table tasks_counts
CREATE TABLE tasks_counts (
  queue TEXT NOT NULL,
  name TEXT NOT NULL,
  field TEXT NOT NULL,
  number BIGINT NOT NULL,
  expires BIGINT,
  PRIMARY KEY (queue, name, field)
  );

-- table tasks_histories
CREATE TABLE tasks_histories (
  queue TEXT NOT NULL,
  history_id VARCHAR(133) NOT NULL,
  keep_seconds DOUBLE NOT NULL,
  PRIMARY KEY (queue)
  );

-- table tasks_history
CREATE TABLE tasks_history (
  event_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  queue TEXT NOT NULL,
  batch BIGINT DEFAULT 4611686018427387904 NOT NULL,
  at_us BIGINT NOT NULL,
  change_kind VARCHAR(6) NOT NULL,
  ttl_removal SMALLINT NOT NULL,
  claimed_us BIGINT,
  claimed_attempts INTEGER,
  task_id TEXT NOT NULL,
  status VARCHAR(16) NOT NULL,
  task_group TEXT,
  kind TEXT,
  parent_id TEXT,
  root_id TEXT,
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
  expires BIGINT NOT NULL
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
  queue TEXT NOT NULL,
  name TEXT NOT NULL,
  version VARCHAR(133) NOT NULL,
  record TEXT NOT NULL,
  PRIMARY KEY (queue, name)
  );

-- trigger insert
-- Keep the recorded events, if the queue has a history.
CREATE TRIGGER IF NOT EXISTS tasks_history_insert AFTER INSERT ON tasks FOR EACH ROW BEGIN INSERT INTO tasks_history
    (queue, at_us, change_kind, ttl_removal, task_id, status, created_us, updated_us, deadline_us, expires, priority,
    task_group, kind, attempts, not_before_us, lease_until_us, shed_reason, put_us, parent_id, root_id,
    value_millionths, decay, cost_millionths, lease_token)
SELECT NEW.queue, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000, 'INSERT', 0, NEW.task_id,
    NEW.status, NEW.created_us, NEW.updated_us, NEW.deadline_us, NEW.expires, NEW.priority, NEW.task_group, NEW.kind,
    NEW.attempts, NEW.not_before_us, NEW.lease_until_us, NEW.shed_reason, NEW.put_us, NEW.parent_id, NEW.root_id,
    NEW.value_millionths, NEW.decay, NEW.cost_millionths, NEW.lease_token FROM tasks_histories kept
WHERE kept.queue = NEW.queue; END;

-- trigger update
-- Keep the recorded events, if the queue has a history.
CREATE TRIGGER IF NOT EXISTS tasks_history_update AFTER UPDATE ON tasks FOR EACH ROW WHEN (NEW.request_token <>
    OLD.request_token) BEGIN INSERT INTO tasks_history (queue, at_us, change_kind, ttl_removal, task_id, status,
    created_us, updated_us, deadline_us, expires, priority, task_group, kind, attempts, not_before_us, lease_until_us,
    shed_reason, put_us, parent_id, root_id, value_millionths, decay, cost_millionths, lease_token, claimed_us,
    claimed_attempts)
SELECT NEW.queue, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000, 'MODIFY', 0, NEW.task_id,
    NEW.status, NEW.created_us, NEW.updated_us, NEW.deadline_us, NEW.expires, NEW.priority, NEW.task_group, NEW.kind,
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
WHERE kept.queue = NEW.queue; END;

-- trigger delete
-- Keep the recorded events, if the queue has a history.
CREATE TRIGGER IF NOT EXISTS tasks_history_delete AFTER DELETE ON tasks FOR EACH ROW BEGIN INSERT INTO tasks_history
    (queue, at_us, change_kind, ttl_removal, task_id, status, created_us, updated_us, deadline_us, expires, priority,
    task_group, kind, attempts, not_before_us, lease_until_us, shed_reason, put_us, parent_id, root_id,
    value_millionths, decay, cost_millionths, lease_token)
SELECT OLD.queue, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000, 'REMOVE', CASE WHEN
    OLD.agenda = 'over'
AND OLD.due_us <= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 THEN 1 ELSE 0 END,
    OLD.task_id, OLD.status, OLD.created_us, OLD.updated_us, OLD.deadline_us, OLD.expires, OLD.priority,
    OLD.task_group, OLD.kind, OLD.attempts, OLD.not_before_us, OLD.lease_until_us, OLD.shed_reason, OLD.put_us,
    OLD.parent_id, OLD.root_id, OLD.value_millionths, OLD.decay, OLD.cost_millionths, OLD.lease_token FROM
    tasks_histories kept
WHERE kept.queue = OLD.queue; END;

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
ON CONFLICT DO NOTHING;

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

-- settle: finish_many
-- End several held tasks, each with its own outcome; return their ids.
UPDATE tasks
SET status=given.status, updated_us=given.updated_us, expires=given.expires, request_token=given.request_token,
    lease_token=NULL, lease_until_us=NULL, dead_us=given.dead_us, cost_millionths=given.cost_millionths, line=NULL,
    agenda='over', due_us=given.due_us, progress_ppm=given.progress_ppm, progress_step=given.progress_step,
    error=given.error, attempt_record=given.attempt_record, result=given.result FROM (
  SELECT json_extract(rows.value, '$[0]') AS task_id, json_extract(rows.value, '$[1]') AS queue,
      json_extract(rows.value, '$[2]') AS of_lease_token, json_extract(rows.value, '$[3]') AS expires,
      json_extract(rows.value, '$[4]') AS request_token, json_extract(rows.value, '$[5]') AS progress_step,
      json_extract(rows.value, '$[6]') AS attempt_record, json_extract(rows.value, '$[7]') AS updated_us,
      json_extract(rows.value, '$[8]') AS dead_us, json_extract(rows.value, '$[9]') AS progress_ppm,
      json_extract(rows.value, '$[10]') AS cost_millionths, json_extract(rows.value, '$[11]') AS status,
      json_extract(rows.value, '$[12]') AS error, json_extract(rows.value, '$[13]') AS result,
      json_extract(rows.value, '$[14]') AS due_us
  FROM json_each(:many_ends) AS rows) AS given
WHERE tasks.task_id = given.task_id
AND tasks.queue = given.queue
AND tasks.status = 'TAKEN'
AND tasks.lease_token = given.of_lease_token
RETURNING task_id;

-- records: add_counts
-- Add numbers to the stored ones, or insert them.
INSERT INTO tasks_counts (queue, name, field, number, expires)
VALUES (:queue, :name, :field, :number, :expires)
ON CONFLICT (queue, name, field) DO UPDATE
SET number = (tasks_counts.number + excluded.number), expires = excluded.expires;
