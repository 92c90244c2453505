-- The function by which SQL puts tasks on MariaDB, in the form of `put.postgresql.sql`.
--
-- MariaDB has no default arguments, so the others come as one JSON object. A variable hides a column of its name, so
-- columns of queries have their table in front.

-- name: json
-- A regular expression of JSON, without lone surrogates. Without the limit, the time that it takes grows with the
-- square of the number of levels.
(*LIMIT_DEPTH=10000)(?sx) \A (?<json> [ \t\n\r]*+ (?:
    (?&text)
    | -?+ (?: 0 | [1-9] [0-9]*+ ) (?: \. [0-9]++ )?+ (?: [eE] [+-]?+ [0-9]++ )?+
    | true | false | null
    | \[ (?: (?&json) (?: , (?&json) )*+ | [ \t\n\r]*+ ) \]
    | \{ (?: (?&member) (?: , (?&member) )*+ | [ \t\n\r]*+ ) \}
) [ \t\n\r]*+ ) \z
(?(DEFINE)
    (?<member> [ \t\n\r]*+ (?&text) [ \t\n\r]*+ : (?&json) )
    (?<text> " (?:
        [^"\\\x00-\x1f]++
        | \\ ["\\/bfnrt]
        | \\u (?! [dD][89a-fA-F] ) [0-9a-fA-F]{4}
        | \\u [dD][89abAB][0-9a-fA-F]{2} \\u [dD][c-fC-F][0-9a-fA-F]{2}
    )*+ " )
)

-- name: string
-- One of a string in JSON.
"(?:[^"\\]++|\\.)*+"

-- name: large
-- One of a number outside of strings that may be larger than a double.
{string}(*SKIP)(*FAIL)|[0-9]{309,}(\.[0-9]+)?([eE][+]?[0-9]+)?|[0-9]+(\.[0-9]+)?[eE][+]?0*[0-9]{3,}

-- name: put
CREATE OR REPLACE FUNCTION {function}(
    of_queue LONGTEXT CHARSET utf8mb4 COLLATE utf8mb4_bin, of_payload LONGTEXT CHARSET utf8mb4 COLLATE utf8mb4_bin,
    arguments LONGTEXT CHARSET utf8mb4 COLLATE utf8mb4_bin
) RETURNS LONGTEXT CHARSET utf8mb4
MODIFIES SQL DATA SQL SECURITY INVOKER COMMENT '{version}'
BEGIN
    -- UTC has no hour twice; the time of the statement alone would be the same for all its tasks.
    DECLARE now_us BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        + TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6));
    DECLARE new_token CHAR(32) DEFAULT MD5(CONCAT(UUID(), RAND()));
    DECLARE task ROW TYPE OF {row_type};
    DECLARE old ROW TYPE OF {row_type};
    DECLARE new_id CHAR(32) DEFAULT MD5(CONCAT(UUID(), RAND()));
    DECLARE id, line_group, of_kind, of_decay, trace, on_conflict, options, shown, rest, number, refused, problem
        LONGTEXT CHARSET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE level, delay_seconds, at_seconds, max_age_seconds, worth, of_cost, queue_max_age_seconds DOUBLE;
    DECLARE levels INTEGER DEFAULT 0;
    DECLARE outcome VARCHAR(9) DEFAULT 'CREATED';
    DECLARE CONTINUE HANDLER FOR 1062 SET outcome = 'DUPLICATE';

    -- JSON_VALID lets some errors pass, and knows only 32 levels.
    IF of_payload RLIKE {json} THEN
        -- The text that `Queue.put` stores has no space between tokens, and only the escapes that JSON needs. All
        -- others are undone as those of one string, in which control characters stand for what stays.
        BEGIN
            DECLARE CONTINUE HANDLER FOR 4040 SET shown = NULL;  -- more than 32 levels
            SET shown = JSON_COMPACT(of_payload);
        END;
        -- REPLACE takes a time that grows with the square of the length.
        IF INSTR(shown, '\\') AND LENGTH(shown) <= 65536 THEN
            SET shown = REPLACE(REPLACE(REPLACE(shown, '\\\\', CHAR(1)), '\\/', '/'), '\\u', CHAR(2));
            SET shown = REPLACE(REPLACE(REPLACE(shown, CONCAT(CHAR(2), '0022'), '\\"'), CONCAT(CHAR(2), '005c'), CHAR(1)),
                CONCAT(CHAR(2), '005C'), CHAR(1));
            SET shown = REPLACE(REPLACE(REPLACE(shown, CONCAT(CHAR(2), '0008'), '\\b'), CONCAT(CHAR(2), '0009'), '\\t'),
                CONCAT(CHAR(2), '000a'), '\\n');
            SET shown = REPLACE(REPLACE(REPLACE(shown, CONCAT(CHAR(2), '000A'), '\\n'), CONCAT(CHAR(2), '000c'), '\\f'),
                CONCAT(CHAR(2), '000C'), '\\f');
            SET shown = REPLACE(REPLACE(REPLACE(shown, CONCAT(CHAR(2), '000d'), '\\r'), CONCAT(CHAR(2), '000D'), '\\r'),
                CONCAT(CHAR(2), '000'), CONCAT(CHAR(3), '000'));
            SET shown = REPLACE(REPLACE(REPLACE(shown, CONCAT(CHAR(2), '001'), CONCAT(CHAR(3), '001')), '\\', CHAR(4)),
                '"', CHAR(5));
            SET shown = REPLACE(REPLACE(REPLACE(shown, CHAR(1), '\\u0001'), CHAR(2), '\\u'), CHAR(3), '\\u0003');
            SET shown = REPLACE(REPLACE(shown, CHAR(4), '\\u0004'), CHAR(5), '\\u0005');
            SET shown = REPLACE(REPLACE(JSON_UNQUOTE(CONCAT('"', shown, '"')), CHAR(1), '\\\\'), CHAR(3), '\\u');
            SET shown = REPLACE(REPLACE(shown, CHAR(4), '\\'), CHAR(5), '"');
        END IF;
        SET of_payload = COALESCE(shown, of_payload);
        -- Only of deep payloads: each round takes away the innermost level.
        IF shown IS NULL THEN
            SET rest = REGEXP_REPLACE(REGEXP_REPLACE(of_payload, {string}, ''), '[^][{}]+', '');
            SET rest = REPLACE(REPLACE(rest, '{', '['), '}', ']');
            WHILE rest <> '' AND levels <= {max_depth} DO
                SET rest = REPLACE(rest, '[]', ''), levels = levels + 1;
            END WHILE;
        END IF;
        -- Only of numbers outside of strings that may be too large.
        SET rest = of_payload;
        REPEAT
            SET number = REGEXP_SUBSTR(rest, {large});
            IF number RLIKE '[.eE]' AND (number RLIKE '[eE][+]?0*[0-9]{5}' OR number + 0e0 >= {max_float} AND number <> '{max_float}')
                OR number RLIKE '^[0-9]+$' AND LENGTH(number) > {max_digits} THEN
                SET problem = 'payload: not a JSON value (a number is too large); use a string';
            END IF;
            SET rest = SUBSTR(rest, REGEXP_INSTR(rest, {large}) + LENGTH(number));
        UNTIL number = '' OR problem IS NOT NULL END REPEAT;
    ELSE
        SET problem = 'payload: not a JSON value';
    END IF;

    -- The options of the queue: its record, or the earliest note of a put into the new queue.
    SET options = (
        SELECT stored.record FROM {records} AS stored WHERE stored.queue = of_queue AND stored.name = {record}
    );
    IF options IS NULL THEN
        SET options = (
            SELECT JSON_EXTRACT(note.record, '$.options') FROM {records} AS note
            WHERE note.queue = of_queue AND note.name > {note} AND note.name < CONCAT({note}, '~')
            ORDER BY JSON_VALUE(note.record, '$.at') + 0e0 LIMIT 1
        );
    END IF;
    SET queue_max_age_seconds = IF(
        JSON_EXISTS(options, '$.max_age_seconds'), JSON_VALUE(options, '$.max_age_seconds'), {max_age_seconds}
    );

    SET arguments = COALESCE(arguments, '{}');
    SET refused = IF(NOT JSON_VALID(arguments) OR JSON_TYPE(arguments) <> 'OBJECT', 'arguments: must be a JSON object or NULL', (
        SELECT CONCAT(checked.field, ': ', checked.wrong) FROM (
            SELECT given.field, CASE
                WHEN NOT FIND_IN_SET(given.field, {fields}) THEN {unknown}
                WHEN FIND_IN_SET(given.field, {texts}) THEN IF(given.kind IN ('STRING', 'NULL'), NULL, {no_text})
                WHEN given.kind IN ('INTEGER', 'DOUBLE')
                    THEN IF(given.field = 'priority' AND given.kind = 'DOUBLE', {no_whole}, NULL)
                WHEN given.field = 'priority' THEN {no_whole}
                WHEN given.kind <> 'NULL' OR given.field = 'delay_seconds' THEN {no_number}
            END AS wrong
            FROM (
                SELECT named.field, JSON_TYPE(JSON_EXTRACT(arguments, CONCAT('$.', JSON_QUOTE(named.field)))) AS kind
                FROM JSON_TABLE(
                    JSON_KEYS(arguments), '$[*]' COLUMNS (field LONGTEXT CHARSET utf8mb4 PATH '$')
                ) AS named
            ) AS given
        ) AS checked WHERE checked.wrong IS NOT NULL LIMIT 1
    ));
    IF refused IS NULL THEN
        SET id = JSON_VALUE(arguments, '$.task_id'), line_group = JSON_VALUE(arguments, '$.group'),
            of_kind = JSON_VALUE(arguments, '$.kind'), of_decay = JSON_VALUE(arguments, '$.decay'),
            trace = JSON_VALUE(arguments, '$.trace_context'), on_conflict = JSON_VALUE(arguments, '$.on_conflict'),
            level = COALESCE(JSON_VALUE(arguments, '$.priority'), 0),
            delay_seconds = COALESCE(JSON_VALUE(arguments, '$.delay_seconds'), 0),
            at_seconds = JSON_VALUE(arguments, '$.at'), worth = JSON_VALUE(arguments, '$.value'),
            max_age_seconds = JSON_VALUE(arguments, '$.max_age_seconds'), of_cost = JSON_VALUE(arguments, '$.cost');
        -- The first broken rule decides, in the order in which `Queue.put` checks them.
        SET refused = CASE
            WHEN of_queue IS NULL OR of_queue NOT RLIKE {queue_name} THEN {bad_queue}
            WHEN LENGTH(id) = 0 THEN {empty_id}
            WHEN LEFT(id, LENGTH({own_ids})) = {own_ids} THEN CONCAT({own_id}, ', got ', QUOTE(LEFT(id, {max_quoted})))
            WHEN LEFT(id, LENGTH({queue_ids})) = {queue_ids}
                THEN CONCAT({queue_id}, ', got ', QUOTE(LEFT(id, {max_quoted})))
            WHEN LENGTH(id) > {max_id_bytes} THEN REPLACE({long_id}, '%s', LENGTH(id))
            WHEN INSTR(id, CHAR(0)) THEN {nul_id}
            WHEN level < 0 THEN CONCAT({low_priority}, ', got ', level)
            WHEN level > {max_priority} THEN CONCAT({high_priority}, ', got ', level)
            WHEN delay_seconds < 0 THEN CONCAT({low_delay}, ', got ', delay_seconds)
            WHEN delay_seconds > {max_seconds} THEN CONCAT({high_delay}, ', got ', delay_seconds)
            WHEN max_age_seconds <= 0 THEN CONCAT({low_max_age}, ', got ', max_age_seconds)
            WHEN LENGTH(line_group) = 0 THEN {empty_group}
            WHEN LENGTH(line_group) > {max_group_bytes} THEN REPLACE({long_group}, '%s', LENGTH(line_group))
            WHEN INSTR(line_group, CHAR(0)) THEN {nul_group}
            WHEN LENGTH(of_kind) = 0 THEN {empty_kind}
            WHEN LENGTH(of_kind) > {max_group_bytes} THEN REPLACE({long_kind}, '%s', LENGTH(of_kind))
            WHEN INSTR(of_kind, CHAR(0)) THEN {nul_kind}
            WHEN worth < {min_value} THEN CONCAT({low_value}, ', got ', worth)
            WHEN worth > {max_value} THEN CONCAT({high_value}, ', got ', worth)
            WHEN HEX(of_decay) NOT IN (HEX({step}), HEX({linear}))
                THEN CONCAT({bad_decay}, ', got ', QUOTE(LEFT(of_decay, {max_quoted})))
            WHEN at_seconds < 0 THEN CONCAT({low_at}, ', got ', at_seconds)
            WHEN at_seconds > {max_epoch_seconds} THEN CONCAT({high_at}, ', got ', at_seconds)
            WHEN trace NOT RLIKE {traceparent} THEN {bad_traceparent}
            WHEN LENGTH(trace) > {max_trace_bytes} OR trace NOT RLIKE '^[ -~]*\\z' THEN {bad_tracestate}
            WHEN HEX(on_conflict) NOT IN (HEX('ignore'), HEX('update')) THEN {bad_conflict}
            WHEN of_cost < {min_cost} THEN CONCAT({low_cost}, ', got ', of_cost)
            WHEN of_cost > {max_cost} THEN CONCAT({high_cost}, ', got ', of_cost)
            WHEN at_seconds IS NOT NULL AND delay_seconds <> 0 THEN {two_times}
            WHEN of_payload IS NULL THEN 'payload: must not be NULL; the JSON value null is ''null'''
            WHEN problem IS NOT NULL THEN problem
            WHEN levels > {max_depth} THEN {deep_payload}
            WHEN LENGTH(of_payload) > {max_payload_bytes} THEN REPLACE({large_payload}, '%s', LENGTH(of_payload))
            WHEN max_age_seconds > COALESCE(queue_max_age_seconds, {max_seconds}) THEN CONCAT(
                REPLACE({long_max_age}, '%s', COALESCE(queue_max_age_seconds, {max_seconds})), ', got ', max_age_seconds
            )
            WHEN at_seconds > now_us / 1e6 + {max_seconds} THEN CONCAT({late_at}, ', got ', at_seconds)
        END;
    END IF;
    IF refused IS NOT NULL THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = refused;
    END IF;

    -- Whoever puts into a new queue notes its options, here none.
    IF options IS NULL THEN
        INSERT INTO {records} (queue, name, version, record) VALUES (
            of_queue, CONCAT({note}, new_token), new_token, CONCAT('{"at":', now_us / 1e6, ',"options":{}}')
        );
    END IF;

    SET task.task_id = COALESCE(id, CONCAT_WS('-',
        LEFT(new_id, 8), SUBSTR(new_id, 9, 4), CONCAT('4', SUBSTR(new_id, 14, 3)),
        CONCAT(SUBSTR('89ab', 1 + FLOOR(4 * RAND()), 1), SUBSTR(new_id, 18, 3)), RIGHT(new_id, 12)
    ));
    SET task.queue = of_queue, task.status = 'PENDING', task.attempts = 0, task.updated_us = now_us,
        task.put_us = now_us, task.request_token = new_token, task.put_token = CONCAT('c', new_token),
        task.payload = of_payload, task.priority = level, task.task_group = line_group, task.kind = of_kind,
        task.trace_context = trace, task.value_millionths = ROUND(worth * 1e6),
        task.decay = IF(of_decay = {step}, NULL, of_decay), task.cost_millionths = ROUND(of_cost * 1e6);
    -- The age counts from when the task is due.
    SET task.first_due_us = CASE
        WHEN at_seconds IS NOT NULL THEN ROUND(at_seconds * 1e6)
        WHEN delay_seconds > 0 THEN now_us + ROUND(delay_seconds * 1e6)
    END;
    SET task.created_us = COALESCE(task.first_due_us, now_us);
    SET task.not_before_us = IF(task.first_due_us > now_us, task.first_due_us, NULL);
    SET max_age_seconds = COALESCE(max_age_seconds, queue_max_age_seconds);
    SET task.deadline_us = COALESCE(task.created_us + ROUND(max_age_seconds * 1e6), {never_us});
    SET task.expires = CEIL(
        task.deadline_us * 0.000001
        + COALESCE(CAST(JSON_VALUE(options, '$.retention_seconds') AS DECIMAL(30, 6)), {retention_seconds})
    );
    IF JSON_VALUE(options, '$.order') IN ({by_value}, {by_deadline}) THEN
        IF JSON_VALUE(options, '$.order') = {by_deadline} THEN
            SET worth = NULL, of_decay = NULL;
        END IF;
        -- `ValueClass.code`: the band of the value, the power of two of the max age, and the decay.
        SET task.line_class = LOWER(CONCAT(
            LPAD(HEX(FLOOR(ROUND({bands} * LOG2(COALESCE(worth, {default_value})), 12)) + {band_offset}), 2, '0'),
            SUBSTR({age_digits}, 1 + LEAST(LENGTH({age_digits}) - 1, {age_offset} + FLOOR(ROUND(
                LOG2(GREATEST(COALESCE(max_age_seconds, {max_seconds}), POW(2, -{age_offset}))), 12
            ))), 1),
            LEFT(COALESCE(of_decay, {step}), 1)
        ));
    END IF;
    IF task.not_before_us IS NOT NULL THEN
        SET task.agenda = 'due', task.due_us = task.not_before_us;
    ELSEIF task.deadline_us > now_us THEN
        -- `line_key`
        SET task.line = CONCAT(task.priority, CASE
            WHEN task.line_class IS NOT NULL THEN CONCAT(CHAR(1), task.line_class)
            WHEN HEX(LEFT(line_group, 1)) = '01' THEN CHAR(1)
            ELSE ''
        END, COALESCE(line_group, ''));
        SET task.agenda = 'stale', task.due_us = task.deadline_us;
    ELSE
        SET task.agenda = 'over', task.due_us = task.expires * 1000000;
    END IF;

    INSERT INTO {tasks} ({columns}) VALUES ({values});
    IF outcome = 'DUPLICATE' AND on_conflict IS NOT NULL THEN
        SELECT stored.* INTO old FROM {tasks} AS stored
        WHERE stored.task_id = task.task_id AND stored.queue = of_queue FOR UPDATE;
        -- `freshq.model.lifecycle.put_over`
        IF NOT (old.status = 'TAKEN' OR (old.status = 'PENDING' AND old.deadline_us > now_us)) THEN
            SET outcome = 'CREATED';
        ELSEIF on_conflict = 'update' AND NOT (
            old.successor_record IS NULL
            AND NULLIF(GREATEST(COALESCE(old.not_before_us, 0), now_us), now_us) <=> task.not_before_us
            AND old.priority = task.priority AND old.task_group <=> task.task_group AND old.kind <=> task.kind
            AND COALESCE(old.value_millionths, 1e6 * {default_value})
                = COALESCE(task.value_millionths, 1e6 * {default_value})
            AND old.decay <=> task.decay
            AND COALESCE(old.cost_millionths, 1e6 * {default_cost})
                = COALESCE(task.cost_millionths, 1e6 * {default_cost})
            AND (BINARY old.payload = BINARY task.payload OR COALESCE(JSON_EQUALS(old.payload, task.payload), FALSE))
        ) THEN
            SET outcome = 'UPDATED';
        END IF;
        IF outcome <> 'DUPLICATE' THEN
            SET task.put_token = LEFT(
                CONCAT(LOWER(LEFT(outcome, 1)), new_token, old.put_token), {remembered_chars}
            );
            UPDATE {tasks} AS stored SET {assigned}, {cleared}
            WHERE stored.task_id = task.task_id AND stored.queue = of_queue;
        END IF;
    END IF;
    RETURN JSON_OBJECT('task_id', CONVERT(task.task_id USING utf8mb4), 'outcome', outcome);
END
