-- Enqueue: the public contract for producers in any language.
-- grant: producer, worker

-- The public lane for one job, recorded in the registry; a lane that gets many jobs also becomes known to its flag sequence.
--
-- Errors: JQ001 the queue's name, JQ006 another lane has the number.
create function forebay._find_lane(p_queue text, p_priority integer, p_ordering_key text, p_limit_key text) returns bigint
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_lane  constant bigint := forebay._lane_id(p_queue, p_priority, 0);
    v_found record;
begin
    if num_nonnulls(p_ordering_key, p_limit_key, pg_sequence_last_value('forebay.shard_seq')) = 0 then
        v_found := forebay._is_recorded(v_lane, p_queue, p_priority, 0, 'plain', 0);
        if v_found.is_recorded then
            -- Rarely, so that two lanes with one flag sequence do not replace each other at every job. With the horizon that was
            -- read before the row: if lanes were retired since, the value names no lane.
            perform setval(forebay._lane_flag(v_lane), forebay._lane_stamp(v_lane, v_found.horizon))
            where v_found.is_committed and random() < 0.03;
            return v_lane;
        end if;
    end if;
    if p_queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' is not true then
        raise exception using errcode = 'JQ001',
            message = forebay._job_problem(jsonb_populate_record(
                null::forebay._job_input,
                jsonb_build_object('kind', '_', 'args', '{}'::jsonb, 'queue', p_queue, 'priority', p_priority))),
            hint = 'Nothing was enqueued. See the function forebay.enqueue in the reference.';
    end if;
    return case when p_ordering_key is not null then forebay._record_keyed_lane(p_queue, p_priority, 0)
                when p_limit_key is not null then forebay._record_limited_lane(p_queue, p_priority, 0)
                when pg_sequence_last_value('forebay.shard_seq') is not null then forebay._pick_lane(p_queue, p_priority)
                else forebay._record_lane(p_queue, p_priority, 0) end;
end
$$;


-- Enqueue one job; returns its id.
--
-- Parameters:
--   kind            the name of the kind, which selects the handler: letters, digits and `_ . : -`,
--                   at most 128
--   args            a JSON object, the handler's arguments by name; at most `args_bytes_max` bytes
--                   as text and `args_depth_max` levels. SQL cannot check them against the handler
--   queue           the queue's name, with the same rules as `kind`; null: that of the kind, see
--                   forebay.queue_of(), or `default`
--   priority        -32768 to 32767, lower first
--   delay           time from now until the job may start, up to 100 years; negative: now
--   run_at          the earliest start; past times mean now. Not together with `delay`
--   expires_at      the job does not start at or after this time, which must be later than its
--                   earliest start; null: 30 days after the enqueue or the earliest start
--   max_attempts    attempts in all, 1 to 10000; null: the number of the handler's retry policy
--   tag             free text: where the job came from, 1 to 200 characters without control
--                   characters
--   correlation_id  kept through retries, dead letters and redrives; same rules as `tag`
--   headers         a JSON object of strings, at most 64 entries and 8192 bytes
--   unique_as       a unique key and its uniqueness mode, see forebay.enqueue_unique(); the
--                   returned id may be that of an existing job; null: what the kind declares;
--                   `"none"`: none
--   ordering_key    jobs of the queue with the same key run one at a time, in order; same rules as
--                   `tag`; null: what the kind declares with `order_by`
--   limit_key       the job's tenant: jobs of the queue with the same key share its limits per key,
--                   and the keys take turns; same rules as `tag`; null: what the kind declares
--                   with `limit_by`. With `ordering_key` too, both hold
--
-- Example:
--   select forebay.enqueue(
--       'send_welcome', '{"user_id": 42}', queue => 'mail', delay => '1 hour', tag => 'signup');
--
-- Errors: JQ001 a bad option, JQ002 and JQ003 args too large or too deep; with `unique_as` also
--   JQ004, JQ005 and 40001; JQ006 another queue or priority has the same internal number; 53400 the
--   queue is full. After an error nothing is written.
-- Transaction: the caller's. The job exists if, and only if, it commits.
-- Locks: none that another enqueue, a claim or maintenance waits for; for `unique_as` see
--   forebay.enqueue_unique().
-- See: docs/howto/ordering-keys.md, docs/howto/limits.md, docs/howto/limits.md#order-and-limits
--
-- Inside: Invariant "commit decides".
-- pages: 150
create function forebay.enqueue(
    kind text, args jsonb default '{}', queue text default null, priority integer default 100,
    delay interval default null, run_at timestamptz default null, expires_at timestamptz default null,
    {options parameters}, unique_as jsonb default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now     timestamptz;
    v_start   timestamptz;
    v_problem text;
    v_lane    bigint;
    v_job_id  bigint;
begin
    -- A valid, plain job in a known lane passes two expressions, since each expression costs more than the checks in it. A pattern
    -- without a bound is matched in a fraction of the time. The queue's name is checked only if its lane is not known.
    -- 124 characters make at most 62 levels. A queue that is not given is looked up. The concatenation decompresses a value that comes compressed from a table.
    v_lane := case
        when enqueue.kind ~ '^[A-Za-z_][A-Za-z0-9_.:-]*$' and length(enqueue.kind) <= 128
             and jsonb_typeof(enqueue.args) = 'object'
             and enqueue.queue is not null and enqueue.priority between -32768 and 32767
             and (octet_length(enqueue.args::text) <= 124
                  or pg_column_size(enqueue.args || '{}') <= 500 and octet_length(enqueue.args::text) <= 500)
             and num_nonnulls(enqueue.delay, enqueue.run_at, enqueue.expires_at, enqueue.unique_as, {options of enqueue}) = 0
        then forebay._lane_id(enqueue.queue, enqueue.priority, 0) end;

    -- The lowest bit: a queue was sharded, or has had a max_waiting, or a kind has declared keys.
    if (v_lane is not null and pg_sequence_last_value('forebay.lane_secret') & 1 = 0 and forebay._is_known(v_lane)) is not true then
        v_now := forebay._now();
        if pg_sequence_last_value('forebay.kind_keys_seq') is not null then
            select d.* into enqueue.limit_key, enqueue.ordering_key, enqueue.unique_as
            from forebay._declared_keys(
                enqueue.kind, enqueue.args, enqueue.queue, enqueue.limit_key, enqueue.ordering_key, enqueue.unique_as) d;
            v_lane := case when num_nonnulls(enqueue.limit_key, enqueue.ordering_key, enqueue.unique_as) = 0 then v_lane end;
        end if;
        if v_lane is null then
            enqueue.delay := forebay._delay_from_now(enqueue.delay);
            enqueue.queue := coalesce(enqueue.queue, forebay.queue_of(enqueue.kind), 'default');
            if nullif(enqueue.unique_as, '"none"') is not null then
                return (forebay.enqueue_unique(
                    enqueue.kind, enqueue.args, enqueue.unique_as, enqueue.queue, enqueue.priority, enqueue.delay, enqueue.run_at,
                    enqueue.expires_at, {options passed of enqueue})).job_id;
            end if;
            v_problem := forebay._job_problem(
                row(enqueue.queue, enqueue.priority, null, enqueue.run_at, enqueue.expires_at, {job of enqueue})::forebay._job_input,
                enqueue.delay);
            if v_problem is not null then
                raise exception using errcode = 'JQ001', message = v_problem,
                    hint = 'Nothing was enqueued. See the function forebay.enqueue in the reference.';
            end if;
            if pg_column_size(enqueue.args || '{}') > 500 or octet_length(enqueue.args::text) > 500 then
                perform forebay._check_args(enqueue.args, null);
            end if;
            v_start := coalesce(enqueue.run_at, v_now + enqueue.delay);
            v_lane := forebay._lane_id(enqueue.queue, enqueue.priority, 0);
        end if;
        if (num_nonnulls(enqueue.ordering_key, enqueue.limit_key) = 0
            and pg_sequence_last_value('forebay.lane_secret') & 1 = 0 and forebay._is_known(v_lane)) is not true then
            v_lane := forebay._find_lane(enqueue.queue, enqueue.priority, enqueue.ordering_key, enqueue.limit_key);
            if pg_sequence_last_value('forebay.limit_seq') is not null then
                perform forebay._require_below_max_waiting(enqueue.queue, 1);
            end if;
        end if;
        if v_start > v_now then
            insert into forebay.deferred (run_at, lane, enqueued_at, job_id, expires_at, {job})
            values (
                v_start, v_lane, v_now, nextval('forebay.log_seq'),
                coalesce(enqueue.expires_at, v_start + interval '30 days'), {job of enqueue})
            returning job_id into v_job_id;
            perform forebay._announce_due(v_start);
            return v_job_id;
        end if;
    end if;

    insert into forebay.log (lane, enqueued_at, expires_at, {job})
    values (v_lane, coalesce(v_now, forebay._now()), enqueue.expires_at, {job of enqueue});
    if forebay._is_awaited(enqueue.queue) then
        perform forebay._notify(enqueue.queue);
    end if;
    -- The number of the new row. RETURNING would cost more: it is planned for the segment each time.
    return currval('forebay.log_seq');
end
$$;
