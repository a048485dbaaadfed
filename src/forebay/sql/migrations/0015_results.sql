-- What handlers return and how far they are: appended, read by job, deleted by age.
--
-- A result is written by the settlement that ends its job, in the same transaction: it is there exactly if the job is
-- done. Jobs whose handler keeps nothing pay nothing.


insert into forebay.setting (name, value) values ('result_bytes_max', 65536);

-- "Somebody waits for the end of a job until", in milliseconds since 1970: a register like the bells.
create sequence forebay.result_bell as bigint cache 1;

create table forebay.result (
    job_id      bigint not null,
    group_id    bigint not null,
    enqueued_at timestamptz not null,     -- of the job: ids can be given out again after a lost commit
    kept_at     timestamptz not null,
    kept_until  timestamptz not null,
    value       jsonb,
    problem     text,                     -- why there is no value, though one was to be kept
    check ((value is null) <> (problem is null))
);
create index result_by_job on forebay.result (job_id);
create index result_by_age on forebay.result (kept_until);

create table forebay.progress (
    job_id   bigint not null,
    group_id bigint not null,
    noted_at timestamptz not null,
    done     double precision not null,   -- 0 to 1
    note     text not null
);
create index progress_by_job on forebay.progress (job_id, noted_at);
create index progress_by_age on forebay.progress (noted_at);


-- Keep what a handler returned. Too large is no failure: the job is done, and its result says why it is missing.
create function forebay._keep_result(p_row forebay.log, p_group_id bigint, p_kept jsonb) returns void
language plpgsql volatile
as $$
declare
    v_value   jsonb := p_kept -> 'value';
    v_problem text := left(p_kept ->> 'problem', 1000);
    v_most    constant bigint := forebay._setting_value('result_bytes_max');
    v_bytes   bigint := octet_length(v_value::text);
begin
    if v_value is null and v_problem is null then
        v_problem := 'nothing was sent';
    elsif v_problem is not null then
        v_value := null;
    elsif v_bytes > v_most then
        v_value := null;
        v_problem := format('%s bytes, more than result_bytes_max %s', v_bytes, v_most);
    end if;
    insert into forebay.result (job_id, group_id, enqueued_at, kept_at, kept_until, value, problem)
    values (coalesce(p_row.job_id, p_row.seq), p_group_id, p_row.enqueued_at, forebay._now(),
            forebay._now() + make_interval(secs => least((p_kept ->> 'seconds')::double precision, 315360000)),
            v_value, v_problem);
end
$$;


-- Wake those who wait for a job's end, if anybody does. Under the same conditions as the workers' bell; who waits looks
-- for himself now and then.
create function forebay._tell_ended(p_job_id bigint) returns void
language plpgsql volatile
as $$
begin
    if coalesce(pg_sequence_last_value('forebay.result_bell'), 0) > date_part('epoch', clock_timestamp()) * 1000
       and forebay._may_notify() then
        perform pg_notify('forebay_result', p_job_id::text);
    end if;
end
$$;


-- How a job ended for one group, and what its handler returned.
--
-- value is null unless the job is done and its handler keeps results (keep_result); problem says why it is missing then.
-- Of a dead job: the reason, and its last error.
--
-- Parameters: wait_millis, the caller sleeps for so long if it has not ended and wants to hear of it, on channel
--   forebay_result with the job's id; 0 to 60000, null for not.
-- Errors: JQ001 a bad wait_millis, JQ013 no such job, JQ014 no such group.
create function forebay.result(job_id bigint, group_name text default 'default', wait_millis integer default null)
returns table (state text, value jsonb, problem text, kept_until timestamptz, reason text, error_type text, error_message text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now   constant bigint := (extract(epoch from clock_timestamp()) * 1000)::bigint;
    v_group bigint;
    v_found boolean := false;
    v_job   record;
begin
    if wait_millis not between 0 and 60000 then
        raise exception using errcode = 'JQ001', column = 'wait_millis',
            message = format('wait_millis %s is outside 0 to 60000', wait_millis);
    elsif wait_millis > 0 and coalesce(pg_sequence_last_value('forebay.result_bell'), 0) < v_now + wait_millis then
        -- Before the look: who settles after it rings. For longer than asked, since it is asked again.
        perform setval('forebay.result_bell', v_now + wait_millis + 5000);
    end if;
    select 'done', r.value, r.problem, r.kept_until into state, value, problem, kept_until
    from forebay.result r join forebay.queue_group g on g.group_id = r.group_id
    where r.job_id = result.job_id and g.name = result.group_name and r.kept_until > forebay._now()
    order by r.kept_at desc limit 1;
    if state is not null then
        return next;
        return;
    end if;
    for v_job in select j.group_name, j.state from forebay.job(result.job_id) j loop
        v_found := true;
        continue when v_job.group_name <> result.group_name;
        state := v_job.state;
    end loop;
    if state is null then
        raise exception using errcode = case when v_found then 'JQ014' else 'JQ013' end,
            message = case when v_found then format('job %s has no group %s', result.job_id, quote_literal(left(result.group_name, 40)))
                           else format('there is no job %s', coalesce(result.job_id::text, 'null')) end,
            detail = case when v_found then jsonb_build_object('group', result.group_name)
                          else jsonb_build_object('job_id', result.job_id) end,
            hint = case when v_found then 'Groups are opened by the first worker that serves them, or by forebay.open_group().'
                        else 'It may not be committed yet, or past retention.' end;
    end if;
    if state = 'done' then
        problem := 'its handler keeps none, or not for so long';
    elsif state = 'dead' then
        select d.reason, d.errors -> -1 ->> 'type', d.errors -> -1 ->> 'message'
        into reason, error_type, error_message
        from forebay.dead_letter d join forebay.queue_group g on g.group_id = d.group_id
        where d.job_id = result.job_id and g.name = result.group_name
        order by d.dead_id desc limit 1;
    end if;
    return next;
end
$$;


-- What happened to a job so far, for each group: its failed attempts, how far it is, what it returned.
--
-- errors: a JSON array of attempt, failed_at, outcome, type, message, traceback and worker, oldest first.
-- Errors: none; no row for a group without any of it.
create function forebay.job_history(job_id bigint)
returns table (group_name text, errors jsonb, done double precision, note text, noted_at timestamptz,
               value jsonb, problem text, kept_at timestamptz, kept_until timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_group record;
begin
    for v_group in
        select g.group_id, g.name from forebay.queue_group g
        where g.group_id in (select f.group_id from forebay.failure f where f.job_id = job_history.job_id
                             union select p.group_id from forebay.progress p where p.job_id = job_history.job_id
                             union select r.group_id from forebay.result r where r.job_id = job_history.job_id)
        order by g.group_id
    loop
        group_name := v_group.name;
        select coalesce(jsonb_agg(jsonb_build_object(
                   'attempt', f.attempt, 'failed_at', f.failed_at, 'outcome', f.outcome, 'type', f.error_type,
                   'message', f.message, 'traceback', f.traceback, 'worker', f.worker) order by f.failed_at), '[]')
        into errors
        from forebay.failure f where f.job_id = job_history.job_id and f.group_id = v_group.group_id;
        select p.done, p.note, p.noted_at into done, note, noted_at
        from forebay.progress p where p.job_id = job_history.job_id and p.group_id = v_group.group_id
        order by p.noted_at desc limit 1;
        select r.value, r.problem, r.kept_at, r.kept_until into value, problem, kept_at, kept_until
        from forebay.result r where r.job_id = job_history.job_id and r.group_id = v_group.group_id
        order by r.kept_at desc limit 1;
        return next;
    end loop;
end
$$;


-- Note how far some running jobs are; returns how many were noted.
--
-- Parameters: p_items, a JSON array of {"job_id", "group_id", "done": 0 to 1, "note": at most 200 characters}
-- A closed lease notes nothing. Locks: none.
create function forebay.note_progress_v1(p_lease_id bigint, p_items jsonb) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rows integer;
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into forebay.progress (job_id, group_id, noted_at, done, note)
    select (i.value ->> 'job_id')::bigint, (i.value ->> 'group_id')::bigint, forebay._now(),
           greatest(0, least(1, (i.value ->> 'done')::double precision)), left(coalesce(i.value ->> 'note', ''), 200)
    from jsonb_array_elements(p_items) i
    where exists (select from forebay.lease l where l.lease_id = p_lease_id and l.closed_at is null);
    get diagnostics v_rows = row_count;
    return v_rows;
end
$$;


-- Delete results past their time, and progress that is a day old.
create function forebay._trim_results() returns bigint
language plpgsql volatile
as $$
declare
    v_results  bigint;
    v_progress bigint;
begin
    delete from forebay.result r where r.ctid = any (array(
        select o.ctid from forebay.result o where o.kept_until < forebay._now() limit 10000));
    get diagnostics v_results = row_count;
    delete from forebay.progress p where p.ctid = any (array(
        select o.ctid from forebay.progress o where o.noted_at < forebay._now() - interval '1 day' limit 10000));
    get diagnostics v_progress = row_count;
    return v_results + v_progress;
end
$$;


select forebay._grant();
