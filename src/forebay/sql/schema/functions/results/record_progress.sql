-- grant: worker

-- Record the progress of running jobs: a JSON array of `{"job_id", "group_id", "done": 0 to 1,
-- "note": at most 200 characters}`. Returns how many were recorded: none under a closed lease.
-- Deleted after a day.
--
-- Transaction: any; commits asynchronously.
-- pages: 20 + 5 a job
create function forebay.record_progress_v1(p_lease_id bigint, p_items jsonb) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    v_rows integer;
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into forebay.progress (job_id, group_id, recorded_at, done, note)
    select (i.value ->> 'job_id')::bigint, (i.value ->> 'group_id')::bigint, forebay._now(),
           greatest(0, least(1, (i.value ->> 'done')::double precision)), left(coalesce(i.value ->> 'note', ''), 200)
    from jsonb_array_elements(p_items) i
    where exists (select from forebay.lease l where l.lease_id = p_lease_id and l.closed_at is null);
    get diagnostics v_rows = row_count;
    return v_rows;
end
$$;
