-- grant: producer, worker, operator

-- Create subjects; those that exist are left as they are. A subject that is due now is issued at
-- once; one that is due later waits in the calendar. Returns a row for each, in input order: the
-- result `created`; or `skipped`, with the reason `exists`. `subjects` is a JSON array of objects:
--
-- Keys:
--   kind, args     of its runs, see forebay.enqueue()
--   subject        its name in the queue, at most 512 bytes; null: a random one
--   queue          null: forebay.queue_of() the kind, or `default`
--   delay, run_at  when it is due first: seconds, or a time; neither: now
--   version        of the arguments of its runs, 0 to 9999
--   priority, {options}
--                  of its runs
--   expires_at     the subject is killed instead of being issued at or after this; null: it never
--                  expires
--
-- Errors: JQ001 a bad subject, with its index, or the same subject twice; JQ002 and JQ003 args too
--   large or too deep. Nothing is written then.
-- Locks: rows of the subjects. A call waits for another transaction that is creating one of them.
-- pages: 100 + 80 a job
create function forebay.push_subjects(subjects jsonb) returns table (subject text, result text, reason text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    v_new constant forebay._subject_input[] := forebay._subject_inputs(push_subjects.subjects);
begin
    return query
        select u.subject, p.result, p.reason
        from unnest(v_new) u join unnest(forebay._put_subjects(v_new, false, false)) p on p.nr = u.nr
        order by u.nr;
end
$$;


-- Create subjects, or change those that exist. A key of an object that is absent leaves what it
-- names unchanged. A run that a worker has is not disturbed; one that waits, also for a retry, is
-- replaced. Returns a row for each, in input order: the result `created`, `updated`, `unchanged`;
-- or `skipped`, with the reason running, completed, dead or killed.
--
-- Parameters:
--   subjects  see forebay.push_subjects(); `kind` is needed for new ones
--   revive    schedule those that are completed, dead or killed
--
-- Errors: as forebay.push_subjects().
-- Locks: as forebay.push_subjects(). No run of these subjects is issued until the transaction ends.
-- pages: 100 + 250 a job
create function forebay.upsert_subjects(subjects jsonb, revive boolean default false) returns table (subject text, result text, reason text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    v_new constant forebay._subject_input[] := forebay._subject_inputs(upsert_subjects.subjects);
begin
    return query
        select u.subject, p.result, p.reason
        from unnest(v_new) u join unnest(forebay._put_subjects(v_new, true, coalesce(upsert_subjects.revive, false))) p on p.nr = u.nr
        order by u.nr;
end
$$;


-- Create one subject; returns `created` or `skipped`. See forebay.push_subjects(). The parameters
-- from `expires_at` on are those of its runs, as in forebay.enqueue(); `options` has them as JSON.
--
-- Errors: as forebay.push_subjects().
-- pages: 180
create function forebay.push_subject(
    kind text, subject text, args jsonb default '{}', queue text default null, delay interval default null, run_at timestamptz default null,
    priority integer default 100, version integer default 0, options jsonb default '{}', expires_at timestamptz default null,
    {options parameters})
returns text
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select p.result
    from forebay.push_subjects(jsonb_build_array(forebay._subject_object(
        push_subject.kind, push_subject.subject, push_subject.args, push_subject.queue, push_subject.delay, push_subject.run_at,
        push_subject.priority, push_subject.version,
        forebay._with_options(push_subject.options, push_subject.expires_at, {options of push_subject})))) p
$$;


-- Create one subject or change it; returns `created`, `updated`, `unchanged`, or `skipped: ` and
-- why. A parameter that is null leaves what it names unchanged. See forebay.upsert_subjects().
--
-- Errors: as forebay.push_subjects().
-- pages: 350
create function forebay.upsert_subject(
    kind text, subject text, args jsonb default null, queue text default null, delay interval default null, run_at timestamptz default null,
    priority integer default null, version integer default null, options jsonb default null, revive boolean default false,
    expires_at timestamptz default null, {options parameters})
returns text
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select p.result || coalesce(': ' || p.reason, '')
    from forebay.upsert_subjects(jsonb_build_array(forebay._subject_object(
        upsert_subject.kind, upsert_subject.subject, upsert_subject.args, upsert_subject.queue, upsert_subject.delay, upsert_subject.run_at,
        upsert_subject.priority, upsert_subject.version,
        forebay._with_options(upsert_subject.options, upsert_subject.expires_at, {options of upsert_subject}))),
        upsert_subject.revive) p
$$;


-- Options of runs, as JSON and as parameters; a parameter wins.
create function forebay._with_options(p_options jsonb, p_expires_at timestamptz, {options parameters}) returns jsonb
language sql stable
as $$
    select case when jsonb_typeof(p_options) <> 'object' then p_options
                else coalesce(p_options, '{}') || jsonb_strip_nulls(to_jsonb(g)) end
    from (select p_expires_at as expires_at, {options}) g
$$;


-- One element of the argument of forebay.push_subjects().
create function forebay._subject_object(
    p_kind text, p_subject text, p_args jsonb, p_queue text, p_delay interval, p_run_at timestamptz, p_priority integer, p_version integer,
    p_options jsonb)
returns jsonb
language plpgsql stable
as $$
begin
    if jsonb_typeof(p_options) <> 'object' or p_options ?| array['kind', 'subject', 'args', 'queue', 'delay', 'run_at', 'priority', 'version'] then
        raise exception using errcode = 'JQ001', column = 'options',
            message = 'options must be a JSON object of {options} and expires_at';
    end if;
    return jsonb_strip_nulls(jsonb_build_object(
        'kind', p_kind, 'subject', coalesce(p_subject, ''), 'queue', p_queue, 'delay', extract(epoch from forebay._delay_from_now(p_delay)), 'run_at', p_run_at,
        'priority', p_priority, 'version', p_version))
        || case when p_args is null then '{}' else jsonb_build_object('args', p_args) end || coalesce(p_options, '{}');
end
$$;


-- Read and check subjects from JSON.
--
-- Errors: JQ001, JQ002, JQ003.
create function forebay._subject_inputs(p_subjects jsonb) returns forebay._subject_input[]
language plpgsql volatile
as $$
declare
    v_options constant text[] := array[{options keys}, 'expires_at'];
    v_keys    constant text[] := array['kind', 'subject', 'args', 'queue', 'delay', 'run_at', 'priority', 'version'] || v_options;
    v_now     constant timestamptz := forebay._now();
    v_all     forebay._subject_input[];
    v_odd     integer[];
    v_one     record;
    v_problem text;
begin
    if jsonb_typeof(p_subjects) is distinct from 'array' then
        raise exception using errcode = 'JQ001',
            message = format('subjects must be a JSON array, not %s', coalesce(jsonb_typeof(p_subjects), 'null')),
            hint = 'Pass an array of objects, one for each subject.';
    end if;
    for v_one in
        select e.value, e.ordinality - 1 as index from jsonb_array_elements(p_subjects) with ordinality e
        where case when jsonb_typeof(e.value) = 'object' then e.value - v_keys <> '{}' else true end
        order by e.ordinality limit 1
    loop
        perform forebay._refuse_subject(v_one.index, case
            when jsonb_typeof(v_one.value) <> 'object' then format('must be a JSON object, not %s', jsonb_typeof(v_one.value))
            else format('unknown key %s', (select quote_literal(left(k, 40)) from jsonb_object_keys(v_one.value - v_keys) k limit 1)) end);
    end loop;
    begin
        v_all := array(
            select row(
                r.ordinality, coalesce(r.queue, (select k.queue from forebay.kind_queue k where k.kind = r.kind), 'default'),
                coalesce(r.subject, gen_random_uuid()::text), r.kind, r.args, coalesce(r.run_at, v_now + make_interval(secs => case when r.delay < 0 then 0 else r.delay end)), r.priority,
                r.version, r.value - array['kind', 'subject', 'args', 'queue', 'delay', 'run_at', 'priority', 'version'])::forebay._subject_input
            from rows from (jsonb_to_recordset(p_subjects) as (
                    kind text, subject text, args jsonb, queue text, delay double precision, run_at timestamptz, priority integer, version integer),
                    jsonb_array_elements(p_subjects))
                 with ordinality r (kind, subject, args, queue, delay, run_at, priority, version, value, ordinality)
            order by r.ordinality);
        v_odd := forebay._odd_subjects(v_all, p_subjects, v_now);
        -- Reads each option once, so that a wrong type is refused here.
        for v_one in
            select u.nr - 1 as index, e.value as given,
                   case
                       when u.subject = '' or octet_length(u.subject) > 512 or u.subject ~ E'[{control}]'
                           then format('subject %s must have 1 to 512 bytes, and no control character', quote_literal(left(u.subject, 40)))
                       when u.version not between 0 and 9999 then format('version %s is outside 0 to 9999', u.version)
                       when length(u.kind) > 120 then format('kind %s has more than 120 characters', quote_literal(left(u.kind, 40)))
                       when (e.value ->> 'delay')::double precision > 3155760000 then
                           format('delay %s is outside 0 to 100 years', e.value ->> 'delay')
                       when e.value ?& array['delay', 'run_at'] then 'delay and run_at exclude each other'
                       else forebay._job_problem(
                           row(u.queue, coalesce(u.priority, 100), null, case when e.value ? 'run_at' then u.start_at end, o.expires_at,
                               {job of j})::forebay._job_input) end as problem, u.args
            from unnest(v_all) u join jsonb_array_elements(p_subjects) with ordinality e on e.ordinality = u.nr
            cross join lateral jsonb_populate_record(null::forebay._job_input, u.options) o
            cross join lateral (select coalesce(u.kind, 'kind') as kind, coalesce(u.args, '{}') as args, {options of o}) j
            where u.nr = any (v_odd)
            order by u.nr
        loop
            if v_one.problem is not null then
                perform forebay._refuse_subject(v_one.index, v_one.problem);
            end if;
            if octet_length(v_one.args::text) > 500 then
                perform forebay._check_args(v_one.args, v_one.index);
            end if;
        end loop;
    exception when data_exception then
        raise exception using errcode = 'JQ001',
            message = format('a value of a subject has the wrong type: %s', sqlerrm),
            hint = 'Nothing was written: a bulk call is all or none.';
    end;
    select u.queue, u.subject, max(u.nr) - 1 as index into v_one
    from unnest(v_all) u group by u.queue, u.subject having count(*) > 1 order by max(u.nr) limit 1;
    if found then
        perform forebay._refuse_subject(v_one.index, format('subject %s of queue %s stands twice in this call', quote_literal(left(v_one.subject, 40)), v_one.queue));
    end if;
    return v_all;
end
$$;


-- The numbers of the subjects of a call that have to be looked at one by one: those that may be invalid, and those with options or large arguments.
create function forebay._odd_subjects(p_all forebay._subject_input[], p_subjects jsonb, p_now timestamptz) returns integer[]
language plpgsql stable
-- planner: short
as $$
declare
    v_name constant text := '^[A-Za-z_][A-Za-z0-9_.:-]*$';  -- A bound in the pattern would take several times as long.
begin
    return array(
        select r.nr
        from rows from (unnest(p_all), jsonb_array_elements(p_subjects))
             as r (nr, queue, subject, kind, args, start_at, priority, version, options, value)
        where (r.options = '{}' and r.subject <> '' and octet_length(r.subject) <= 512 and r.subject !~ E'[{control}]'
               and (r.version is null or r.version between 0 and 9999) and (r.priority is null or r.priority between -32768 and 32767)
               and (r.kind is null or length(r.kind) <= 120 and r.kind ~ v_name) and length(r.queue) <= 128 and r.queue ~ v_name
               and (r.args is null or jsonb_typeof(r.args) = 'object' and pg_column_size(r.args) <= 500 and octet_length(r.args::text) <= 500)
               and not r.value ?& array['delay', 'run_at']
               and (r.start_at is null or isfinite(r.start_at) and r.start_at between p_now and p_now + interval '99 years' or r.value ? 'run_at'
                                          and isfinite(r.start_at) and r.start_at <= p_now)) is not true);
end
$$;


-- Errors: JQ001 a subject of a call is wrong.
create function forebay._refuse_subject(p_index bigint, p_problem text) returns void
language plpgsql stable
as $$
begin
    raise exception using errcode = 'JQ001', message = format('subject %s: %s', p_index, p_problem),
        detail = jsonb_build_object('index', p_index), hint = 'Nothing was written: a bulk call is all or none.';
end
$$;


-- Create subjects, and with p_change change those that exist. Checked input; returns what became of each.
create function forebay._put_subjects(p_new forebay._subject_input[], p_change boolean, p_revive boolean) returns forebay._subject_put[]
language plpgsql volatile
-- planner: in order
as $$
declare
    v_now     constant timestamptz := forebay._now();
    v_has_keys constant boolean := pg_sequence_last_value('forebay.kind_keys_seq') is not null;
    v_made    bigint;
    v_is_new  boolean;                   -- Was none of them there before?
    v_changes forebay._subject_change[];
    v_runs    bigint[];
    v_problem record;
    v_done    record;
begin
    -- In the order of their names, so that two calls do not wait for each other.
    insert into forebay.subject (queue, subject, created_at)
    select u.queue, u.subject, v_now from unnest(p_new) u order by u.queue collate "C", u.subject collate "C"
    on conflict on constraint subject_name do nothing;
    get diagnostics v_made = row_count;
    v_is_new := v_made = cardinality(p_new);
    if p_change and not v_is_new then
        perform from forebay.subject s
        where s.subject_id = any (array(
            select k.subject_id from unnest(p_new) u
            cross join lateral (select i.subject_id from forebay.subject i where i.queue = u.queue and i.subject = u.subject offset 0) k))
        order by s.queue collate "C", s.subject collate "C" for no key update;
    elsif not v_is_new then
        -- A dropped subject whose run has not ended yet is made again.
        perform from forebay.subject s
        where s.subject_id = any (array(
            select k.subject_id from unnest(p_new) u
            cross join lateral (select i.subject_id from forebay.subject i where i.queue = u.queue and i.subject = u.subject offset 0) k
            cross join lateral (select i.state from forebay.subject_state i where i.subject_id = k.subject_id order by i.no desc, i.part desc limit 1) n
            where n.state = 'g'))
        order by s.queue collate "C", s.subject collate "C" for no key update;
    end if;
    -- A later statement: it sees what was committed before the locks were granted.
    v_changes := array(
        select row(c.new, c.subject_id, c.old, c.run_state,
                   case when (c.old).no is null or (c.old).state = 'g' then 'created'
                        when not p_change then 'exists'
                        when (c.old).state in ('c', 'x', 'k') or c.run_state in ('ended', 'withdrawn') and (c.old).state = 'i' then
                            case when p_revive then 'updated'
                                 when (c.old).state = 'x' then 'dead'
                                 when (c.old).state = 'k' or (c.old).state = 'i' and forebay._is_cancelled((c.old).job_id) then 'killed'
                                 else 'completed' end
                        when c.run_state = 'running' then 'running'
                        when forebay._changes_subject(c.new, c.old) then 'updated'
                        else 'unchanged' end)::forebay._subject_change
        from (select case when v_has_keys then forebay._keyed_subject(u, n.old) else u end as new, s.subject_id, n.old,
                     case when p_change and (n.old).lane is not null then forebay._run_state(u.queue, n.old) end as run_state
              from unnest(p_new) u
              left join lateral (select i.subject_id from forebay.subject i where i.queue = u.queue and i.subject = u.subject offset 0) s on true
              left join lateral (select i as old from forebay.subject_state i where not v_is_new and i.subject_id = s.subject_id
                                 order by i.no desc, i.part desc limit 1) n on true
              offset 0) c);
    select (c.new).nr - 1 as index into v_problem
    from unnest(v_changes) c
    where (c.new).kind is null and c.answer = 'created' order by (c.new).nr limit 1;
    if found then
        perform forebay._refuse_subject(v_problem.index, 'a new subject needs a kind');
    elsif exists (select from unnest(v_changes) c where c.subject_id is null) then
        -- Another transaction dropped it between the two statements.
        return forebay._put_subjects(p_new, p_change, p_revive);
    end if;

    -- A run that waits is replaced.
    v_runs := array(select (c.old).job_id from unnest(v_changes) c
                    where c.answer = 'updated' and (c.old).state = 'i' and c.run_state = 'waiting');
    if v_runs <> '{}' then
        insert into forebay.tombstone (job_id, reason, recorded_at) select u, 'r', v_now from unnest(v_runs) u;
        perform forebay._withdraw(v_runs);
        perform forebay._note_cancelled_jobs(v_runs);
        perform forebay._announce_jobs(r.queue, null, 'cancelled', r.jobs)
        from (select (c.new).queue as queue, array_agg((c.old).job_id) as jobs
              from unnest(v_changes) c where (c.old).job_id = any (v_runs) group by 1) r;
    end if;
    with row as materialized (
        select c.subject_id, c.old, c.new,
               case when c.answer <> 'created' then c.old end as kept,
               -- The run that may not have ended. How it ended is read when the next one is issued.
               case when (c.old).lane is not null then c.old end as run,
               coalesce((c.new).start_at, case when (c.old).state in ('s', 'i') and c.answer <> 'created' then (c.old).due_at end, v_now) as due_at
        from unnest(v_changes) c
        where c.answer in ('created', 'updated')),
    timed as materialized (
        select r.*, r.due_at > v_now
               and ((r.old).state is distinct from 's'
                    or r.due_at < (r.old).due_at and (r.old).wake_at between v_now and r.due_at is not true) as needs_wake
        from row r),
    written as (
        insert into forebay.subject_state (
            subject_id, no, part, state, at, due_at, wake_at, kind, version, priority, args, data, options, iterations, last_at, job_id, run_no,
            lane, job_xid)
        select t.subject_id, coalesce((t.old).no, 0) + 1, 0, 's', v_now, t.due_at, case when t.needs_wake then t.due_at else (t.old).wake_at end,
               coalesce((t.new).kind, (t.kept).kind), coalesce((t.new).version, (t.kept).version, 0),
               coalesce((t.new).priority, (t.kept).priority, 100), coalesce((t.new).args, (t.kept).args, '{}'), (t.kept).data,
               jsonb_strip_nulls(coalesce((t.kept).options, '{}') || (t.new).options), coalesce((t.kept).iterations, 0), (t.kept).last_at,
               (t.run).job_id, case when t.kept is null then -abs((t.run).run_no) else (t.run).run_no end, (t.run).lane, (t.run).job_xid
        from timed t
        returning subject_state as made)
    select array_agg(t.subject_id order by (t.new).nr) filter (where t.due_at <= v_now) as due,
           array_agg(t.subject_id order by (t.new).nr) filter (where t.needs_wake) as later,
           array_agg(t.due_at order by (t.new).nr) filter (where t.needs_wake) as times,
           -- None of them has a run that may not have ended, or expires: nothing is to be looked up.
           array_agg(row(t.subject_id, (t.new).queue, (t.new).subject, w.made, 'ended', null)::forebay._subject_look order by (t.new).nr)
               filter (where t.due_at <= v_now) as looks,
           bool_and((w.made).lane is null and not (w.made).options ? 'expires_at') filter (where t.due_at <= v_now) as are_first
    into v_done from timed t join written w on (w.made).subject_id = t.subject_id;
    perform forebay._wake_subjects(v_done.later, v_done.times);
    if v_done.are_first then
        perform forebay._write_runs(v_done.looks, v_now);
    elsif v_done.due <> '{}' then
        perform forebay._issue_subjects(v_done.due, false);
    end if;
    perform forebay._count_subjects(n.queue, n.state, 's', n.subjects)
    from (select (c.new).queue as queue, case when c.answer = 'updated' then (c.old).state end as state, count(*) as subjects
          from unnest(v_changes) c where c.answer in ('created', 'updated') group by 1, 2) n;
    return array(
        select row((c.new).nr, case when c.answer in ('created', 'updated', 'unchanged') then c.answer else 'skipped' end,
                   case when c.answer not in ('created', 'updated', 'unchanged') then c.answer end)::forebay._subject_put
        from unnest(v_changes) c);
end
$$;


-- A subject with the keys that its kind declares for the arguments that are given now.
create function forebay._keyed_subject(p_new forebay._subject_input, p_old forebay.subject_state) returns forebay._subject_input
language plpgsql volatile
as $$
declare
    v_version constant integer := coalesce(p_new.version, p_old.version, 0);
    v_keys    record;
begin
    if pg_sequence_last_value('forebay.kind_keys_seq') is not null and (p_new.args is not null or p_old.no is null or p_old.state = 'g') then
        select d.* into v_keys
        from forebay._declared_keys(
            coalesce(p_new.kind, p_old.kind) || case when v_version > 0 then '.v' || v_version else '' end, p_new.args, p_new.queue,
            p_new.options ->> 'limit_key', p_new.options ->> 'ordering_key', '"none"') d;
        p_new.options := p_new.options || jsonb_strip_nulls(jsonb_build_object('limit_key', v_keys.limit_key, 'ordering_key', v_keys.ordering_key));
    end if;
    return p_new;
end
$$;


-- Would an upsert change a subject that is scheduled or whose run waits?
create function forebay._changes_subject(p_new forebay._subject_input, p_old forebay.subject_state) returns boolean
language sql stable
as $$
    select p_new.start_at is not null and (p_old.state = 'i' or p_new.start_at <> p_old.due_at)
        or coalesce(p_new.kind, p_old.kind) <> p_old.kind or coalesce(p_new.version, p_old.version) <> p_old.version
        or coalesce(p_new.priority, p_old.priority) <> p_old.priority or coalesce(p_new.args, p_old.args) <> p_old.args
        or jsonb_strip_nulls(p_old.options || p_new.options) <> p_old.options
$$;


-- Was the cancellation of a job requested?
create function forebay._is_cancelled(p_job_id bigint) returns boolean
language sql stable
as $$ select exists (select from forebay.tombstone t where t.job_id = p_job_id and t.reason = 'c') $$;
