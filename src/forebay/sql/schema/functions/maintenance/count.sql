-- grant: worker

-- Count the waiting jobs of every queue; returns the queues with p_most or more.
--
-- The first count for a group visits all waiting jobs of its queue, about 0.5 s for a million; later ones visit those enqueued since.
-- Not in steps: see docs/design/backpressure.md. No enqueue and no claim waits for it. Workers call it regularly.
--
-- Errors: JQ030 foreign cluster.
-- pages: 300 + 60 a lane
create function forebay.count_v1(p_most bigint default 1000000)
returns table (queue text, group_name text, waiting bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_group record;
begin
    perform forebay._require_same_cluster();
    for v_group in select g.group_id, g.queue, g.name from forebay.queue_group g order by g.created_at, g.group_id loop
        waiting := forebay._waiting(v_group.queue, v_group.group_id, -1, 1);
        if waiting >= p_most then
            queue := v_group.queue;
            group_name := v_group.name;
            return next;
        end if;
    end loop;
end
$$;
