-- grant: worker

-- The checkpoints of a job in a group, in order, for a handler that begins.
--
-- Columns:
--   no          its place, from 1
--   kind        as in the view `forebay.code`
--   name, key   of the checkpoint; key null: it has only a name
--   value       what the step returned, as JSON; null for nothing
--   at, age     when it was recorded, and how many seconds ago, by the clock of the database
-- pages: 10 + 1 a job
create function forebay.steps_v1(p_job_id bigint, p_group_id bigint)
returns table (no integer, kind text, name text, key text, value text, at timestamptz, age double precision)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select s.no, s.kind::text, s.name, s.key, s.value::text, s.at, extract(epoch from forebay._now() - s.at)::double precision
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
-- Errors: JQ010 the lease is closed.
-- Transaction: any. In the transaction of a step, its effects and the checkpoint are one commit.
-- Locks: the lease (KEY SHARE), until the transaction ends.
--
-- Inside: Invariants "single holder": a revocation waits for the transaction, or it is refused; and
-- "one checkpoint, one number".
-- pages: 20 + 8 a job
create function forebay.record_steps_v1(p_lease_id bigint, p_steps jsonb) returns text[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
begin
    perform from forebay.lease l where l.lease_id = p_lease_id and l.closed_at is null for key share;
    if not found then
        raise exception using errcode = 'JQ010',
            message = format('lease %s is closed', p_lease_id),
            detail = jsonb_build_object('lease', p_lease_id),
            hint = 'Its jobs were given to other workers; this checkpoint was not recorded.';
    end if;
    return forebay._record_steps(p_steps);
end
$$;


-- Append checkpoints, and say which were written.
create function forebay._record_steps(p_steps jsonb) returns text[]
language plpgsql volatile
-- planner: hot
as $$
declare
    v_now constant timestamptz := forebay._now();
    v_statuses text[];
begin
    if pg_sequence_last_value('forebay.flow_seq') is null then
        perform nextval('forebay.flow_seq');
    end if;
    with given as materialized (
        select g.* from jsonb_array_elements(p_steps) with ordinality e (value, nr)
        cross join lateral (select e.nr, i.job_id, i.group_id, i.no, i.kind::"char" as kind, i.name, i.key, i.value
                            from jsonb_to_record(e.value) i (job_id bigint, group_id bigint, no integer, kind text, name text, key text, value jsonb)) g
    ), written as (
        insert into forebay.step (job_id, group_id, at, no, kind, name, key, value)
        select g.job_id, g.group_id, v_now, g.no, g.kind, g.name, g.key, g.value from given g order by g.nr
        on conflict do nothing
        returning job_id, group_id, no
    )
    select array_agg(case when w.no is not null then 'recorded' end order by g.nr) into v_statuses
    from given g left join written w on (w.job_id, w.group_id, w.no) = (g.job_id, g.group_id, g.no);
    if array_position(v_statuses, null) is not null then
        -- A later statement: it sees what another transaction has committed meanwhile.
        v_statuses := array(
            select coalesce(v_statuses[e.nr], case when exists (
                       select from forebay.step s
                       where s.job_id = (e.value ->> 'job_id')::bigint and s.group_id = (e.value ->> 'group_id')::bigint
                         and s.no = (e.value ->> 'no')::integer and s.kind = (e.value ->> 'kind')::"char" and s.name = e.value ->> 'name'
                         and s.key is not distinct from e.value ->> 'key' and s.value is not distinct from nullif(e.value -> 'value', 'null'))
                   then 'repeated' else 'refused' end)
            from jsonb_array_elements(p_steps) with ordinality e (value, nr) order by e.nr);
    end if;
    return v_statuses;
end
$$;
