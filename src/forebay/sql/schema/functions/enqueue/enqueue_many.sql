-- grant: producer, worker

-- Refuse the first invalid job of a bulk enqueue by its index. Valid jobs without options, except keys, pass one expression. p_noun: what
-- the caller calls a job.
--
-- Errors: JQ001, JQ002, JQ003.
create function forebay._check_jobs(p_jobs forebay._job_input[], p_noun text default 'job') returns void
language plpgsql stable
as $$
declare
    v_name constant text := '^[A-Za-z_][A-Za-z0-9_.:-]*$';  -- A bound in the pattern would take several times as long.
    v_odd     record;
    v_problem text;
begin
    for v_odd in
        -- The job is put together again: to look one up in an array takes as long as the array is.
        select u.ordinality, u.delay, u.args, row(u.queue, u.priority, u.delay, u.run_at, u.expires_at, {job of u})::forebay._job_input as job
        from unnest(p_jobs) with ordinality u
        where (u.kind ~ v_name and length(u.kind) <= 128 and u.queue ~ v_name and length(u.queue) <= 128
               and jsonb_typeof(u.args) = 'object'
               and u.priority between -32768 and 32767
               and pg_column_size(u.args) <= 500 and octet_length(u.args::text) <= 500
               and num_nonnulls(u.delay, u.run_at, u.expires_at, {options of u but ordering_key, limit_key, tag, correlation_id, headers}) = 0
               and (u.ordering_key is null or length(u.ordering_key) between 1 and 200 and u.ordering_key !~ E'[{control}]')
               and (u.limit_key is null or length(u.limit_key) between 1 and 200 and u.limit_key !~ E'[{control}]')
               and (u.tag is null or length(u.tag) between 1 and 200 and u.tag !~ E'[{control}]')
               and (u.correlation_id is null or length(u.correlation_id) between 1 and 200 and u.correlation_id !~ E'[{control}]')
               and (u.headers is null or forebay._headers_problem(u.headers) is null)
              ) is not true
        order by u.ordinality
    loop
        if v_odd.delay is not null and (v_odd.delay < 0 or v_odd.delay > 3155760000 or v_odd.delay = 'NaN') then
            v_problem := format('delay %s is outside 0 to 100 years', v_odd.delay);
        else
            v_problem := forebay._job_problem(v_odd.job, make_interval(secs => v_odd.delay));
        end if;
        if v_problem is not null then
            raise exception using errcode = 'JQ001',
                message = format('%s %s: %s', p_noun, v_odd.ordinality - 1, v_problem),
                detail = jsonb_build_object('index', v_odd.ordinality - 1),
                hint = format('Nothing was %s: a bulk call is all or none.', case p_noun when 'job' then 'enqueued' else 'written' end);
        end if;
        if pg_column_size(v_odd.args) > 500 or octet_length(v_odd.args::text) > 500 then
            perform forebay._check_args(v_odd.args, v_odd.ordinality - 1, p_noun);
        end if;
    end loop;
end
$$;


-- Enqueue jobs from JSON; returns their ids in input order, and which are new: null if all are. p_noun: what the caller calls a job.
-- With p_gather_id they are children of a gather: each has a header that says which one it is, and none has a unique key.
--
-- Parameters and errors: as forebay.enqueue_many.
create function forebay._enqueue_json(
    p_jobs jsonb, p_noun text default 'job', p_gather_id bigint default null, p_parent bigint default null, p_first integer default null,
    out ids bigint[], out news boolean[])
language plpgsql volatile
as $$
declare
    v_keys constant text[] := array['kind', 'args', 'queue', 'priority', 'delay', 'run_at', 'expires_at', {options keys}, 'unique_as'];
    v_bad  record;
    v_jobs forebay._job_input[];
begin
    if p_jobs is null or jsonb_typeof(p_jobs) <> 'array' then
        raise exception using errcode = 'JQ001',
            message = format('jobs must be a JSON array, not %s', coalesce(jsonb_typeof(p_jobs), 'null')),
            hint = 'Pass an array of objects, one for each job.';
    end if;

    for v_bad in
        select e.ordinality - 1 as index, e.value as job
        from jsonb_array_elements(p_jobs) with ordinality e
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

    p_jobs := forebay._with_declared_keys(p_jobs);
    begin
        select array_agg(
            row(coalesce(r.queue, (select k.queue from forebay.kind_queue k where k.kind = r.kind), 'default'), coalesce(r.priority, 100), case when r.delay < 0 then 0 else r.delay end,
                r.run_at, r.expires_at, {job of g})::forebay._job_input
            order by r.ordinality)
        into v_jobs
        from jsonb_populate_recordset(null::forebay._job_input, p_jobs) with ordinality r
             cross join lateral (
                 select coalesce(r.args, '{}') as args,
                        -- Headers that are no object are refused below.
                        case when p_gather_id is null or jsonb_typeof(r.headers) <> 'object' then r.headers
                             else coalesce(r.headers, '{}') || jsonb_build_object('forebay-parent', concat(
                                      '{"nr": ', p_first + r.ordinality - 1, ', "job": ', p_parent, ', "gather": "', p_gather_id, '"}')) end as headers,
                        {job of r but args, headers}) g;
    exception when data_exception then
        raise exception using errcode = 'JQ001',
            message = format('an option of a job has the wrong type: %s', sqlerrm),
            hint = 'Nothing was enqueued: a bulk call is all or none.';
    end;
    if v_jobs is null then
        ids := '{}';
        return;
    end if;
    perform forebay._check_jobs(v_jobs, p_noun);
    if p_gather_id is null and p_jobs @? '$[*].unique_as ? (@ != null && (@.type() != "string" || @ != "none"))' then
        select m.ids, m.news into ids, news from forebay._enqueue_mixed(v_jobs, array(
            select nullif(nullif(e.value -> 'unique_as', 'null'), '"none"') from jsonb_array_elements(p_jobs) with ordinality e order by e.ordinality), p_noun) m;
        return;
    end if;
    ids := forebay._enqueue_jobs(v_jobs);
end
$$;


-- Enqueue many jobs; returns their ids in input order. `jobs` is an array of objects with the keys
-- `kind`, `args`, `queue`, `priority`, `delay` (in seconds), `run_at`, `expires_at`, `unique_as`,
-- {options marked};
-- only `kind` is required. This is the fastest way to enqueue: pass some thousand jobs per call.
-- Unique keys are taken one by one, in the order of queue, uniqueness mode and key.
--
-- Example:
--   select forebay.enqueue_many(
--       '[{"kind": "index", "args": {"id": 1}}, {"kind": "index", "args": {"id": 2}, "delay": 60}]');
--
-- Errors: those of forebay.enqueue(), naming the first bad job by its index, from 0. All jobs are
--   enqueued, or none.
-- pages: 60 + 8 a job
create function forebay.enqueue_many(jobs jsonb) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
begin
    return (forebay._enqueue_json(jobs)).ids;
end
$$;


-- Do as `forebay.enqueue_many(jobs)`, and return a row for each job, in input order: its id, and
-- whether it is new. The id of a job that is not new is that of the job which has its unique key.
--
-- Errors: those of forebay.enqueue_many(). All jobs are enqueued, or none.
-- pages: 60 + 8 a job
create function forebay.enqueue_each(jobs jsonb) returns table (job_id bigint, is_new boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
begin
    return query
        select u.id, coalesce(u.made, true)
        from forebay._enqueue_json(jobs) e, unnest(e.ids, e.news) with ordinality u (id, made, nr)
        order by u.nr;
end
$$;


-- Enqueue a job of one kind for each element of `args`; returns how many. Intended for `insert ...
-- select`. The other parameters are those of forebay.enqueue() and apply to all jobs.
--
-- Example:
--   select forebay.enqueue_many('index', array_agg(jsonb_build_object('id', n)))
--   from generate_series(1, 1000) n;
--
-- Errors: those of forebay.enqueue(). All jobs are enqueued, or none.
-- pages: 60 + 8 a job
create function forebay.enqueue_many(
    kind text, args jsonb[], queue text default null, priority integer default 100,
    delay interval default null, run_at timestamptz default null, expires_at timestamptz default null,
    {options parameters})
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_now     timestamptz := forebay._now();
    v_start   timestamptz := coalesce(enqueue_many.run_at, v_now + least(greatest(enqueue_many.delay, interval '-1 second'), interval '101 years'));
    v_problem text;
    v_odd     record;
    v_lanes   bigint[];
begin
    if coalesce(cardinality(enqueue_many.args), 0) = 0 then
        return 0;
    end if;
    enqueue_many.delay := forebay._delay_from_now(enqueue_many.delay);
    if pg_sequence_last_value('forebay.kind_keys_seq') is not null then
        perform from forebay.kind_queue k where k.kind = enqueue_many.kind and k.keys is not null;
        if found then
            perform forebay._enqueue_json((
                select jsonb_agg(jsonb_strip_nulls(to_jsonb(o)) || jsonb_build_object('args', a.args) order by a.nr)
                from unnest(enqueue_many.args) with ordinality a (args, nr),
                     (select enqueue_many.queue, enqueue_many.priority, extract(epoch from enqueue_many.delay) as delay, enqueue_many.run_at,
                             enqueue_many.expires_at, {job of enqueue_many but args}) o));
            return cardinality(enqueue_many.args);
        end if;
    end if;
    enqueue_many.queue := coalesce(enqueue_many.queue, forebay.queue_of(enqueue_many.kind), 'default');
    select forebay._job_problem(
               row(enqueue_many.queue, enqueue_many.priority, null, enqueue_many.run_at, enqueue_many.expires_at, {job of g})::forebay._job_input,
               enqueue_many.delay)
    into v_problem
    from (select '{}'::jsonb as args, {job of enqueue_many but args}) g;
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
        v_lanes := array[forebay._record_keyed_lane(enqueue_many.queue, enqueue_many.priority, 0)];
    elsif enqueue_many.limit_key is not null then
        v_lanes := array[forebay._record_limited_lane(enqueue_many.queue, enqueue_many.priority, 0)];
    else
        v_lanes := forebay._record_lanes(enqueue_many.queue, enqueue_many.priority, forebay._shards(array[enqueue_many.queue]));
    end if;
    if pg_sequence_last_value('forebay.limit_seq') is not null then
        perform forebay._require_below_max_waiting(enqueue_many.queue, cardinality(enqueue_many.args));
    end if;
    if v_start > v_now then
        insert into forebay.deferred (run_at, lane, enqueued_at, job_id, expires_at, args, {job but args})
        select v_start, v_lanes[1 + a.nr % cardinality(v_lanes)], v_now, nextval('forebay.log_seq'),
               coalesce(enqueue_many.expires_at, v_start + interval '30 days'), a.args,
               {job of enqueue_many but args}
        from unnest(enqueue_many.args) with ordinality a (args, nr);
        perform forebay._announce_due(v_start);
    else
        insert into forebay.log (lane, enqueued_at, expires_at, args, {job but args})
        select v_lanes[1 + a.nr % cardinality(v_lanes)], v_now, enqueue_many.expires_at, a.args,
               {job of enqueue_many but args}
        from unnest(enqueue_many.args) with ordinality a (args, nr);
        perform forebay._notify(enqueue_many.queue);
    end if;
    return cardinality(enqueue_many.args);
end
$$;
