-- grant: worker

-- Begin to gather the results of jobs: record the checkpoint and return the number of the gather.
-- forebay.gather_children_v1() enqueues the jobs, in the same transaction.
--
-- Parameters:
--   p_no, p_name, p_key  of the checkpoint of the parent `p_job_id`
--   p_children           how many jobs
--
-- Errors: JQ010 the lease is closed, JQ019 another checkpoint has this number.
-- Transaction: any.
-- Locks: the lease (KEY SHARE), until the transaction ends.
--
-- Inside: Invariant "one checkpoint, one number": children exist with the checkpoint that names them.
-- pages: 30
create function forebay.gather_v1(
    p_lease_id bigint, p_job_id bigint, p_group_id bigint, p_no integer, p_name text, p_key text, p_children integer)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_id constant bigint := forebay._random_name();
begin
    if (forebay.record_steps_v1(p_lease_id, jsonb_build_array(jsonb_build_object(
            'job_id', p_job_id, 'group_id', p_group_id, 'no', p_no, 'kind', 'g', 'name', p_name, 'key', p_key,
            'value', jsonb_build_object('gather', v_id::text, 'children', p_children)))))[1] <> 'recorded' then
        perform forebay._refuse_step(p_lease_id, p_job_id, p_no);
    end if;
    insert into forebay.gather (gather_id, job_id, group_id, no, name, children, begun_at)
    values (v_id, p_job_id, p_group_id, p_no, p_name, p_children, forebay._now());
    return v_id;
end
$$;


-- Enqueue children of a gather. `p_jobs` is as for forebay.enqueue_many(); a child has no unique
-- key, since it could belong to another job.
--
-- Parameters: `p_first`, which child the first job is, from 1.
--
-- Errors: those of forebay.enqueue_many(); JQ001 a child has the ordering key that its parent, or a
--   parent of that, holds in the same queue. Roll the transaction back.
-- Transaction: that of forebay.gather_v1().
-- pages: 60 + 8 a job
create function forebay.gather_children_v1(p_gather_id bigint, p_first integer, p_jobs jsonb) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
begin
    if jsonb_typeof(p_jobs) = 'array' and not p_jobs @? '$[*] ? (@.type() != "object")' then
        perform forebay._refuse_held_keys(p_gather_id, forebay._with_declared_keys(p_jobs));
    end if;
    perform forebay._enqueue_children(g.gather_id, g.job_id, p_first, p_jobs, 'child') from forebay.gather g where g.gather_id = p_gather_id;
end
$$;


-- Refuse children with an ordering key that a job holds which waits for them: its parent, or a parent of that. Each would wait for the other.
create function forebay._refuse_held_keys(p_gather_id bigint, p_jobs jsonb) returns void
language plpgsql stable
-- planner: indexed
as $$
declare
    v_holder bigint;
    v_gather bigint := p_gather_id;
    v_row    record;
    v_child  record;
begin
    -- A callback holds no key while it waits.
    while v_gather is not null and p_jobs @? '$[*].ordering_key ? (@ != null)' loop
        select g.job_id into v_holder from forebay.gather g where g.gather_id = v_gather and g.group_id <> 0;
        exit when not found;
        select r.ordering_key, r.headers, l.queue into v_row
        from (select d.lane, d.ordering_key, d.headers from forebay.deferred d where d.job_id = v_holder
              union all select i.lane, i.ordering_key, i.headers from forebay._rows_of(v_holder) i) r
        cross join lateral (select i.queue from forebay.lane i where i.lane = r.lane limit 1) l
        where r.lane <> 0 limit 1;
        select j.ordinality - 1 as index into v_child
        from jsonb_array_elements(p_jobs) with ordinality j
        where j.value ->> 'ordering_key' = v_row.ordering_key
          and coalesce(j.value ->> 'queue', (select k.queue from forebay.kind_queue k where k.kind = j.value ->> 'kind'), 'default') = v_row.queue
        order by j.ordinality limit 1;
        if found then
            raise exception using errcode = 'JQ001', column = 'ordering_key',
                message = format('child %s: job %s, which waits for it, holds its ordering key %s in queue %s', v_child.index, v_holder,
                                 quote_literal(left(v_row.ordering_key, 200)), v_row.queue),
                detail = jsonb_build_object('index', v_child.index),
                hint = 'Nothing was enqueued. Give the child another ordering key, or none; or enqueue it in another queue.';
        end if;
        v_gather := (forebay._child_in(v_row.headers))[2]::bigint;
    end loop;
end
$$;


-- Enqueue children of a gather, each with a header that says which one it is. p_noun: what the caller calls a job.
create function forebay._enqueue_children(p_gather_id bigint, p_parent bigint, p_first integer, p_jobs jsonb, p_noun text) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_ids bigint[];
begin
    select e.ids into v_ids from forebay._enqueue_json(p_jobs, p_noun, p_gather_id, p_parent, p_first) e;
    insert into forebay.gather_part (gather_id, first_nr, job_ids)
    select p_gather_id, p_first + i, v_ids[i + 1 : i + 200] from generate_series(0, cardinality(v_ids) - 1, 200) i;
end
$$;


-- How the children of a gather ended, in order; null for one that has not.
--
-- Columns: `nr`, `job_id`, `outcome` (done, dead, cancelled; null: not ended), `value`, `problem`.
-- pages: 20 + 2 a job
create function forebay.gathered_v1(p_gather_id bigint)
returns table (nr integer, job_id bigint, outcome text, value text, problem text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select p.first_nr + i.place::integer - 1, coalesce(e.job_id, i.job_id),
           case e.outcome when 'd' then 'done' when 'c' then 'cancelled' when 'x' then 'dead' end, e.value::text, e.problem
    from forebay.gather_part p
    cross join lateral unnest(p.job_ids) with ordinality i (job_id, place)
    left join lateral (select g.* from forebay.gather_end g
                       where g.gather_id = p.gather_id and g.nr = p.first_nr + i.place - 1 order by g.job_id desc limit 1) e on true
    where p.gather_id = p_gather_id
    order by 1
$$;
