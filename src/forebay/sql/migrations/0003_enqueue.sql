-- Enqueue: the public contract for producers, in any language.

-- The lane of (queue, priority, audience): a pure function, so that an enqueue needs no registry to find it. Its number is
-- even, as are those of all lanes but those of limit keys.
create function forebay._lane_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql immutable
as $$ select hashtextextended((p_queue || '/' || p_priority::text || ('/' || p_audience::text)) collate "C", 0) & -2 $$;


-- One of the public lanes of an unordered queue. Part 0 is the lane the queue has had before.
create function forebay._part_id(p_queue text, p_priority integer, p_part integer) returns bigint
language sql immutable
as $$
    select case p_part when 0 then forebay._lane_id(p_queue, p_priority, 0)
                       else hashtextextended((p_queue || '/' || p_priority::text || '/0/' || p_part::text) collate "C", 0) & -2 end
$$;


-- The lane of jobs with ordering keys for (queue, priority, audience).
create function forebay._keyed_lane_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql immutable
as $$
    select hashtextextended((p_queue || '/' || p_priority::text || '/' || p_audience::text || '/key') collate "C", 0) & -2
$$;


-- The lane of a limit key's jobs for (queue, priority, audience). The upper 16 bits are the queue's, and it is odd: so an
-- index finds what came to all such lanes of a queue.
create function forebay._limited_lane_id(p_queue text, p_priority integer, p_audience bigint, p_limit_key text) returns bigint
language sql immutable
as $$
    select (hashtextextended(p_queue collate "C", 0) << 48) | 1
         | (hashtextextended((p_queue || '/' || p_priority::text || '/' || p_audience::text || '//' || p_limit_key) collate "C", 0)
            & 281474976710654)
$$;


-- The desk of (queue, priority, audience): where claims ask for jobs of any limit key.
create function forebay._desk_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql immutable
as $$
    select hashtextextended((p_queue || '/' || p_priority::text || '/' || p_audience::text || '/desk') collate "C", 0) & -2
$$;


-- Note a lane in the registry when no row of it is visible; returns it.
--
-- A committed job's lane is always visible to whoever sees the job: the row seen here, or written
-- here, belongs to a committed transaction or to the job's own. Never waits: no unique key.
create function forebay._note(
    p_lane bigint, p_queue text, p_priority integer, p_audience bigint, p_part integer, p_limit_key text default null)
returns bigint
language plpgsql volatile
as $$
begin
    if not exists (select from forebay.lane l where l.lane = p_lane) then
        insert into forebay.lane (lane, queue, priority, audience, part, noted_at, limit_key)
        values (p_lane, p_queue, p_priority, p_audience, p_part, forebay._now(), p_limit_key);
    end if;
    return p_lane;
end
$$;


-- The lane of (queue, priority, audience), noted in the registry.
create function forebay._note_lane(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql volatile
as $$
    select forebay._note(forebay._lane_id(p_queue, p_priority, p_audience), p_queue, p_priority, p_audience, 0)
$$;


-- The lane of jobs with ordering keys for (queue, priority, audience), noted in the registry.
create function forebay._note_keyed_lane(p_queue text, p_priority integer, p_audience bigint) returns bigint
language plpgsql volatile
as $$
begin
    if pg_sequence_last_value('forebay.key_seq') is null then
        perform nextval('forebay.key_seq');
    end if;
    return forebay._note(forebay._keyed_lane_id(p_queue, p_priority, p_audience), p_queue, p_priority, p_audience, -1);
end
$$;


-- The lane of a limit key's jobs for (queue, priority, audience), noted in the registry, and its desk.
create function forebay._note_limited_lane(p_queue text, p_priority integer, p_audience bigint, p_limit_key text) returns bigint
language plpgsql volatile
as $$
declare
    v_lane constant bigint := forebay._limited_lane_id(p_queue, p_priority, p_audience, p_limit_key);
begin
    if not exists (select from forebay.lane l where l.lane = v_lane) then
        if pg_sequence_last_value('forebay.gate_seq') is null then
            perform nextval('forebay.gate_seq');
        end if;
        perform forebay._note(forebay._desk_id(p_queue, p_priority, p_audience), p_queue, p_priority, p_audience, 1001);
        perform forebay._note(v_lane, p_queue, p_priority, p_audience, 1000, p_limit_key);
    end if;
    return v_lane;
end
$$;


-- The lane in which a group's job goes on, noted in the registry.
create function forebay._note_private_lane(
    p_queue text, p_priority integer, p_audience bigint, p_ordering_key text, p_limit_key text)
returns bigint
language sql volatile
as $$
    select case when p_ordering_key is not null then forebay._note_keyed_lane(p_queue, p_priority, p_audience)
                when p_limit_key is not null then forebay._note_limited_lane(p_queue, p_priority, p_audience, p_limit_key)
                else forebay._note_lane(p_queue, p_priority, p_audience) end
$$;


-- Over how many public lanes of each priority the jobs of a queue are spread; 1 where their order is kept.
create function forebay._spread_of(p_queue text) returns integer
language sql stable
as $$ select coalesce((select s.lanes from forebay.spread s where s.queue = p_queue), 1) $$;


-- A public lane for one job, noted in the registry: any of an unordered queue's.
create function forebay._pick_lane(p_queue text, p_priority integer) returns bigint
language plpgsql volatile
as $$
declare
    v_part integer := floor(random() * forebay._spread_of(p_queue));
begin
    return forebay._note(forebay._part_id(p_queue, p_priority, v_part), p_queue, p_priority, 0, v_part);
end
$$;


-- Over how many public lanes the jobs of some queues are spread, by queue; null: of no queue.
create function forebay._spreads(p_queues text[]) returns jsonb
language sql volatile
as $$
    select case when pg_sequence_last_value('forebay.spread_seq') is not null then
        (select jsonb_object_agg(s.queue, s.lanes) from forebay.spread s where s.queue = any (p_queues)) end
$$;


-- Which of so many public lanes the job of a place goes to.
create function forebay._dealt_lane(p_queue text, p_priority integer, p_place bigint, p_spreads jsonb) returns bigint
language sql immutable
as $$
    select case when p_spreads is null then forebay._lane_id(p_queue, p_priority, 0)
                else forebay._part_id(p_queue, p_priority, (p_place % coalesce((p_spreads ->> p_queue)::integer, 1))::integer) end
$$;


-- The public lanes for many jobs, noted in the registry: one, or all of an unordered queue's.
--
-- The spreads are what the caller deals the jobs out by. Asked for again, they may have changed, and jobs would lie in lanes that
-- nobody noted.
create function forebay._note_lanes(p_queue text, p_priority integer, p_spreads jsonb) returns bigint[]
language sql volatile
as $$
    select array(
        select forebay._note(forebay._part_id(p_queue, p_priority, part), p_queue, p_priority, 0, part)
        from generate_series(0, coalesce((p_spreads ->> p_queue)::integer, 1) - 1) part order by part)
$$;


-- The register that may name a lane.
create function forebay._lane_register(p_lane bigint) returns regclass
language sql stable
as $$
    select (array[
        'forebay.known_0', 'forebay.known_1', 'forebay.known_2', 'forebay.known_3', 'forebay.known_4', 'forebay.known_5', 'forebay.known_6', 'forebay.known_7',
        'forebay.known_8', 'forebay.known_9', 'forebay.known_10', 'forebay.known_11', 'forebay.known_12', 'forebay.known_13', 'forebay.known_14', 'forebay.known_15']::regclass[])[((p_lane >> 1) & 15) + 1]
$$;


-- What stands in the register of a lane that is known: another number for each lane, each start of the server and each file of
-- the registry. So a register that was dumped with a later state than the registry, or outlived it, names no lane.
create function forebay._token(p_lane bigint) returns bigint
language sql stable
as $$
    select p_lane # hashfloat8extended(date_part('epoch', pg_postmaster_start_time()), pg_relation_filenode('forebay.lane')::bigint)
$$;


-- Is the lane's row in the registry committed, as far as its register tells?
--
-- Invariant "known is committed": a register names a lane only after its row was. Read and set outside transactions.
create function forebay._is_known(p_lane bigint) returns boolean
language sql volatile
as $$
    select coalesce(pg_sequence_last_value(forebay._lane_register(p_lane)) = forebay._token(p_lane), false)
$$;


-- The public lane for one job, noted in the registry; where many jobs go, its register comes to know it.
--
-- Errors: JQ001 the queue's name.
create function forebay._find_lane(p_queue text, p_priority integer, p_ordering_key text, p_limit_key text) returns bigint
language plpgsql volatile
set enable_seqscan = off
set jit = off
as $$
declare
    v_lane      constant bigint := forebay._lane_id(p_queue, p_priority, 0);
    v_committed boolean;
begin
    if num_nonnulls(p_ordering_key, p_limit_key, pg_sequence_last_value('forebay.spread_seq')) = 0 then
        -- Positive is the age of a row of another transaction, which is committed, since it is seen; not of the own transaction's.
        select bool_or(age(l.xmin) > 0) into v_committed from forebay.lane l where l.lane = v_lane and l.queue = p_queue;
        if v_committed is not null then
            -- Seldom, so that two lanes with one register do not take it from each other at every job.
            perform setval(forebay._lane_register(v_lane), forebay._token(v_lane)) where v_committed and random() < 0.03;
            return v_lane;
        end if;
    end if;
    if p_queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' is not true then
        raise exception using errcode = 'JQ001',
            message = forebay._job_problem('_', '{}', p_queue, p_priority, null, null, null, null, null, null, null, null),
            hint = 'Nothing was enqueued. See the function forebay.enqueue in the reference.';
    end if;
    return case when p_ordering_key is not null then forebay._note_keyed_lane(p_queue, p_priority, 0)
                when p_limit_key is not null then forebay._note_limited_lane(p_queue, p_priority, 0, p_limit_key)
                when pg_sequence_last_value('forebay.spread_seq') is not null then forebay._pick_lane(p_queue, p_priority)
                else forebay._note_lane(p_queue, p_priority, 0) end;
end
$$;


-- The bell of a queue.
create function forebay._bell(p_queue text) returns regclass
language sql stable
as $$
    select (array[
        'forebay.bell_0', 'forebay.bell_1', 'forebay.bell_2', 'forebay.bell_3', 'forebay.bell_4', 'forebay.bell_5', 'forebay.bell_6', 'forebay.bell_7',
        'forebay.bell_8', 'forebay.bell_9', 'forebay.bell_10', 'forebay.bell_11', 'forebay.bell_12', 'forebay.bell_13', 'forebay.bell_14', 'forebay.bell_15']::regclass[])[(hashtext(p_queue) & 15) + 1]
$$;


-- Does somebody sleep who wants to be woken for the queue?
create function forebay._is_awaited(p_queue text) returns boolean
language sql volatile
as $$
    select coalesce(pg_sequence_last_value(forebay._bell(p_queue)), 0) > date_part('epoch', clock_timestamp()) * 1000
$$;


-- May a transaction notify, if somebody waits for it?
--
-- Only while the notification queue is nearly empty: when it is full, every transaction that notifies fails. Not
-- where transactions can be prepared: one that has notified cannot be, and whether somebody waits must not decide
-- over a producer's commit. The parameter forebay.bell, on or off, overrides that for a server, a database, a role or a
-- session.
create function forebay._may_notify() returns boolean
language sql volatile
as $$
    select coalesce(nullif(current_setting('forebay.bell', true), '') = 'on',
                    current_setting('max_prepared_transactions') = '0')
           and pg_notification_queue_usage() < 0.25
$$;


-- Wake a sleeping worker of the queue when this transaction commits.
--
-- Only while somebody sleeps: NOTIFY takes a database-wide lock at commit. The bell shortens the wait and guarantees
-- nothing; workers poll.
create function forebay._ring(p_queue text) returns void
language plpgsql volatile
as $$
begin
    if forebay._is_awaited(p_queue) and forebay._may_notify() then
        perform pg_notify('forebay_bell', p_queue);
    end if;
end
$$;


-- What is wrong with one job's options, or null. One line, lower case, with the value.
create function forebay._job_problem(
    p_kind text, p_args jsonb, p_queue text, p_priority integer, p_delay interval, p_run_at timestamptz,
    p_expires_at timestamptz, p_max_attempts integer, p_tag text, p_correlation_id text, p_headers jsonb,
    p_ordering_key text, p_limit_key text default null)
returns text
language plpgsql stable
as $$
declare
    v_name constant text := '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$';
    v_starts timestamptz;
begin
    if p_kind is null or p_kind !~ v_name then
        return format('kind %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(p_kind, 40)), 'null'));
    elsif p_queue is null or p_queue !~ v_name then
        return format('queue %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(p_queue, 40)), 'null'));
    elsif p_args is null or jsonb_typeof(p_args) <> 'object' then
        return format('args must be a JSON object, not %s', coalesce(jsonb_typeof(p_args), 'null'));
    elsif p_priority is null or p_priority not between -32768 and 32767 then
        return format('priority %s is outside -32768 to 32767', coalesce(p_priority::text, 'null'));
    elsif p_delay is not null and p_run_at is not null then
        return 'delay and run_at exclude each other';
    elsif p_delay is not null and (p_delay < interval '0' or p_delay > interval '100 years') then
        return format('delay %s is outside 0 to 100 years', p_delay);
    elsif p_run_at is not null and not isfinite(p_run_at) then
        return format('run_at %s is not a finite time', p_run_at);
    elsif p_run_at is not null and p_run_at > forebay._now() + interval '100 years' then
        return format('run_at %s is more than 100 years away', p_run_at);
    elsif p_expires_at is not null and (not isfinite(p_expires_at) or p_expires_at > forebay._now() + interval '200 years') then
        return format('expires_at %s is not a time within 200 years', p_expires_at);
    elsif p_max_attempts is not null and p_max_attempts not between 1 and 10000 then
        return format('max_attempts %s is outside 1 to 10000', p_max_attempts);
    elsif p_tag is not null and (length(p_tag) not between 1 and 200 or p_tag ~ '[\x01-\x1f\x7f]') then
        return format('tag %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_tag, 40)));
    elsif p_correlation_id is not null and (length(p_correlation_id) not between 1 and 200 or p_correlation_id ~ '[\x01-\x1f\x7f]') then
        return format('correlation_id %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_correlation_id, 40)));
    elsif p_ordering_key is not null and (length(p_ordering_key) not between 1 and 200 or p_ordering_key ~ '[\x01-\x1f\x7f]') then
        return format('ordering_key %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_ordering_key, 40)));
    elsif p_limit_key is not null and (length(p_limit_key) not between 1 and 200 or p_limit_key ~ '[\x01-\x1f\x7f]') then
        return format('limit_key %s must have 1 to 200 characters, none of them a control character', quote_literal(left(p_limit_key, 40)));
    elsif p_limit_key is not null and p_ordering_key is not null then
        return 'ordering_key and limit_key exclude each other';
    end if;
    if p_headers is not null then
        if jsonb_typeof(p_headers) <> 'object' then
            return format('headers must be a JSON object of strings, not %s', jsonb_typeof(p_headers));
        elsif octet_length(p_headers::text) > 8192 then
            return format('headers take %s bytes, the limit is 8192', octet_length(p_headers::text));
        elsif (select count(*) from jsonb_object_keys(p_headers)) > 64 then
            return 'headers have more than 64 entries';
        elsif exists (select from jsonb_each(p_headers) h where jsonb_typeof(h.value) <> 'string') then
            return 'headers must have string values';
        end if;
    end if;
    if p_expires_at is not null then
        v_starts := coalesce(p_run_at, forebay._now() + coalesce(p_delay, interval '0'));
        if p_expires_at <= v_starts then
            return format('expires_at %s is not after the job''s start %s', p_expires_at, v_starts);
        end if;
    end if;
    return null;
end
$$;


-- Refuse arguments that are too large, too deep, or hold a number that clients do not read. A value of at most 500
-- bytes and 500 characters is none of these: a level takes 8 bytes. Both are asked, since a number like 1e100000
-- takes a few bytes and a hundred thousand characters.
--
-- Errors: JQ001 a number of more than 4300 digits, which Python refuses to read; JQ002 too large, JQ003 too deep.
create function forebay._check_args(p_args jsonb, p_index bigint) returns void
language plpgsql stable
as $$
declare
    v_bytes_max bigint := forebay._setting_value('args_bytes_max');
    v_depth_max bigint := forebay._setting_value('args_depth_max');
    v_bytes     bigint := octet_length(p_args::text);
    v_where     text := case when p_index is null then '' else format('job %s: ', p_index) end;
begin
    if v_bytes > v_bytes_max then
        raise exception using
            errcode = 'JQ002',
            message = format('%sargs take %s bytes, the limit is %s', v_where, v_bytes, v_bytes_max),
            detail = jsonb_strip_nulls(jsonb_build_object('index', p_index, 'bytes', v_bytes, 'limit', v_bytes_max)),
            hint = 'Store the data in a table of yours and pass its key.';
    end if;
    if jsonb_path_exists(p_args, format('strict $.**{%s}', v_depth_max + 1)::jsonpath) then
        raise exception using
            errcode = 'JQ003',
            message = format('%sargs are nested deeper than %s levels', v_where, v_depth_max),
            detail = jsonb_strip_nulls(jsonb_build_object('index', p_index, 'depth', v_depth_max + 1, 'limit', v_depth_max)),
            hint = 'Pass flat arguments, or the nested document as a string.';
    end if;
    if v_bytes > 4300 and jsonb_path_exists(
           p_args, 'strict $.** ? (@.type() == "number" && (@ >= 1e4300 || @ <= -1e4300))') then
        raise exception using
            errcode = 'JQ001', column = 'args',
            message = format('%sargs hold a number of more than 4300 digits', v_where),
            detail = jsonb_strip_nulls(jsonb_build_object('index', p_index, 'field', 'args')),
            hint = 'Pass it as a string.';
    end if;
end
$$;


-- Enqueue one job in the caller's transaction; returns its id.
--
-- Invariant "commit is the gate": the job exists exactly if this transaction commits.
--
-- Parameters:
--   kind            which handler
--   args            JSON object, the handler's keyword arguments
--   queue           where it waits
--   priority        -32768 to 32767, lower first
--   delay, run_at   earliest start; at most one of them; null: at once
--   expires_at      not started at or after this; null: 30 days after the enqueue or its start
--   max_attempts    1 to 10000; null: what the handler's retry policy says
--   tag             where it came from
--   correlation_id  carried through retries, dead letters and redrives
--   headers         JSON object of strings
--   ordering_key    jobs of the queue with the same key run one at a time, in the order they were enqueued
--   unique_as       a unique key and what it means, as forebay.enqueue_unique says; the id may be that of an existing job
--   limit_key       jobs of the queue with the same key share its limits per key, and all keys share the queue evenly
-- Errors: JQ001 a bad option, JQ002 and JQ003 args too large or too deep; with unique_as also JQ004 and JQ005; 53400 the
--   queue is full. Nothing is written then.
-- Locks: none that another enqueue, a claim or maintenance waits for; with unique_as the key.
create function forebay.enqueue(
    kind text, args jsonb default '{}', queue text default 'default', priority integer default 100,
    delay interval default null, run_at timestamptz default null, expires_at timestamptz default null,
    max_attempts integer default null, tag text default null, correlation_id text default null,
    headers jsonb default null, unique_as jsonb default null, ordering_key text default null, limit_key text default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now     timestamptz := forebay._now();
    v_start   timestamptz;
    v_problem text;
    v_lane    bigint;
    v_job_id  bigint;
begin
    -- A good, plain job passes on one expression, since each costs more than what it asks. A pattern without a bound is matched
    -- in a fraction of the time. The queue's name is looked at when its lane is not known.
    -- 124 characters make at most 62 levels. The concatenation makes of a value that comes compressed out of a table what it is
    -- in full.
    if (enqueue.kind ~ '^[A-Za-z_][A-Za-z0-9_.:-]*$' and length(enqueue.kind) <= 128
        and jsonb_typeof(enqueue.args) = 'object'
        and enqueue.priority between -32768 and 32767
        and (octet_length(enqueue.args::text) <= 124
             or pg_column_size(enqueue.args || '{}') <= 500 and octet_length(enqueue.args::text) <= 500)
        and num_nonnulls(enqueue.delay, enqueue.run_at, enqueue.expires_at, enqueue.max_attempts, enqueue.tag,
                         enqueue.correlation_id, enqueue.headers, enqueue.unique_as, enqueue.ordering_key, enqueue.limit_key) = 0
       ) is not true then
        if enqueue.unique_as is not null then
            return (forebay.enqueue_unique(
                enqueue.kind, enqueue.args, enqueue.unique_as, enqueue.queue, enqueue.priority, enqueue.delay, enqueue.run_at,
                enqueue.expires_at, enqueue.max_attempts, enqueue.tag, enqueue.correlation_id, enqueue.headers,
                enqueue.ordering_key, enqueue.limit_key)).job_id;
        end if;
        v_problem := forebay._job_problem(
            enqueue.kind, enqueue.args, enqueue.queue, enqueue.priority, enqueue.delay, enqueue.run_at,
            enqueue.expires_at, enqueue.max_attempts, enqueue.tag, enqueue.correlation_id, enqueue.headers,
            enqueue.ordering_key, enqueue.limit_key);
        if v_problem is not null then
            raise exception using errcode = 'JQ001', message = v_problem,
                hint = 'Nothing was enqueued. See the function forebay.enqueue in the reference.';
        end if;
        if pg_column_size(enqueue.args || '{}') > 500 or octet_length(enqueue.args::text) > 500 then
            perform forebay._check_args(enqueue.args, null);
        end if;
        v_start := coalesce(enqueue.run_at, v_now + enqueue.delay);
    end if;

    v_lane := forebay._lane_id(enqueue.queue, enqueue.priority, 0);
    if num_nonnulls(enqueue.ordering_key, enqueue.limit_key, pg_sequence_last_value('forebay.spread_seq'),
                    pg_sequence_last_value('forebay.limit_seq')) > 0
       or not forebay._is_known(v_lane) then
        v_lane := forebay._find_lane(enqueue.queue, enqueue.priority, enqueue.ordering_key, enqueue.limit_key);
        if pg_sequence_last_value('forebay.limit_seq') is not null and (v_start > v_now) is not true then
            perform forebay._require_room(enqueue.queue, 1);
        end if;
    end if;

    if v_start > v_now then
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key)
        values (
            v_start, v_lane, v_now, nextval('forebay.log_seq'),
            coalesce(enqueue.expires_at, v_start + interval '30 days'), enqueue.max_attempts,
            enqueue.kind, enqueue.args, enqueue.tag, enqueue.correlation_id, enqueue.headers, enqueue.ordering_key)
        returning job_id into v_job_id;
        return v_job_id;
    end if;

    insert into forebay.log (
        lane, enqueued_at, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key)
    values (
        v_lane, v_now, enqueue.expires_at, enqueue.max_attempts,
        enqueue.kind, enqueue.args, enqueue.tag, enqueue.correlation_id, enqueue.headers, enqueue.ordering_key);
    -- The number it drew. RETURNING would cost more: it is made anew for the segment each time.
    v_job_id := currval('forebay.log_seq');
    if forebay._is_awaited(enqueue.queue) then
        perform forebay._ring(enqueue.queue);
    end if;
    return v_job_id;
end
$$;


-- One job of a bulk enqueue, decoded.
create type forebay._job_input as (
    kind text, args jsonb, queue text, priority integer, delay double precision, run_at timestamptz,
    expires_at timestamptz, max_attempts integer, tag text, correlation_id text, headers jsonb, ordering_key text, limit_key text);


-- Refuse the first bad job of a bulk enqueue by its index. Good jobs that are plain, but for an ordering key, pass on one expression.
--
-- Errors: JQ001, JQ002, JQ003.
create function forebay._check_jobs(p_jobs forebay._job_input[]) returns void
language plpgsql stable
as $$
declare
    v_name constant text := '^[A-Za-z_][A-Za-z0-9_.:-]*$';  -- A bound in the pattern would take several times as long.
    v_odd     record;
    v_problem text;
begin
    for v_odd in
        select u.*
        from unnest(p_jobs) with ordinality u
        where (u.kind ~ v_name and length(u.kind) <= 128 and u.queue ~ v_name and length(u.queue) <= 128
               and jsonb_typeof(u.args) = 'object'
               and u.priority between -32768 and 32767
               and pg_column_size(u.args) <= 500 and octet_length(u.args::text) <= 500
               and num_nonnulls(u.delay, u.run_at, u.expires_at, u.max_attempts, u.tag, u.correlation_id, u.headers, u.limit_key) = 0
               and (u.ordering_key is null or length(u.ordering_key) between 1 and 200 and u.ordering_key !~ '[\x01-\x1f\x7f]')
              ) is not true
        order by u.ordinality
    loop
        if v_odd.delay is not null and (v_odd.delay < 0 or v_odd.delay > 3155760000 or v_odd.delay = 'NaN') then
            v_problem := format('delay %s is outside 0 to 100 years', v_odd.delay);
        else
            v_problem := forebay._job_problem(
                v_odd.kind, v_odd.args, v_odd.queue, v_odd.priority, make_interval(secs => v_odd.delay), v_odd.run_at,
                v_odd.expires_at, v_odd.max_attempts, v_odd.tag, v_odd.correlation_id, v_odd.headers, v_odd.ordering_key,
                v_odd.limit_key);
        end if;
        if v_problem is not null then
            raise exception using errcode = 'JQ001',
                message = format('job %s: %s', v_odd.ordinality - 1, v_problem),
                detail = jsonb_build_object('index', v_odd.ordinality - 1),
                hint = 'Nothing was enqueued: a bulk call is all or none.';
        end if;
        if pg_column_size(v_odd.args) > 500 or octet_length(v_odd.args::text) > 500 then
            perform forebay._check_args(v_odd.args, v_odd.ordinality - 1);
        end if;
    end loop;
end
$$;


-- Write checked jobs; returns their ids in input order.
create function forebay._enqueue_jobs(p_jobs forebay._job_input[]) returns bigint[]
language plpgsql volatile
as $$
declare
    v_now      timestamptz := forebay._now();
    v_ready    bigint[];
    v_deferred bigint[];
    v_target   record;
    v_spreads  constant jsonb := forebay._spreads(array(select distinct u.queue from unnest(p_jobs) u));
begin
    for v_target in
        select distinct u.queue, u.priority, u.ordering_key is not null as is_keyed, u.limit_key from unnest(p_jobs) u
    loop
        if v_target.is_keyed then
            perform forebay._note_keyed_lane(v_target.queue, v_target.priority, 0);
        elsif v_target.limit_key is not null then
            perform forebay._note_limited_lane(v_target.queue, v_target.priority, 0, v_target.limit_key);
        else
            perform forebay._note_lanes(v_target.queue, v_target.priority, v_spreads);
        end if;
        perform forebay._ring(v_target.queue);
    end loop;
    if pg_sequence_last_value('forebay.limit_seq') is not null then
        perform forebay._require_room(q.queue, q.more)
        from (select u.queue, count(*) as more from unnest(p_jobs) u
              where coalesce(u.run_at, v_now + make_interval(secs => u.delay), v_now) <= v_now
              group by u.queue) q;
    end if;

    with written as (
        insert into forebay.log (
            lane, enqueued_at, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key)
        select case when u.ordering_key is not null then forebay._keyed_lane_id(u.queue, u.priority, 0)
                    when u.limit_key is not null then forebay._limited_lane_id(u.queue, u.priority, 0, u.limit_key)
                    else forebay._dealt_lane(u.queue, u.priority, u.ordinality, v_spreads) end, v_now, u.expires_at, u.max_attempts,
               u.kind, u.args, u.tag, u.correlation_id, u.headers, u.ordering_key
        from unnest(p_jobs) with ordinality u
        where coalesce(u.run_at, v_now + make_interval(secs => u.delay), v_now) <= v_now
        order by u.ordinality
        returning seq)
    select array_agg(w.seq) into v_ready from written w;

    if coalesce(cardinality(v_ready), 0) = cardinality(p_jobs) then
        return coalesce(v_ready, '{}');
    end if;

    with written as (
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key)
        select d.start,
               case when d.ordering_key is not null then forebay._keyed_lane_id(d.queue, d.priority, 0)
                    when d.limit_key is not null then forebay._limited_lane_id(d.queue, d.priority, 0, d.limit_key)
                    else forebay._dealt_lane(d.queue, d.priority, d.ordinality, v_spreads) end, v_now, nextval('forebay.log_seq'),
               coalesce(d.expires_at, d.start + interval '30 days'), d.max_attempts,
               d.kind, d.args, d.tag, d.correlation_id, d.headers, d.ordering_key
        from (select u.*, coalesce(u.run_at, v_now + make_interval(secs => u.delay)) as start
              from unnest(p_jobs) with ordinality u
              where coalesce(u.run_at, v_now + make_interval(secs => u.delay)) > v_now
              order by u.ordinality) d
        returning job_id)
    select array_agg(w.job_id) into v_deferred from written w;

    -- Both lists are in input order: merge them by what each job was.
    return (
        select array_agg(case when m.is_deferred then v_deferred[m.place] else v_ready[m.place] end order by m.nr)
        from (select c.nr, c.is_deferred, row_number() over (partition by c.is_deferred order by c.nr) as place
              from (select u.ordinality as nr, coalesce(coalesce(u.run_at, v_now + make_interval(secs => u.delay)) > v_now, false) as is_deferred
                    from unnest(p_jobs) with ordinality u
                   ) c) m);
end
$$;


-- Enqueue many jobs in the caller's transaction; returns their ids in input order.
--
-- All or none: one bad job refuses the call, and the message names its index, from 0.
--
-- Parameters: jobs, a JSON array of objects with the keys kind, args, queue, priority, delay
--   (seconds), run_at, expires_at, max_attempts, tag, correlation_id, headers, unique_as, ordering_key, limit_key; all but
--   kind optional.
-- Errors: as forebay.enqueue.
create function forebay.enqueue_many(jobs jsonb) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_keys constant text[] := array['kind', 'args', 'queue', 'priority', 'delay', 'run_at', 'expires_at',
                                    'max_attempts', 'tag', 'correlation_id', 'headers', 'unique_as', 'ordering_key', 'limit_key'];
    v_bad  record;
    v_jobs forebay._job_input[];
begin
    if jobs is null or jsonb_typeof(jobs) <> 'array' then
        raise exception using errcode = 'JQ001',
            message = format('jobs must be a JSON array, not %s', coalesce(jsonb_typeof(jobs), 'null')),
            hint = 'Pass an array of objects, one for each job.';
    end if;

    for v_bad in
        select e.ordinality - 1 as index, e.value as job
        from jsonb_array_elements(jobs) with ordinality e
        where case when jsonb_typeof(e.value) = 'object' then (e.value - v_keys) <> '{}'::jsonb else true end
        limit 1
    loop
        raise exception using errcode = 'JQ001',
            message = case when jsonb_typeof(v_bad.job) <> 'object'
                then format('job %s: must be a JSON object, not %s', v_bad.index, jsonb_typeof(v_bad.job))
                else format('job %s: unknown option %s', v_bad.index,
                            (select k from jsonb_object_keys(v_bad.job - v_keys) k limit 1)) end,
            detail = jsonb_build_object('index', v_bad.index),
            hint = 'Nothing was enqueued. The options are ' || array_to_string(v_keys, ', ') || '.';
    end loop;

    begin
        select array_agg(
            row(r.kind, coalesce(r.args, '{}'), coalesce(r.queue, 'default'), coalesce(r.priority, 100), r.delay,
                r.run_at, r.expires_at, r.max_attempts, r.tag, r.correlation_id, r.headers, r.ordering_key, r.limit_key)::forebay._job_input
            order by r.ordinality)
        into v_jobs
        from rows from (jsonb_to_recordset(jobs) as (
                kind text, args jsonb, queue text, priority integer, delay double precision, run_at timestamptz,
                expires_at timestamptz, max_attempts integer, tag text, correlation_id text, headers jsonb,
                ordering_key text, limit_key text))
             with ordinality r;
    exception when data_exception then
        raise exception using errcode = 'JQ001',
            message = format('an option of a job has the wrong type: %s', sqlerrm),
            hint = 'Nothing was enqueued: a bulk call is all or none.';
    end;
    if v_jobs is null then
        return '{}';
    end if;
    perform forebay._check_jobs(v_jobs);
    if jobs @? '$[*].unique_as ? (@ != null)' then
        if jobs @? '$[*] ? (@.unique_as != null && @.ordering_key != null)' then
            raise exception using errcode = 'JQ001',
                message = 'ordering_key and unique_as exclude each other',
                hint = 'Nothing was enqueued: a bulk call is all or none.';
        end if;
        return forebay._enqueue_mixed(v_jobs, array(
            select nullif(e.value -> 'unique_as', 'null') from jsonb_array_elements(jobs) with ordinality e order by e.ordinality));
    end if;
    return forebay._enqueue_jobs(v_jobs);
end
$$;


-- Enqueue one job of a kind for each element of args; returns how many. For INSERT ... SELECT:
--   select forebay.enqueue_many('reindex', array_agg(jsonb_build_object('id', id))) from document;
--
-- Parameters and errors: as forebay.enqueue; the options are common to all jobs.
create function forebay.enqueue_many(
    kind text, args jsonb[], queue text default 'default', priority integer default 100,
    delay interval default null, run_at timestamptz default null, expires_at timestamptz default null,
    max_attempts integer default null, tag text default null, correlation_id text default null,
    headers jsonb default null, ordering_key text default null, limit_key text default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now     timestamptz := forebay._now();
    v_start   timestamptz := coalesce(enqueue_many.run_at, v_now + enqueue_many.delay);
    v_problem text;
    v_odd     record;
    v_lanes   bigint[];
begin
    if coalesce(cardinality(enqueue_many.args), 0) = 0 then
        return 0;
    end if;
    v_problem := forebay._job_problem(
        enqueue_many.kind, '{}', enqueue_many.queue, enqueue_many.priority, enqueue_many.delay, enqueue_many.run_at,
        enqueue_many.expires_at, enqueue_many.max_attempts, enqueue_many.tag, enqueue_many.correlation_id, enqueue_many.headers,
        enqueue_many.ordering_key, enqueue_many.limit_key);
    for v_odd in
        select a.args, a.nr - 1 as index
        from unnest(enqueue_many.args) with ordinality a (args, nr)
        where v_problem is not null
           or (jsonb_typeof(a.args) = 'object'
               and pg_column_size(a.args) <= 500 and octet_length(a.args::text) <= 500) is not true
        order by a.nr
    loop
        v_problem := coalesce(
            v_problem,
            case when v_odd.args is null or jsonb_typeof(v_odd.args) <> 'object'
                 then format('args must be a JSON object, not %s', coalesce(jsonb_typeof(v_odd.args), 'null')) end);
        if v_problem is not null then
            raise exception using errcode = 'JQ001',
                message = format('job %s: %s', v_odd.index, v_problem),
                detail = jsonb_build_object('index', v_odd.index),
                hint = 'Nothing was enqueued: a bulk call is all or none.';
        end if;
        perform forebay._check_args(v_odd.args, v_odd.index);
    end loop;

    if enqueue_many.ordering_key is not null then
        v_lanes := array[forebay._note_keyed_lane(enqueue_many.queue, enqueue_many.priority, 0)];
    elsif enqueue_many.limit_key is not null then
        v_lanes := array[forebay._note_limited_lane(enqueue_many.queue, enqueue_many.priority, 0, enqueue_many.limit_key)];
    else
        v_lanes := forebay._note_lanes(enqueue_many.queue, enqueue_many.priority, forebay._spreads(array[enqueue_many.queue]));
    end if;
    if v_start > v_now then
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key)
        select v_start, v_lanes[1 + a.nr % cardinality(v_lanes)], v_now, nextval('forebay.log_seq'),
               coalesce(enqueue_many.expires_at, v_start + interval '30 days'), enqueue_many.max_attempts,
               enqueue_many.kind, a.args, enqueue_many.tag, enqueue_many.correlation_id, enqueue_many.headers,
               enqueue_many.ordering_key
        from unnest(enqueue_many.args) with ordinality a (args, nr);
    else
        if pg_sequence_last_value('forebay.limit_seq') is not null then
            perform forebay._require_room(enqueue_many.queue, cardinality(enqueue_many.args));
        end if;
        insert into forebay.log (
            lane, enqueued_at, expires_at, max_attempts, kind, args, tag, correlation_id, headers, ordering_key)
        select v_lanes[1 + a.nr % cardinality(v_lanes)], v_now, enqueue_many.expires_at, enqueue_many.max_attempts,
               enqueue_many.kind, a.args, enqueue_many.tag, enqueue_many.correlation_id, enqueue_many.headers,
               enqueue_many.ordering_key
        from unnest(enqueue_many.args) with ordinality a (args, nr);
        perform forebay._ring(enqueue_many.queue);
    end if;
    return cardinality(enqueue_many.args);
end
$$;
