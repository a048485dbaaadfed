-- grant: worker, operator, reader

-- How far jobs are, for those who wait for many at once: a row for each pair of a job and a group
-- that this snapshot sees, and none for any other. Ask all that you watch in one statement, about
-- twice a second. Grant this function separately to the role of a web service; with it the role can
-- read the state and the progress of each job, and no argument, error or result.
--
-- Parameters:
--   job_ids      at most 1,000 jobs
--   group_names  the group of each
--
-- Columns:
--   state        as `forebay.job()`; null: the queue of the job does not have this group
--   attempt      the attempt that runs, or runs next, from 1; of a job that has ended, the last that
--                ran
--   done, note, recorded_at
--                the last progress that the handler reported; null without one
--   has_result   whether the job is done and `forebay.result()` has what it returned
--
-- Errors: JQ001 too many jobs, or not one group for each.
-- pages: 10 + 500 a job + 60 a segment
create function forebay.watch_jobs(job_ids bigint[], group_names text[])
returns table (job_id bigint, group_name text, state text, attempt integer, done double precision, note text, recorded_at timestamptz,
               has_result boolean)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_id    bigint;
    v_name  text;
    v_group bigint;
    v_job   record;
begin
    if cardinality(job_ids) > 1000 or cardinality(job_ids) is distinct from cardinality(group_names) then
        raise exception using errcode = 'JQ001', column = 'job_ids',
            message = format('job_ids has %s jobs for %s groups', coalesce(cardinality(job_ids), 0), coalesce(cardinality(group_names), 0)),
            hint = 'Give a group for each job, and at most 1,000 jobs.';
    end if;
    for v_id, v_name in select w.id, w.name from unnest(job_ids, group_names) w (id, name) loop
        job_id := null;
        state := null; attempt := null; done := null; note := null; recorded_at := null; has_result := false;
        for v_job in select j.job_id, j.group_name, j.queue, j.state, j.attempt from forebay.job(v_id) j loop
            job_id := v_job.job_id;
            continue when v_job.group_name <> v_name;
            state := v_job.state;
            attempt := v_job.attempt;
            v_group := (select g.group_id from forebay.queue_group g where g.queue = v_job.queue and g.name = v_name);
        end loop;
        continue when job_id is null;
        group_name := v_name;
        if state is not null then
            select p.done, p.note, p.recorded_at into done, note, recorded_at
            from forebay.progress p where p.job_id = v_id and p.group_id = v_group
            order by p.recorded_at desc limit 1;
            has_result := state = 'done' and exists (
                select from forebay.result r
                where r.job_id = v_id and r.group_id = v_group and r.kept_until > forebay._now() and r.value is not null);
        end if;
        return next;
    end loop;
end
$$;
