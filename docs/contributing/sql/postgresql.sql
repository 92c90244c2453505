-- `make sql-statements` writes this file: the tables, and the statements that are built in Python. The others
-- are text already, in the .sql files of layers/freshq/freshq/stores/sql.

-- table tasks
CREATE TABLE tasks (
  task_id TEXT COLLATE "C" NOT NULL,
  queue TEXT COLLATE "C" NOT NULL,
  status VARCHAR(16) NOT NULL,
  created_us BIGINT NOT NULL,
  updated_us BIGINT NOT NULL,
  deadline_us BIGINT NOT NULL,
  expires BIGINT NOT NULL,
  request_token VARCHAR(133) NOT NULL,
  put_token VARCHAR(133) NOT NULL,
  priority SMALLINT NOT NULL,
  task_group TEXT COLLATE "C",
  kind TEXT COLLATE "C",
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
  parent_id TEXT COLLATE "C",
  root_id TEXT COLLATE "C",
  value_millionths BIGINT,
  decay VARCHAR(8),
  cost_millionths BIGINT,
  line_class VARCHAR(4),
  line TEXT COLLATE "C",
  agenda VARCHAR(8) NOT NULL,
  due_us BIGINT NOT NULL,
  progress_ppm INTEGER,
  progress_step VARCHAR(200),
  error VARCHAR,
  attempt_record VARCHAR,
  result VARCHAR,
  successor_record VARCHAR,
  payload VARCHAR NOT NULL,
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
  queue TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  field TEXT COLLATE "C" NOT NULL,
  number BIGINT NOT NULL,
  expires BIGINT,
  PRIMARY KEY (queue, name, field)
  );

-- table tasks_histories
CREATE TABLE tasks_histories (
  queue TEXT COLLATE "C" NOT NULL,
  history_id VARCHAR(133) NOT NULL,
  keep_seconds DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (queue)
  );

-- table tasks_history
CREATE TABLE tasks_history (
  event_id BIGSERIAL NOT NULL,
  queue TEXT COLLATE "C" NOT NULL,
  batch BIGINT DEFAULT 4611686018427387904 NOT NULL,
  at_us BIGINT NOT NULL,
  change_kind VARCHAR(6) NOT NULL,
  ttl_removal SMALLINT NOT NULL,
  claimed_us BIGINT,
  claimed_attempts INTEGER,
  task_id TEXT COLLATE "C" NOT NULL,
  status VARCHAR(16) NOT NULL,
  task_group TEXT COLLATE "C",
  kind TEXT COLLATE "C",
  parent_id TEXT COLLATE "C",
  root_id TEXT COLLATE "C",
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
  queue TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  version VARCHAR(133) NOT NULL,
  record VARCHAR NOT NULL,
  PRIMARY KEY (queue, name)
  );

-- trigger insert
-- Keep the recorded events, if the queue has a history.
CREATE OR REPLACE FUNCTION public.tasks_history_insert() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $history$ BEGIN INSERT INTO public.tasks_history (queue, at_us, change_kind,
    ttl_removal, task_id, status, created_us, updated_us, deadline_us, expires, priority, task_group, kind, attempts,
    not_before_us, lease_until_us, shed_reason, put_us, parent_id, root_id, value_millionths, decay, cost_millionths,
    lease_token)
SELECT NEW.queue, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 'INSERT', 0, NEW.task_id, NEW.status,
    NEW.created_us, NEW.updated_us, NEW.deadline_us, NEW.expires, NEW.priority, NEW.task_group, NEW.kind,
    NEW.attempts, NEW.not_before_us, NEW.lease_until_us, NEW.shed_reason, NEW.put_us, NEW.parent_id, NEW.root_id,
    NEW.value_millionths, NEW.decay, NEW.cost_millionths, NEW.lease_token FROM public.tasks_histories kept
WHERE kept.queue = NEW.queue; RETURN NULL; END $history$;
REVOKE ALL ON FUNCTION public.tasks_history_insert() FROM PUBLIC;
DROP TRIGGER IF EXISTS tasks_history_insert ON public.tasks;
CREATE TRIGGER tasks_history_insert AFTER INSERT ON public.tasks FOR EACH ROW EXECUTE FUNCTION
    public.tasks_history_insert();

-- trigger update
-- Keep the recorded events, if the queue has a history.
CREATE OR REPLACE FUNCTION public.tasks_history_update() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $history$ BEGIN INSERT INTO public.tasks_history (queue, at_us, change_kind,
    ttl_removal, task_id, status, created_us, updated_us, deadline_us, expires, priority, task_group, kind, attempts,
    not_before_us, lease_until_us, shed_reason, put_us, parent_id, root_id, value_millionths, decay, cost_millionths,
    lease_token, claimed_us, claimed_attempts)
SELECT NEW.queue, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 'MODIFY', 0, NEW.task_id, NEW.status,
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
    OLD.attempts + 1 END FROM public.tasks_histories kept
WHERE kept.queue = NEW.queue; RETURN NULL; END $history$;
REVOKE ALL ON FUNCTION public.tasks_history_update() FROM PUBLIC;
DROP TRIGGER IF EXISTS tasks_history_update ON public.tasks;
CREATE TRIGGER tasks_history_update AFTER UPDATE ON public.tasks FOR EACH ROW WHEN (NEW.request_token <>
    OLD.request_token) EXECUTE FUNCTION public.tasks_history_update();

-- trigger delete
-- Keep the recorded events, if the queue has a history.
CREATE OR REPLACE FUNCTION public.tasks_history_delete() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $history$ BEGIN INSERT INTO public.tasks_history (queue, at_us, change_kind,
    ttl_removal, task_id, status, created_us, updated_us, deadline_us, expires, priority, task_group, kind, attempts,
    not_before_us, lease_until_us, shed_reason, put_us, parent_id, root_id, value_millionths, decay, cost_millionths,
    lease_token)
SELECT OLD.queue, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 'REMOVE', CASE WHEN OLD.agenda = 'over'
AND OLD.due_us <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint THEN 1 ELSE 0 END, OLD.task_id,
    OLD.status, OLD.created_us, OLD.updated_us, OLD.deadline_us, OLD.expires, OLD.priority, OLD.task_group, OLD.kind,
    OLD.attempts, OLD.not_before_us, OLD.lease_until_us, OLD.shed_reason, OLD.put_us, OLD.parent_id, OLD.root_id,
    OLD.value_millionths, OLD.decay, OLD.cost_millionths, OLD.lease_token FROM public.tasks_histories kept
WHERE kept.queue = OLD.queue; RETURN NULL; END $history$;
REVOKE ALL ON FUNCTION public.tasks_history_delete() FROM PUBLIC;
DROP TRIGGER IF EXISTS tasks_history_delete ON public.tasks;
CREATE TRIGGER tasks_history_delete AFTER DELETE ON public.tasks FOR EACH ROW EXECUTE FUNCTION
    public.tasks_history_delete();

-- put: put
-- Insert tasks whose ids are free.
INSERT INTO tasks (task_id, queue, status, created_us, updated_us, deadline_us, expires, request_token, put_token,
    priority, task_group, kind, attempts, lease_token, not_before_us, lease_until_us, put_us, first_due_us,
    first_claim_us, last_claim_us, dead_us, shed_reason, trace_context, parent_id, root_id, value_millionths, decay,
    cost_millionths, line_class, line, agenda, due_us, progress_ppm, progress_step, error, attempt_record, result,
    successor_record, payload)
VALUES (:task_id::VARCHAR COLLATE "C", :queue::VARCHAR COLLATE "C", :status::VARCHAR, :created_us::BIGINT,
    :updated_us::BIGINT, :deadline_us::BIGINT, :expires::BIGINT, :request_token::VARCHAR, :put_token::VARCHAR,
    :priority::SMALLINT, :task_group::VARCHAR COLLATE "C", :kind::VARCHAR COLLATE "C", :attempts::INTEGER,
    :lease_token::VARCHAR, :not_before_us::BIGINT, :lease_until_us::BIGINT, :put_us::BIGINT, :first_due_us::BIGINT,
    :first_claim_us::BIGINT, :last_claim_us::BIGINT, :dead_us::BIGINT, :shed_reason::VARCHAR, :trace_context::VARCHAR,
    :parent_id::VARCHAR COLLATE "C", :root_id::VARCHAR COLLATE "C", :value_millionths::BIGINT, :decay::VARCHAR,
    :cost_millionths::BIGINT, :line_class::VARCHAR, :line::VARCHAR COLLATE "C", :agenda::VARCHAR, :due_us::BIGINT,
    :progress_ppm::INTEGER, :progress_step::VARCHAR, :error::VARCHAR, :attempt_record::VARCHAR, :result::VARCHAR,
    :successor_record::VARCHAR, :payload::VARCHAR)
ON CONFLICT DO NOTHING;

-- put: overwrite
-- Overwrite a task of the same id, unless it has changed.
UPDATE tasks
SET status=:status::VARCHAR, created_us=:created_us::BIGINT, updated_us=:updated_us::BIGINT,
    deadline_us=:deadline_us::BIGINT, expires=:expires::BIGINT, request_token=:request_token::VARCHAR,
    put_token=:put_token::VARCHAR, priority=:priority::SMALLINT, task_group=:task_group::VARCHAR COLLATE "C",
    kind=:kind::VARCHAR COLLATE "C", attempts=:attempts::INTEGER, lease_token=:lease_token::VARCHAR,
    not_before_us=:not_before_us::BIGINT, lease_until_us=:lease_until_us::BIGINT, put_us=:put_us::BIGINT,
    first_due_us=:first_due_us::BIGINT, first_claim_us=:first_claim_us::BIGINT, last_claim_us=:last_claim_us::BIGINT,
    dead_us=:dead_us::BIGINT, shed_reason=:shed_reason::VARCHAR, trace_context=:trace_context::VARCHAR,
    parent_id=:parent_id::VARCHAR COLLATE "C", root_id=:root_id::VARCHAR COLLATE "C",
    value_millionths=:value_millionths::BIGINT, decay=:decay::VARCHAR, cost_millionths=:cost_millionths::BIGINT,
    line_class=:line_class::VARCHAR, line=:line::VARCHAR COLLATE "C", agenda=:agenda::VARCHAR, due_us=:due_us::BIGINT,
    progress_ppm=:progress_ppm::INTEGER, progress_step=:progress_step::VARCHAR, error=:error::VARCHAR,
    attempt_record=:attempt_record::VARCHAR, result=:result::VARCHAR, successor_record=:successor_record::VARCHAR,
    payload=:payload::VARCHAR
WHERE tasks.task_id = :of_task_id::VARCHAR COLLATE "C"
AND tasks.queue = :of_queue::VARCHAR COLLATE "C"
AND tasks.request_token = :of_request_token::VARCHAR;

-- settle: replacements, guarded by status, lease, version
-- Store the new version of a task, for each form of guard.
UPDATE tasks
SET status=:status::VARCHAR, created_us=:created_us::BIGINT, updated_us=:updated_us::BIGINT,
    deadline_us=:deadline_us::BIGINT, expires=:expires::BIGINT, request_token=:request_token::VARCHAR,
    priority=:priority::SMALLINT, attempts=:attempts::INTEGER, lease_token=:lease_token::VARCHAR,
    not_before_us=:not_before_us::BIGINT, lease_until_us=:lease_until_us::BIGINT,
    first_claim_us=:first_claim_us::BIGINT, last_claim_us=:last_claim_us::BIGINT, dead_us=:dead_us::BIGINT,
    shed_reason=:shed_reason::VARCHAR, cost_millionths=:cost_millionths::BIGINT, line=:line::VARCHAR COLLATE "C",
    agenda=:agenda::VARCHAR, due_us=:due_us::BIGINT, progress_ppm=:progress_ppm::INTEGER,
    progress_step=:progress_step::VARCHAR, error=:error::VARCHAR, attempt_record=:attempt_record::VARCHAR,
    result=:result::VARCHAR
WHERE tasks.task_id = :of_task_id::VARCHAR COLLATE "C"
AND tasks.queue = :of_queue::VARCHAR COLLATE "C"
AND tasks.status = :of_status::VARCHAR
AND tasks.lease_token = :of_lease_token::VARCHAR
AND tasks.request_token = :of_request_token::VARCHAR;

-- settle: replacements, guarded by status, lease
-- Store the new version of a task, for each form of guard.
UPDATE tasks
SET status=:status::VARCHAR, created_us=:created_us::BIGINT, updated_us=:updated_us::BIGINT,
    deadline_us=:deadline_us::BIGINT, expires=:expires::BIGINT, request_token=:request_token::VARCHAR,
    priority=:priority::SMALLINT, attempts=:attempts::INTEGER, lease_token=:lease_token::VARCHAR,
    not_before_us=:not_before_us::BIGINT, lease_until_us=:lease_until_us::BIGINT,
    first_claim_us=:first_claim_us::BIGINT, last_claim_us=:last_claim_us::BIGINT, dead_us=:dead_us::BIGINT,
    shed_reason=:shed_reason::VARCHAR, cost_millionths=:cost_millionths::BIGINT, line=:line::VARCHAR COLLATE "C",
    agenda=:agenda::VARCHAR, due_us=:due_us::BIGINT, progress_ppm=:progress_ppm::INTEGER,
    progress_step=:progress_step::VARCHAR, error=:error::VARCHAR, attempt_record=:attempt_record::VARCHAR,
    result=:result::VARCHAR
WHERE tasks.task_id = :of_task_id::VARCHAR COLLATE "C"
AND tasks.queue = :of_queue::VARCHAR COLLATE "C"
AND tasks.status = :of_status::VARCHAR
AND tasks.lease_token = :of_lease_token::VARCHAR;

-- settle: replacements, guarded by status, version
-- Store the new version of a task, for each form of guard.
UPDATE tasks
SET status=:status::VARCHAR, created_us=:created_us::BIGINT, updated_us=:updated_us::BIGINT,
    deadline_us=:deadline_us::BIGINT, expires=:expires::BIGINT, request_token=:request_token::VARCHAR,
    priority=:priority::SMALLINT, attempts=:attempts::INTEGER, lease_token=:lease_token::VARCHAR,
    not_before_us=:not_before_us::BIGINT, lease_until_us=:lease_until_us::BIGINT,
    first_claim_us=:first_claim_us::BIGINT, last_claim_us=:last_claim_us::BIGINT, dead_us=:dead_us::BIGINT,
    shed_reason=:shed_reason::VARCHAR, cost_millionths=:cost_millionths::BIGINT, line=:line::VARCHAR COLLATE "C",
    agenda=:agenda::VARCHAR, due_us=:due_us::BIGINT, progress_ppm=:progress_ppm::INTEGER,
    progress_step=:progress_step::VARCHAR, error=:error::VARCHAR, attempt_record=:attempt_record::VARCHAR,
    result=:result::VARCHAR
WHERE tasks.task_id = :of_task_id::VARCHAR COLLATE "C"
AND tasks.queue = :of_queue::VARCHAR COLLATE "C"
AND tasks.status = :of_status::VARCHAR
AND tasks.request_token = :of_request_token::VARCHAR;

-- settle: replacements, guarded by status
-- Store the new version of a task, for each form of guard.
UPDATE tasks
SET status=:status::VARCHAR, created_us=:created_us::BIGINT, updated_us=:updated_us::BIGINT,
    deadline_us=:deadline_us::BIGINT, expires=:expires::BIGINT, request_token=:request_token::VARCHAR,
    priority=:priority::SMALLINT, attempts=:attempts::INTEGER, lease_token=:lease_token::VARCHAR,
    not_before_us=:not_before_us::BIGINT, lease_until_us=:lease_until_us::BIGINT,
    first_claim_us=:first_claim_us::BIGINT, last_claim_us=:last_claim_us::BIGINT, dead_us=:dead_us::BIGINT,
    shed_reason=:shed_reason::VARCHAR, cost_millionths=:cost_millionths::BIGINT, line=:line::VARCHAR COLLATE "C",
    agenda=:agenda::VARCHAR, due_us=:due_us::BIGINT, progress_ppm=:progress_ppm::INTEGER,
    progress_step=:progress_step::VARCHAR, error=:error::VARCHAR, attempt_record=:attempt_record::VARCHAR,
    result=:result::VARCHAR
WHERE tasks.task_id = :of_task_id::VARCHAR COLLATE "C"
AND tasks.queue = :of_queue::VARCHAR COLLATE "C"
AND tasks.status = :of_status::VARCHAR;

-- settle: replace_many
-- Store new versions of several tasks, except tasks with a locked row; on PostgreSQL.
WITH free AS
(
  SELECT given.expires AS expires, given.request_token AS request_token, given.priority AS priority, given.attempts AS
      attempts, given.lease_token AS lease_token, given.progress_step AS progress_step, given.attempt_record AS
      attempt_record, given.created_us AS created_us, given.updated_us AS updated_us, given.deadline_us AS
      deadline_us, given.not_before_us AS not_before_us, given.lease_until_us AS lease_until_us, given.first_claim_us
      AS first_claim_us, given.last_claim_us AS last_claim_us, given.dead_us AS dead_us, given.progress_ppm AS
      progress_ppm, given.cost_millionths AS cost_millionths, given.status AS status, given.shed_reason AS
      shed_reason, given.error AS error, given.result AS result, given.line AS line, given.agenda AS agenda,
      given.due_us AS due_us, given.task_id AS task_id, given.queue AS queue, given.of_status AS of_status,
      given.of_lease_token AS of_lease_token, given.of_request_token AS of_request_token
  FROM (
    SELECT anon_1.expires AS expires, anon_1.request_token AS request_token, anon_1.priority AS priority,
        anon_1.attempts AS attempts, anon_1.lease_token AS lease_token, anon_1.progress_step AS progress_step,
        anon_1.attempt_record AS attempt_record, anon_1.created_us AS created_us, anon_1.updated_us AS updated_us,
        anon_1.deadline_us AS deadline_us, anon_1.not_before_us AS not_before_us, anon_1.lease_until_us AS
        lease_until_us, anon_1.first_claim_us AS first_claim_us, anon_1.last_claim_us AS last_claim_us, anon_1.dead_us
        AS dead_us, anon_1.progress_ppm AS progress_ppm, anon_1.cost_millionths AS cost_millionths, anon_1.status AS
        status, anon_1.shed_reason AS shed_reason, anon_1.error AS error, anon_1.result AS result, anon_1.line AS
        line, anon_1.agenda AS agenda, anon_1.due_us AS due_us, anon_1.task_id AS task_id, anon_1.queue AS queue,
        anon_1.of_status AS of_status, anon_1.of_lease_token AS of_lease_token, anon_1.of_request_token AS
        of_request_token
    FROM json_to_recordset(CAST(:changes::VARCHAR AS JSON)) AS anon_1(expires BIGINT, request_token TEXT, priority
        BIGINT, attempts BIGINT, lease_token TEXT, progress_step TEXT, attempt_record TEXT, created_us BIGINT,
        updated_us BIGINT, deadline_us BIGINT, not_before_us BIGINT, lease_until_us BIGINT, first_claim_us BIGINT,
        last_claim_us BIGINT, dead_us BIGINT, progress_ppm BIGINT, cost_millionths BIGINT, status TEXT, shed_reason
        TEXT, error TEXT, result TEXT, line TEXT, agenda TEXT, due_us BIGINT, task_id TEXT, queue TEXT, of_status
        TEXT, of_lease_token TEXT, of_request_token TEXT)) AS given
  JOIN tasks AS current_tasks ON current_tasks.task_id = given.task_id
  AND current_tasks.queue = given.queue
  WHERE current_tasks.status = given.of_status
  AND (given.of_lease_token IS NULL OR current_tasks.lease_token = given.of_lease_token)
  AND (given.of_request_token IS NULL OR current_tasks.request_token = given.of_request_token) OR
      current_tasks.request_token = given.request_token
  AND current_tasks.lease_token IS NOT DISTINCT FROM given.lease_token
  FOR UPDATE OF current_tasks SKIP LOCKED)
UPDATE tasks
SET status=free.status, created_us=free.created_us, updated_us=free.updated_us, deadline_us=free.deadline_us,
    expires=free.expires, request_token=free.request_token, priority=free.priority, attempts=free.attempts,
    lease_token=free.lease_token, not_before_us=free.not_before_us, lease_until_us=free.lease_until_us,
    first_claim_us=free.first_claim_us, last_claim_us=free.last_claim_us, dead_us=free.dead_us,
    shed_reason=free.shed_reason, cost_millionths=free.cost_millionths, line=free.line, agenda=free.agenda,
    due_us=free.due_us, progress_ppm=free.progress_ppm, progress_step=free.progress_step, error=free.error,
    attempt_record=free.attempt_record, result=free.result FROM free
WHERE tasks.task_id = free.task_id
AND tasks.queue = free.queue
RETURNING tasks.task_id, tasks.request_token;

-- settle: replace_locked
-- Store the new version of a locked task.
UPDATE tasks
SET status=:status::VARCHAR, created_us=:created_us::BIGINT, updated_us=:updated_us::BIGINT,
    deadline_us=:deadline_us::BIGINT, expires=:expires::BIGINT, request_token=:request_token::VARCHAR,
    priority=:priority::SMALLINT, attempts=:attempts::INTEGER, lease_token=:lease_token::VARCHAR,
    not_before_us=:not_before_us::BIGINT, lease_until_us=:lease_until_us::BIGINT,
    first_claim_us=:first_claim_us::BIGINT, last_claim_us=:last_claim_us::BIGINT, dead_us=:dead_us::BIGINT,
    shed_reason=:shed_reason::VARCHAR, cost_millionths=:cost_millionths::BIGINT, line=:line::VARCHAR COLLATE "C",
    agenda=:agenda::VARCHAR, due_us=:due_us::BIGINT, progress_ppm=:progress_ppm::INTEGER,
    progress_step=:progress_step::VARCHAR, error=:error::VARCHAR, attempt_record=:attempt_record::VARCHAR,
    result=:result::VARCHAR
WHERE tasks.task_id = :of_task_id::VARCHAR COLLATE "C"
AND tasks.queue = :of_queue::VARCHAR COLLATE "C";

-- settle: deletions, guarded by status, lease, version
-- Delete a task, for each form of guard.
DELETE FROM tasks
WHERE tasks.task_id = :of_task_id::VARCHAR COLLATE "C"
AND tasks.queue = :of_queue::VARCHAR COLLATE "C"
AND tasks.status = :of_status::VARCHAR
AND tasks.lease_token = :of_lease_token::VARCHAR
AND tasks.request_token = :of_request_token::VARCHAR;

-- settle: deletions, guarded by status, lease
-- Delete a task, for each form of guard.
DELETE FROM tasks
WHERE tasks.task_id = :of_task_id::VARCHAR COLLATE "C"
AND tasks.queue = :of_queue::VARCHAR COLLATE "C"
AND tasks.status = :of_status::VARCHAR
AND tasks.lease_token = :of_lease_token::VARCHAR;

-- settle: deletions, guarded by status, version
-- Delete a task, for each form of guard.
DELETE FROM tasks
WHERE tasks.task_id = :of_task_id::VARCHAR COLLATE "C"
AND tasks.queue = :of_queue::VARCHAR COLLATE "C"
AND tasks.status = :of_status::VARCHAR
AND tasks.request_token = :of_request_token::VARCHAR;

-- settle: deletions, guarded by status
-- Delete a task, for each form of guard.
DELETE FROM tasks
WHERE tasks.task_id = :of_task_id::VARCHAR COLLATE "C"
AND tasks.queue = :of_queue::VARCHAR COLLATE "C"
AND tasks.status = :of_status::VARCHAR;

-- settle: finish
-- End one held task; takes the values of `HELD_END`.
UPDATE tasks
SET status=:status::VARCHAR, updated_us=:updated_us::BIGINT, expires=:expires::BIGINT,
    request_token=:request_token::VARCHAR, lease_token=NULL, lease_until_us=NULL, dead_us=:dead_us::BIGINT,
    cost_millionths=:cost_millionths::BIGINT, line=NULL, agenda=:agenda::VARCHAR, due_us=:due_us::BIGINT,
    progress_ppm=:progress_ppm::INTEGER, progress_step=:progress_step::VARCHAR, error=:error::VARCHAR,
    attempt_record=:attempt_record::VARCHAR, result=:result::VARCHAR
WHERE tasks.task_id = :of_task_id::VARCHAR COLLATE "C"
AND tasks.queue = :of_queue::VARCHAR COLLATE "C"
AND tasks.status = 'TAKEN'
AND tasks.lease_token = :of_lease_token::VARCHAR;

-- settle: finish_many
-- End several held tasks, each with its own outcome; return their ids.
UPDATE tasks
SET status=given.status, updated_us=given.updated_us, expires=given.expires, request_token=given.request_token,
    lease_token=NULL, lease_until_us=NULL, dead_us=given.dead_us, cost_millionths=given.cost_millionths, line=NULL,
    agenda='over'::VARCHAR, due_us=given.due_us, progress_ppm=given.progress_ppm, progress_step=given.progress_step,
    error=given.error, attempt_record=given.attempt_record, result=given.result FROM unnest(CAST(:many_task_id AS
    TEXT[]), CAST(:many_queue AS TEXT[]), CAST(:many_of_lease_token AS TEXT[]), CAST(:many_expires AS BIGINT[]),
    CAST(:many_request_token AS TEXT[]), CAST(:many_progress_step AS TEXT[]), CAST(:many_attempt_record AS TEXT[]),
    CAST(:many_updated_us AS BIGINT[]), CAST(:many_dead_us AS BIGINT[]), CAST(:many_progress_ppm AS BIGINT[]),
    CAST(:many_cost_millionths AS BIGINT[]), CAST(:many_status AS TEXT[]), CAST(:many_error AS TEXT[]),
    CAST(:many_result AS TEXT[]), CAST(:many_due_us AS BIGINT[])) AS given(task_id, queue, of_lease_token, expires,
    request_token, progress_step, attempt_record, updated_us, dead_us, progress_ppm, cost_millionths, status, error,
    result, due_us)
WHERE tasks.task_id = given.task_id
AND (tasks.queue || '') = given.queue
AND (tasks.status || '') = 'TAKEN'
AND tasks.lease_token = given.of_lease_token
RETURNING tasks.task_id;

-- records: add_counts
-- Add numbers to the stored ones, or insert them.
INSERT INTO tasks_counts (queue, name, field, number, expires)
VALUES (:queue::VARCHAR COLLATE "C", :name::VARCHAR COLLATE "C", :field::VARCHAR COLLATE "C", :number::BIGINT,
    :expires::BIGINT)
ON CONFLICT (queue, name, field) DO UPDATE
SET number = (tasks_counts.number + excluded.number), expires = excluded.expires;
