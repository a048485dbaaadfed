-- grant: worker

-- End a wait whose time is over, for an attempt that runs: the signal that is there, or the timeout,
-- becomes a checkpoint. Returns it, as forebay.steps_v1() does; no row: the job has no such wait.
--
-- Parameters: `p_no`, the number of the checkpoint that ends the wait.
--
-- Errors: JQ010 the lease is closed.
-- Transaction: any; meant to be autocommitted.
-- Locks: the lease (KEY SHARE), the wait, then the signal.
-- pages: 40
create function forebay.end_wait_v1(p_lease_id bigint, p_job_id bigint, p_group_id bigint, p_no integer)
returns table (no integer, kind text, name text, key text, value text, at timestamptz, age double precision)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_waiter  forebay.waiter;
    v_payload jsonb;
begin
    perform from forebay.lease l where l.lease_id = p_lease_id and l.closed_at is null for key share;
    if not found then
        raise exception using errcode = 'JQ010',
            message = format('lease %s is closed', p_lease_id),
            detail = jsonb_build_object('lease', p_lease_id),
            hint = 'Its jobs were given to other workers; this call changed nothing.';
    end if;
    delete from forebay.waiter w where w.job_id = p_job_id and w.group_id = p_group_id and w.no = p_no returning w.* into v_waiter;
    if found then
        delete from forebay.signal s where s.name = v_waiter.name and s.key = v_waiter.key returning s.payload into v_payload;
        insert into forebay.step (job_id, group_id, at, no, kind, name, key, value)
        values (p_job_id, p_group_id, forebay._now(), p_no, case when found then 'w' else 't' end, v_waiter.step, v_waiter.step_key, v_payload)
        on conflict do nothing;
    end if;
    return query
    select s.no, s.kind::text, s.name, s.key, s.value::text, s.at, extract(epoch from forebay._now() - s.at)::double precision
    from forebay.step s where s.job_id = p_job_id and s.group_id = p_group_id and s.no = p_no;
end
$$;
