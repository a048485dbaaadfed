-- grant: worker

-- End a wait whose time is over, for an attempt that runs: the signal that is there, or the timeout,
-- becomes a checkpoint. Returns it, as forebay.steps_v1() does. A signal that another flow waits for
-- is left to that one.
--
-- Parameters:
--   p_no    number of the checkpoint that ends the wait
--   p_wait  an object with `name` and `key` of the signal, `step` and, as needed, `step_key`
--
-- Errors: JQ010 the lease is closed, JQ019 another checkpoint has this number.
-- Transaction: any; meant to be autocommitted. A repeated call returns what the first one recorded.
-- Locks: the lease (KEY SHARE), the wait, then the signal.
-- pages: 40
create function forebay.end_wait_v1(p_lease_id bigint, p_job_id bigint, p_group_id bigint, p_no integer, p_wait jsonb)
returns table (no integer, kind text, name text, key text, value text, at timestamptz, age double precision)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_step    constant text := p_wait ->> 'step';
    v_key     constant text := p_wait ->> 'step_key';
    v_payload jsonb;
    v_sent    boolean;
begin
    perform from forebay.lease l where l.lease_id = p_lease_id and l.closed_at is null for key share;
    if not found then
        perform forebay._refuse_lease(p_lease_id);
    end if;
    if not exists (select from forebay.step s
                   where s.job_id = p_job_id and s.group_id = p_group_id and s.no = p_no
                     and s.kind in ('w', 't') and s.name = v_step and s.key is not distinct from v_key) then
        perform forebay._leave_wait(p_job_id, p_group_id);
        delete from forebay.signal s
        where s.name = p_wait ->> 'name' and s.key = p_wait ->> 'key'
          and not exists (select from forebay.waiter w
                          where w.name = s.name and w.key = s.key and forebay._parked_row(w.job_id, w.group_id) is not null)
        returning s.payload into v_payload;
        v_sent := found;
        insert into forebay.step (job_id, group_id, at, no, kind, name, key, value)
        values (p_job_id, p_group_id, forebay._now(), p_no, case when v_sent then 'w' else 't' end, v_step, v_key, v_payload)
        on conflict do nothing;
        if not found then
            perform forebay._refuse_step(p_lease_id, p_job_id, p_no);
        end if;
    end if;
    return query
    select s.no, s.kind::text, s.name, s.key, s.value::text, s.at, extract(epoch from forebay._now() - s.at)::double precision
    from forebay.step s where s.job_id = p_job_id and s.group_id = p_group_id and s.no = p_no;
end
$$;
