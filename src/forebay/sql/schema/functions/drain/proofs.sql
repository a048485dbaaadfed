-- The audit of a drain: it reads the proofs that the drain keeps as results, and sends again what the far side has lost.
-- See "Audits" in docs/design/deliver.md.
-- grant: worker

-- A page of the proofs that a drain keeps of a group's messages, in the order in which they end.
-- `proof` is `{"proof": what the sink answered, "generation": n}`; without `generation` it is 0.
--
-- Parameters:
--   p_after_until, p_after_job_id
--           of the last row of the page before; null: the first page
--   p_most  1 to 10000
--
-- Errors: JQ001 a bad number, JQ014 no such group.
-- pages: 60 + 6 a proof + 1 a result of another group
create function forebay.proofs_v1(
    p_queue text, p_group_name text, p_after_until timestamptz default null, p_after_job_id bigint default null, p_most integer default 1000)
returns table (job_id bigint, enqueued_at timestamptz, kept_until timestamptz, proof jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in steps
as $$
#variable_conflict use_column
begin
    if (p_most between 1 and 10000) is not true then
        raise exception using errcode = 'JQ001', message = format('most %s is outside 1 to 10000', coalesce(p_most::text, 'null'));
    end if;
    perform forebay._require_group(p_queue, p_group_name);
    return query
    select r.job_id, r.enqueued_at, r.kept_until, r.value
    from forebay.result r
    where r.kept_until >= coalesce(p_after_until, forebay._now())
      and (p_after_until is null or (r.kept_until, r.job_id) > (p_after_until, p_after_job_id))
      and r.group_id = (select g.group_id from forebay.queue_group g where g.queue = p_queue and g.name = p_group_name)
      and r.value ? 'proof'
    order by r.kept_until, r.job_id
    limit p_most;
end
$$;
