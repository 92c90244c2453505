-- The function by which SQL puts tasks on PostgreSQL; `table create` makes it.
--
-- `-- name:` begins a part. A word in braces is a table, a name, or a literal: the limits, defaults and messages of
-- `Queue.put`, which this text must not repeat. The function runs with its caller's rights.

-- name: parameters
-- Every type of number becomes double precision by itself, so that each wrong number gets a message.
INOUT task_id text DEFAULT NULL,
priority double precision DEFAULT 0,
delay_seconds double precision DEFAULT 0,
at timestamptz DEFAULT NULL,
max_age_seconds double precision DEFAULT NULL,
"group" text DEFAULT NULL,
kind text DEFAULT NULL,
value double precision DEFAULT NULL,
decay text DEFAULT NULL,
trace_context text DEFAULT NULL,
on_conflict text DEFAULT NULL,
cost double precision DEFAULT NULL,
OUT outcome text

-- name: put
CREATE OR REPLACE FUNCTION {function}(queue text, payload text, {parameters})
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $freshq$
    -- {version}
DECLARE
    of_queue CONSTANT text := queue;
    now_us CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    version CONSTANT text := replace(gen_random_uuid()::text, '-', '');
    at_seconds CONSTANT numeric := CASE WHEN isfinite(at) THEN extract(epoch FROM at) END;
    infinite CONSTANT double precision[] := '{NaN, Infinity, -Infinity}';
    task {tasks}%ROWTYPE;
    old {tasks}%ROWTYPE;
    options jsonb;
    queue_max_age_seconds double precision;
    skeleton text;
    brackets text;
    levels integer := 0;
    tries integer := 0;
    problem text;
    refused text;
BEGIN
    -- The text that `Queue.put` stores has no space between tokens, and only the escapes that JSON needs. PostgreSQL
    -- has no NUL, so strings are unescaped between their NULs.
    BEGIN
        PERFORM payload::json;
        IF payload ~ '[[:space:]]|\\' THEN
            SELECT string_agg(
                CASE WHEN token LIKE '"%\\%' THEN (
                    SELECT '"' || string_agg(
                        CASE
                            WHEN piece = '\u0000' THEN piece
                            ELSE regexp_replace(to_json(('"' || piece || '"')::json #>> '{}')::text, '^"|"$', '', 'g')
                        END, '' ORDER BY place
                    ) || '"'
                    FROM regexp_matches(
                        substr(token, 2, length(token) - 2), '(\\u0000|(?:[^\\]+|\\(?:[^u]|u(?!0000)))+)', 'g'
                    ) WITH ORDINALITY AS split (pieces, place), unnest(pieces) AS piece
                ) ELSE token END, '' ORDER BY place
            ) INTO payload
            FROM regexp_matches(payload, '("(?:[^"\\]+|\\.)*"|[^"[:space:]]+)', 'g')
                WITH ORDINALITY AS matched (tokens, place), unnest(tokens) AS token;
        END IF;
        -- Without its strings. Of that, the brackets: each round takes away the innermost level.
        skeleton := regexp_replace(payload, '"(?:[^"\\]+|\\.)*"', '', 'g');
        brackets := translate(regexp_replace(skeleton, '[^][{}]+', '', 'g'), '{}', '[]');
        WHILE brackets <> '' AND levels <= {max_depth} LOOP
            brackets := replace(brackets, '[]', '');
            levels := levels + 1;
        END LOOP;
    EXCEPTION
        WHEN data_exception OR statement_too_complex THEN
            problem := sqlerrm;
    END;

    -- The options of the queue: its record, or the earliest note of a put into the new queue.
    SELECT stored.record::jsonb INTO options FROM {records} AS stored
    WHERE stored.queue = of_queue AND stored.name = {record};
    IF options IS NULL THEN
        SELECT note.record::jsonb -> 'options' INTO options FROM {records} AS note
        WHERE note.queue = of_queue AND note.name > {note} AND note.name < {note} || '~'
        ORDER BY (note.record::jsonb ->> 'at')::double precision LIMIT 1;
    END IF;
    queue_max_age_seconds := CASE
        WHEN options ? 'max_age_seconds' THEN (options ->> 'max_age_seconds')::double precision
        ELSE {max_age_seconds}
    END;

    -- The first broken rule decides, in the order in which `Queue.put` checks them.
    SELECT rule.message || CASE WHEN length(rule.given) <= {max_quoted} THEN ', got ' || rule.given ELSE '' END
    INTO refused
    FROM (
        VALUES
        (of_queue IS NULL OR of_queue !~ {queue_name}, {bad_queue}, quote_nullable(of_queue)),
        (task_id = '', {empty_id}, quote_literal(task_id)),
        (starts_with(task_id, {own_ids}), {own_id}, quote_literal(task_id)),
        (starts_with(task_id, {queue_ids}), {queue_id}, quote_literal(task_id)),
        (octet_length(convert_to(task_id, 'UTF8')) > {max_id_bytes},
            format({long_id}, octet_length(convert_to(task_id, 'UTF8'))), NULL),
        (priority IS NULL OR priority <> trunc(priority) OR priority = ANY (infinite), {odd_priority},
            coalesce(priority::text, 'NULL')),
        (priority < 0, {low_priority}, priority::text),
        (priority > {max_priority}, {high_priority}, priority::text),
        (delay_seconds IS NULL, {no_delay}, 'NULL'),
        (delay_seconds = ANY (infinite), {infinite_delay}, delay_seconds::text),
        (delay_seconds < 0, {low_delay}, delay_seconds::text),
        (delay_seconds > {max_seconds}, {high_delay}, delay_seconds::text),
        (max_age_seconds = ANY (infinite), {infinite_max_age}, max_age_seconds::text),
        (max_age_seconds <= 0, {low_max_age}, max_age_seconds::text),
        ("group" = '', {empty_group}, quote_literal("group")),
        (octet_length(convert_to("group", 'UTF8')) > {max_group_bytes},
            format({long_group}, octet_length(convert_to("group", 'UTF8'))), NULL),
        (kind = '', {empty_kind}, quote_literal(kind)),
        (octet_length(convert_to(kind, 'UTF8')) > {max_group_bytes},
            format({long_kind}, octet_length(convert_to(kind, 'UTF8'))), NULL),
        (value = ANY (infinite), {infinite_value}, value::text),
        (value < {min_value}, {low_value}, value::text),
        (value > {max_value}, {high_value}, value::text),
        (decay NOT IN ({step}, {linear}), {bad_decay}, quote_literal(decay)),
        (NOT isfinite(at), {infinite_at}, at::text),
        (at_seconds < 0, {low_at}, at::text),
        (at_seconds > {max_epoch_seconds}, {high_at}, at::text),
        (trace_context !~ {traceparent}, {bad_traceparent}, quote_literal(trace_context)),
        (octet_length(convert_to(trace_context, 'UTF8')) > {max_trace_bytes} OR trace_context !~ '^[ -~]*$',
            {bad_tracestate}, quote_literal(trace_context)),
        (on_conflict NOT IN ('ignore', 'update'), {bad_conflict}, quote_literal(on_conflict)),
        (cost = ANY (infinite), {infinite_cost}, cost::text),
        (cost < {min_cost}, {low_cost}, cost::text),
        (cost > {max_cost}, {high_cost}, cost::text),
        (at IS NOT NULL AND delay_seconds <> 0, {two_times}, NULL),
        (payload IS NULL, 'payload: must not be NULL; the JSON value null is ''null''', NULL),
        (problem IS NOT NULL, format('payload: not a JSON value (%s)', problem), NULL),
        (skeleton ~ '[0-9]{255}|[eE][+]?0*[0-9]{3}' AND EXISTS (
            SELECT FROM regexp_matches(skeleton, '([0-9.]+(?:[eE][+]?[0-9]+)?)', 'g') AS matched, unnest(matched) AS number
            WHERE CASE WHEN number ~ '[.eE]' THEN number::numeric > {max_float} ELSE length(number) > {max_digits} END
        ), 'payload: not a JSON value (a number is too large); use a string', NULL),
        (levels > {max_depth}, {deep_payload}, NULL),
        (octet_length(convert_to(payload, 'UTF8')) > {max_payload_bytes},
            format({large_payload}, octet_length(convert_to(payload, 'UTF8'))), NULL),
        (max_age_seconds > coalesce(queue_max_age_seconds, {max_seconds}),
            format({long_max_age}, coalesce(queue_max_age_seconds, {max_seconds})), max_age_seconds::text),
        (at_seconds > now_us / 1e6 + {max_seconds}, {late_at}, at::text)
    ) AS rule (is_broken, message, given)
    WHERE rule.is_broken LIMIT 1;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = refused;
    END IF;

    -- Whoever puts into a new queue notes its options, here none.
    IF options IS NULL THEN
        INSERT INTO {records} (queue, name, version, record)
        VALUES (of_queue, {note} || version, version, format('{"at":%s,"options":{}}', now_us / 1e6));
    END IF;

    task.task_id := coalesce(task_id, gen_random_uuid()::text);
    task.queue := of_queue;
    task.status := 'PENDING';
    task.updated_us := now_us;
    task.put_us := now_us;
    task.request_token := version;
    task.put_token := 'c' || version;
    task.attempts := 0;
    task.payload := payload;
    task.priority := priority;
    task.task_group := "group";
    task.kind := kind;
    task.trace_context := trace_context;
    task.value_millionths := round(value * 1e6);
    task.decay := nullif(decay, {step});
    task.cost_millionths := round(cost * 1e6);
    -- The age counts from when the task is due.
    task.first_due_us := CASE
        WHEN at IS NOT NULL THEN (at_seconds * 1000000)::bigint
        WHEN delay_seconds > 0 THEN now_us + round(delay_seconds * 1e6)::bigint
    END;
    task.created_us := coalesce(task.first_due_us, now_us);
    task.not_before_us := CASE WHEN task.first_due_us > now_us THEN task.first_due_us END;
    max_age_seconds := coalesce(max_age_seconds, queue_max_age_seconds);
    task.deadline_us := coalesce(task.created_us + round(max_age_seconds * 1e6)::bigint, {never_us});
    task.expires := ceil(
        task.deadline_us * 0.000001 + coalesce((options ->> 'retention_seconds')::numeric, {retention_seconds})
    );
    IF options ->> 'order' IN ({by_value}, {by_deadline}) THEN
        IF options ->> 'order' = {by_deadline} THEN
            value := NULL;
            decay := NULL;
        END IF;
        -- `ValueClass.code`: the band of the value, the power of two of the max age, and the decay.
        task.line_class := lpad(to_hex(
            floor(round({bands} * log(2, coalesce(value, {default_value})::numeric), 12))::integer + {band_offset}
        ), 2, '0') || substr({age_digits}, 1 + least(length({age_digits}) - 1, {age_offset} + floor(round(log(
            2, greatest(coalesce(max_age_seconds, {max_seconds})::numeric, 2.0 ^ -{age_offset})
        ), 12)))::integer, 1) || left(coalesce(decay, {step}), 1);
    END IF;
    IF task.not_before_us IS NOT NULL THEN
        task.agenda := 'due';
        task.due_us := task.not_before_us;
    ELSIF task.deadline_us > now_us THEN
        -- `line_key`
        task.line := task.priority || CASE
            WHEN task.line_class IS NOT NULL THEN chr(1) || task.line_class
            WHEN starts_with("group", chr(1)) THEN chr(1)
            ELSE ''
        END || coalesce("group", '');
        task.agenda := 'stale';
        task.due_us := task.deadline_us;
    ELSE
        task.agenda := 'over';
        task.due_us := task.expires * 1000000;
    END IF;

    task_id := task.task_id;
    LOOP
        outcome := 'CREATED';
        INSERT INTO {tasks} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
        outcome := 'DUPLICATE';
        EXIT WHEN on_conflict IS NULL;
        SELECT * INTO old FROM {tasks} AS stored
        WHERE stored.task_id = task.task_id AND stored.queue = of_queue FOR UPDATE;
        IF NOT FOUND THEN  -- it was deleted a moment ago, or is hidden
            tries := tries + 1;
            CONTINUE WHEN tries < 10;
            RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format(
                'task_id: %L is taken by a task that you cannot see; grant SELECT and UPDATE by the policies of the table',
                task_id
            );
        END IF;
        -- `freshq.model.lifecycle.put_over`
        IF NOT (old.status = 'TAKEN' OR (old.status = 'PENDING' AND old.deadline_us > now_us)) THEN
            outcome := 'CREATED';
        ELSIF on_conflict = 'update' AND (old.successor_record IS NOT NULL OR (
            nullif(greatest(old.not_before_us, now_us), now_us), old.priority, old.task_group, old.kind,
            coalesce(old.value_millionths, 1e6 * {default_value}), coalesce(old.decay, {step}),
            coalesce(old.cost_millionths, 1e6 * {default_cost})
        ) IS DISTINCT FROM (
            task.not_before_us, task.priority, task.task_group, task.kind,
            coalesce(task.value_millionths, 1e6 * {default_value}), coalesce(task.decay, {step}),
            coalesce(task.cost_millionths, 1e6 * {default_cost})
        ) OR NOT CASE
            WHEN old.payload = task.payload THEN true
            WHEN old.payload || task.payload LIKE '%\\u0000%' THEN false
            ELSE old.payload::jsonb = task.payload::jsonb
        END) THEN
            outcome := 'UPDATED';
        END IF;
        EXIT WHEN outcome = 'DUPLICATE';
        task.put_token := left(lower(left(outcome, 1)) || version || old.put_token, {remembered_chars});
        UPDATE {tasks} AS stored SET ({columns}) = ROW({values}), {cleared}
        WHERE stored.task_id = task.task_id AND stored.queue = of_queue;
        EXIT;
    END LOOP;
    IF outcome <> 'DUPLICATE' THEN
        PERFORM pg_notify({channel}, format({announcement}, of_queue));
    END IF;
END
$freshq$

-- name: put_json
-- The same for the other types of a payload: json and jsonb.
CREATE OR REPLACE FUNCTION {function}(queue text, payload {json}, {parameters})
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $freshq$
    -- {version}
BEGIN
    SELECT put.task_id, put.outcome INTO task_id, outcome FROM {function}(
        queue, payload::text, task_id, priority, delay_seconds, at, max_age_seconds, "group", kind, value, decay,
        trace_context, on_conflict, cost
    ) AS put;
END
$freshq$
