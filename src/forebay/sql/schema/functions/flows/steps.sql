-- grant: worker

-- The checkpoints of a job in a group, in order, for a handler that begins.
--
-- Columns:
--   no          its place, from 1
--   kind        as in the view `forebay.code`
--   name, key   of the checkpoint; key null: it has only a name
--   value       what the step returned, as JSON; null for nothing
--   at, age     of a sleep, and of a wait: when it began, and how many seconds ago, by the clock of
--               the database; null for others
-- pages: 10 + 1 a job
create function forebay.steps_v1(p_job_id bigint, p_group_id bigint)
returns table (no integer, kind text, name text, key text, value text, at timestamptz, age double precision)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select s.no, s.kind::text, s.name, s.key, s.value::text,
           -- A long flow reads a thousand steps at each attempt: a time costs more than the rest of its row.
           case when s.kind in ('z', 'p') then s.at end,
           case when s.kind in ('z', 'p') then extract(epoch from forebay._now() - s.at)::double precision end
    from forebay.step s where s.job_id = p_job_id and s.group_id = p_group_id order by s.no
$$;


-- Record checkpoints of running jobs. `p_steps` is an array of objects with `job_id`, `group_id`,
-- `no`, `kind`, `name`, and as needed `key` and `value`. Returns a status for each, in order.
--
-- Statuses:
--   recorded  it was written
--   repeated  the same checkpoint was there: the answer to an earlier call was lost
--   refused   another checkpoint has its number: another attempt of the job has continued
--
-- Parameters: `p_with_effects`, the transaction has effects of a step: a revocation waits for it.
--
-- Errors: JQ010 the lease is closed.
-- Transaction: any. In the transaction of a step, its effects and the checkpoint are one commit.
-- Locks: with effects the lease (KEY SHARE), until the transaction ends.
--
-- Inside: Invariants "single holder": a revocation waits for a transaction with effects, or it is
-- refused; and "one checkpoint, one number". A checkpoint alone needs no lock: one that is committed
-- after a revocation is of a step that has run, and if the next attempt has not read it, the number
-- refuses one of the two.
-- pages: 20 + 8 a job
create function forebay.record_steps_v1(p_lease_id bigint, p_steps jsonb, p_with_effects boolean default true) returns text[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
begin
    if p_with_effects then
        perform from forebay.lease l where l.lease_id = p_lease_id and l.closed_at is null for key share;
    else
        perform from forebay.lease l where l.lease_id = p_lease_id and l.closed_at is null;
    end if;
    if not found then
        perform forebay._refuse_lease(p_lease_id);
    end if;
    return forebay._record_steps(p_steps);
end
$$;


-- Record the checkpoint of a step as the last act of the transaction of its function: effects and
-- checkpoint are one commit. What forebay.record_steps_v1() does for one, but it raises an error where
-- that one returns a status, so the commit may follow in the same message.
--
-- Parameters:
--   p_clear   also clear what the transaction leaves in the session, as forebay.settle_job_v1() does
--
-- Errors: JQ010 the lease is closed, 23505 (step_pkey) another checkpoint has its number: another
--   attempt of the job has continued; 40001 in a REPEATABLE READ transaction older than the revocation.
-- Transaction: that of the effects.
-- Locks: the lease (KEY SHARE), until the transaction ends.
--
-- Inside: Invariants "effect and checkpoint", and "single holder": a revocation waits for this
-- transaction, or it is refused.
-- pages: 24
create function forebay.record_once_v1(
    p_lease_id bigint, p_job_id bigint, p_group_id bigint, p_no integer, p_name text, p_key text, p_value jsonb, p_clear boolean default false)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
begin
    if pg_sequence_last_value('forebay.flow_seq') is null then
        perform nextval('forebay.flow_seq');
    end if;
    insert into forebay.step (job_id, group_id, at, no, kind, name, key, value)
    select p_job_id, p_group_id, forebay._now(), p_no, 'o', p_name, p_key, nullif(p_value, 'null')
    from forebay.lease l where l.lease_id = p_lease_id and l.closed_at is null for key share;
    if not found then
        perform forebay._refuse_lease(p_lease_id);
    end if;
    if p_clear then
        perform forebay._clear_session();
    end if;
end
$$;


-- Refuse what a worker does with a lease that is closed.
create function forebay._refuse_lease(p_lease_id bigint) returns void
language plpgsql stable
as $$
begin
    raise exception using errcode = 'JQ010',
        message = format('lease %s is closed', p_lease_id),
        detail = jsonb_build_object('lease', p_lease_id),
        hint = 'Its jobs were given to other workers; this call changed nothing.';
end
$$;


-- Refuse a checkpoint whose number another one has.
create function forebay._refuse_step(p_lease_id bigint, p_job_id bigint, p_no integer) returns void
language plpgsql stable
as $$
begin
    raise exception using errcode = 'JQ019',
        message = format('checkpoint %s of job %s is there already', p_no, p_job_id),
        detail = jsonb_build_object('lease', p_lease_id),
        hint = 'Another attempt of the job has continued. This call changed nothing.';
end
$$;


-- Append checkpoints, and say which were written.
--
-- Not "on conflict", which writes another record of the log for each row. So two writers of one number at the same moment meet an error of
-- the primary key; called again, it sees the row of the other one.
create function forebay._record_steps(p_steps jsonb) returns text[]
language plpgsql volatile
-- planner: hot
as $$
declare
    v_new integer;
begin
    if pg_sequence_last_value('forebay.flow_seq') is null then
        perform nextval('forebay.flow_seq');
    end if;
    insert into forebay.step (job_id, group_id, at, no, kind, name, key, value)
    select i.job_id, i.group_id, forebay._now(), i.no, i.kind::"char", i.name, i.key, nullif(i.value, 'null')
    from jsonb_to_recordset(p_steps) i (job_id bigint, group_id bigint, no integer, kind text, name text, key text, value jsonb)
    where not exists (select from forebay.step s where s.job_id = i.job_id and s.group_id = i.group_id and s.no = i.no);
    get diagnostics v_new = row_count;
    if v_new = jsonb_array_length(p_steps) then
        return array_fill('recorded'::text, array[v_new]);
    end if;
    return array(
        select case when s.no is null then 'refused'
                    when s.xmin::text = pg_current_xact_id()::xid::text then 'recorded'
                    when s.kind = i.kind::"char" and s.name = i.name and s.key is not distinct from i.key
                         and s.value is not distinct from nullif(i.value, 'null') then 'repeated' else 'refused' end
        from jsonb_array_elements(p_steps) with ordinality e (value, nr)
        cross join lateral jsonb_to_record(e.value) i (job_id bigint, group_id bigint, no integer, kind text, name text, key text, value jsonb)
        left join lateral (select t.*, t.xmin from forebay.step t where t.job_id = i.job_id and t.group_id = i.group_id and t.no = i.no) s on true
        order by e.nr);
end
$$;
