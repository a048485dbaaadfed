-- grant: operator, reader

-- A subject; no row if there is none.
--
-- Columns:
--   state                scheduled, ready (its run waits, also for a retry), running, completed,
--                        dead, killed
--   due_at               when it is due again, or when its run was
--   iterations, last_at  runs that ended well, and when the last of them did
--   attempts, job_id     failed attempts of the present or last run, and its id
--   data                 what handlers keep between runs
--   reason               why it is dead or killed
-- pages: 300
create function forebay.subject(of_queue text, name text)
returns table (queue text, subject text, kind text, state text, due_at timestamptz, last_at timestamptz, iterations bigint, attempts integer,
               version integer, priority integer, args jsonb, data jsonb, options jsonb, job_id bigint, reason text,
               created_at timestamptz, changed_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
    select v.*
    from (select * from forebay.subject s where s.queue = $1 and s.subject = $2 offset 0) s
    cross join lateral forebay._subject_view(s) v
    where v.state <> 'dropped'
$$;


-- Subjects of a queue, in the order of their names, with the columns of forebay.subject().
--
-- Parameters:
--   only_state  only those in this state; at most 100,000 subjects are looked at, so a page may be
--               short
--   after       the name after which the page begins
--   most        1 to 10000 rows
--
-- Errors: JQ001 a bad state or number.
create function forebay.subjects(of_queue text, only_state text default null, after text default null, most integer default 100)
returns table (queue text, subject text, kind text, state text, due_at timestamptz, last_at timestamptz, iterations bigint, attempts integer,
               version integer, priority integer, args jsonb, data jsonb, options jsonb, job_id bigint, reason text,
               created_at timestamptz, changed_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_states constant text[] := array['scheduled', 'ready', 'running', 'completed', 'dead', 'killed'];
begin
    if subjects.most is null or subjects.most not between 1 and 10000 then
        raise exception using errcode = 'JQ001', column = 'most', message = format('most %s is outside 1 to 10000', coalesce(subjects.most::text, 'null'));
    elsif subjects.only_state <> all (v_states) then
        raise exception using errcode = 'JQ001', column = 'only_state',
            message = format('state %s is unknown', quote_literal(left(subjects.only_state, 40))),
            hint = 'One of ' || array_to_string(v_states, ', ') || '.';
    end if;
    return query
        select v.*
        from (select * from forebay.subject s
              where s.queue = subjects.of_queue and s.subject > coalesce(subjects.after, '') order by s.subject limit 100000) s
        cross join lateral forebay._subject_view(s) v
        where v.state <> 'dropped' and (subjects.only_state is null or v.state = subjects.only_state)
        limit subjects.most;
end
$$;


-- What happened to a subject, newest first. Maintenance keeps a day, and always the newest row.
-- `most` is 1 to 10000.
--
-- Columns:
--   what    scheduled (pushed, upserted or revived), issued, again, completed, dead, killed,
--           dropped
--   job_id  the run
--
-- Errors: JQ065 no such subject.
create function forebay.subject_history(of_queue text, name text, most integer default 100)
returns table (at timestamptz, what text, due_at timestamptz, iterations bigint, job_id bigint, reason text, data jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_id bigint;
begin
    select s.subject_id into v_id from forebay.subject s where s.queue = subject_history.of_queue and s.subject = subject_history.name;
    if v_id is null then
        raise exception using errcode = 'JQ065',
            message = format('subject %s not found in queue %s', coalesce(quote_literal(left(subject_history.name, 100)), 'null'),
                             coalesce(quote_literal(left(subject_history.of_queue, 100)), 'null')),
            detail = jsonb_build_object('queue', left(subject_history.of_queue, 128), 'subject', left(subject_history.name, 512)),
            hint = 'forebay.subjects() lists the subjects of a queue.';
    end if;
    return query
        select s.at, forebay._what_happened(s.state, s.part), s.due_at, s.iterations, s.job_id, s.reason, s.data
        from forebay.subject_state s where s.subject_id = v_id
        order by s.no desc, s.part desc limit least(greatest(subject_history.most, 1), 10000);
end
$$;


-- What happened under a name, a subject or a correlation id: history and errors of the subjects of
-- this name in all queues, and of the jobs with this correlation id, newest first. Of the jobs with
-- the correlation id, those among the newest 1,000,000 rows of the log that have no summary yet,
-- and all others. `most` is 1 to 1000.
--
-- Columns:
--   what  as of forebay.subject_history(); `enqueued`, for a job with the correlation id; or the
--         outcome of a failed attempt, with `attempt` and `error`
--
-- Errors: JQ001 a bad name.
create function forebay.trace(name text, most integer default 200)
returns table (at timestamptz, queue text, subject text, job_id bigint, kind text, what text, attempt integer, error text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
    with states as materialized (
        select n.queue, n.subject, s.*
        from forebay._subjects_named(trace.name) n
        cross join lateral (select * from forebay.subject_state i where i.subject_id = n.subject_id
                            order by i.no desc, i.part desc limit least(greatest(trace.most, 1), 1000)) s),
    jobs as materialized (
        select j.job_id, d.queue, d.kind, d.enqueued_at
        from forebay.search_jobs(jsonb_build_object('correlation_id', trace.name), most => least(greatest(trace.most, 1), 1000), budget => 1000000) f
        cross join lateral unnest(f.job_ids) j (job_id)
        cross join lateral (select * from forebay.job(j.job_id) limit 1) d
        where length(trace.name) <= 200)
    select t.at, t.queue, t.subject, t.job_id, t.kind, t.what, t.attempt, t.error
    from (select s.at, s.queue, s.subject, s.job_id, s.kind, forebay._what_happened(s.state, s.part) as what, null::integer as attempt,
                 s.reason as error
          from states s
          union all
          select j.enqueued_at, j.queue, null, j.job_id, j.kind, 'enqueued', null, null from jobs j
          union all
          select f.failed_at, j.queue, j.subject, f.job_id, j.kind, f.outcome, f.attempt, concat_ws(': ', f.error_type, f.message)
          from (select distinct s.queue, s.subject, s.job_id, s.kind from states s where s.job_id is not null
                union select j.queue, null, j.job_id, j.kind from jobs j) j
          cross join lateral (select * from forebay.failure i where i.job_id = j.job_id offset 0) f) t
    order by t.at desc limit least(greatest(trace.most, 1), 1000)
$$;


-- The subjects of a name in all queues.
create function forebay._subjects_named(p_name text) returns table (queue text, subject text, subject_id bigint)
language sql stable
as $$
    with recursive queues (queue) as (
        (select s.queue from forebay.subject s order by s.queue limit 1)
        union all
        select n.queue from queues q
        cross join lateral (select s.queue from forebay.subject s where s.queue > q.queue order by s.queue limit 1) n)
    select i.queue, i.subject, i.subject_id
    from queues q cross join lateral (select * from forebay.subject i where i.queue = q.queue and i.subject = p_name offset 0) i
$$;


-- Numbers of subjects by queue and state, as forebay.subject() names it: scheduled (due later),
-- ready (a run waits, also for a retry), running, completed, dead, killed. Reads counters and the
-- open claims of workers, not the subjects. Exact, except that a run that was cancelled as a job
-- counts as ready until its subject is revived, and that a subject that was killed or dropped while
-- it ran counts as running too until its run has ended, and then for some seconds also as what that
-- made of it.
-- pages: 60 + 4 a running job
create function forebay.subject_counts(only_queue text default null) returns table (queue text, state text, subjects bigint)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    with counted as materialized (
        select c.queue, u.state, sum(u.subjects)::bigint as subjects
        from forebay.subject_count c cross join lateral (values (c.state, c.subjects), (c.before, -c.subjects)) u (state, subjects)
        where u.state is not null and (subject_counts.only_queue is null or c.queue = subject_counts.only_queue)
        group by 1, 2),
    running as materialized (
        select s.queue, count(*) as subjects
        from forebay._running_subjects() r (subject_id) join forebay.subject s on s.subject_id = r.subject_id
        where exists (select from counted c where c.state = 'i' and c.subjects > 0)
        group by s.queue)
    select n.queue, n.state, n.subjects
    from (select c.queue, case c.state when 's' then 'scheduled' when 'i' then 'ready' when 'c' then 'completed' when 'x' then 'dead' else 'killed' end,
                 case c.state when 'i' then greatest(c.subjects - coalesce(r.subjects, 0), 0) else c.subjects end
          from counted c left join running r on r.queue = c.queue
          union all
          select r.queue, 'running', r.subjects from running r
          where subject_counts.only_queue is null or r.queue = subject_counts.only_queue) n (queue, state, subjects)
    where n.subjects <> 0 order by 1, 2
$$;


-- The subjects whose runs workers have.
create function forebay._running_subjects() returns table (subject_id bigint)
language sql stable
as $$
    select distinct (forebay._subject_in(h.headers))[1]::bigint
    from forebay.lease e cross join lateral forebay._held_places(e.lease_id) h
    where e.closed_at is null and h.headers ? 'forebay-subject'
$$;


-- A row of forebay.subjects().
create function forebay._subject_view(p_subject forebay.subject)
returns table (queue text, subject text, kind text, state text, due_at timestamptz, last_at timestamptz, iterations bigint, attempts integer,
               version integer, priority integer, args jsonb, data jsonb, options jsonb, job_id bigint, reason text,
               created_at timestamptz, changed_at timestamptz)
language sql stable
as $$
    select p_subject.queue, p_subject.subject, s.kind,
           case s.state when 's' then 'scheduled' when 'c' then 'completed' when 'x' then 'dead' when 'k' then 'killed' when 'g' then 'dropped'
               else case r.run_state when 'waiting' then 'ready' when 'running' then 'running'
                                     else case when forebay._is_cancelled(s.job_id) then 'killed' else 'completed' end end end,
           s.due_at, s.last_at, s.iterations,
           coalesce((select max(f.attempt) from forebay.failure f where f.job_id = s.job_id and f.outcome in ('retried', 'worker lost', 'dead')), 0),
           s.version, s.priority, s.args, s.data, s.options, s.job_id, s.reason, p_subject.created_at, s.at
    from forebay._newest_state(p_subject.subject_id) s
    cross join lateral (select case when s.state = 'i' then forebay._run_state(p_subject.queue, s) end as run_state offset 0) r
$$;


-- What a row of forebay.subject_state records.
create function forebay._what_happened(p_state "char", p_part smallint) returns text
language sql immutable
as $$
    select case p_state when 's' then case p_part when 0 then 'scheduled' else 'again' end when 'i' then 'issued' when 'c' then 'completed'
                        when 'x' then 'dead' when 'k' then 'killed' else 'dropped' end
$$;
