-- The child that a job is, by its headers: gather and number. Headers can be forged, so forebay._end_children() compares the job's id.
create function forebay._child_in(p_headers jsonb) returns text[]
language sql immutable
as $$ select regexp_match(p_headers ->> 'forebay-parent', E'^\\{"nr": (\\d{1,9}), "job": \\d{1,18}, "gather": "(\\d{1,19})"\\}$') $$;


-- Record how children ended, in the transaction that ends their jobs: each with `gather`, `nr`, `job_id`, and as needed `outcome` (d without it),
-- `value`, `problem`.
--
-- Invariant "counted once": a row for each job, and a wake row with the number of rows written. A job that is no child of the gather is
-- left out.
create function forebay._end_children(p_ends jsonb) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_most constant bigint := forebay._setting_value('result_bytes_max');
begin
    with given as materialized (
        select (e.value ->> 'gather')::bigint as gather_id, (e.value ->> 'nr')::integer as nr, (e.value ->> 'job_id')::bigint as job_id,
               coalesce(e.value ->> 'outcome', 'd')::"char" as outcome, e.value -> 'value' as value, e.value ->> 'problem' as problem,
               octet_length((e.value -> 'value')::text) as bytes
        from jsonb_array_elements(p_ends) e
    ), ended as (
        insert into forebay.gather_end (gather_id, nr, job_id, outcome, at, value, problem)
        select g.gather_id, g.nr, g.job_id, g.outcome, forebay._now(), case when g.bytes <= v_most then nullif(g.value, 'null') end,
               case when g.bytes > v_most then format('%s bytes, more than result_bytes_max %s', g.bytes, v_most) else left(g.problem, 1000) end
        from given g
        cross join lateral (select p.job_ids[g.nr - p.first_nr + 1] as job_id from forebay.gather_part p
                            where p.gather_id = g.gather_id and p.first_nr <= g.nr order by p.first_nr desc limit 1) p
        where case when g.job_id = p.job_id then true else forebay._first_of_redriven(g.job_id, p.job_id) end
        on conflict do nothing
        returning gather_id
    )
    insert into forebay.deferred (run_at, lane, enqueued_at, job_id, kind, args)
    select forebay._now(), 0, forebay._now(), forebay._flow_mark(), '', jsonb_build_object('gather', e.gather_id::text, 'ended', count(*))
    from ended e group by e.gather_id;
    perform forebay._announce_due(forebay._now());
end
$$;


-- Is this the job p_first, or one that it was redriven as?
create function forebay._first_of_redriven(p_job_id bigint, p_first bigint) returns boolean
language plpgsql stable
-- planner: indexed
as $$
begin
    for i in 1 .. 100 loop
        if p_job_id = p_first then
            return true;
        end if;
        select d.job_id into p_job_id from forebay.dead_letter d where d.redriven_as = p_job_id;
        if not found then
            return false;
        end if;
    end loop;
    return false;
end
$$;


-- Record how one child ended that no worker reports as done: dead, or cancelled.
create function forebay._end_child(p_row forebay.log, p_outcome "char", p_problem text) returns void
language plpgsql volatile
as $$
declare
    v_child constant text[] := forebay._child_in(p_row.headers);
begin
    if v_child is not null then
        perform forebay._end_children(jsonb_build_array(jsonb_build_object(
            'gather', v_child[2], 'nr', v_child[1], 'job_id', coalesce(p_row.job_id, p_row.seq), 'outcome', p_outcome::text, 'problem', p_problem)));
    end if;
end
$$;
