-- grant: worker

-- The queues with p_most waiting jobs or more. Workers call it regularly, and log them.
--
-- Errors: JQ030 foreign cluster.
-- pages: 1000 + 100 a lane + 4 an uncounted job
create function forebay.count_v1(p_most bigint default 1000000)
returns table (queue text, group_name text, waiting bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
begin
    perform forebay._require_same_cluster();
    return query
    select w.queue, w.group_name, sum(u.ready + u.scheduled + u.retrying)::bigint
    from forebay._count_waiting(null) w cross join lateral unnest(w.ready, w.scheduled, w.retrying) u (ready, scheduled, retrying)
    where w.group_id <> 0
    group by w.queue, w.group_id, w.group_name
    having sum(u.ready + u.scheduled + u.retrying) >= p_most
    order by 1, 2;
end
$$;
