-- grant: worker, operator

-- Append new counts of waiting jobs, for queues and groups whose last count leaves at least
-- `p_least` rows to visit, and once a minute for those with any; returns their number.
-- forebay.depth() and enqueues into queues with `max_waiting` continue from these counts. The first
-- count of a group visits all its waiting jobs, about a second for a million; later counts visit
-- what was enqueued, promoted or claimed since. No enqueue and no claim waits for it. `p_queues`
-- null: all.
--
-- Errors: JQ030 foreign cluster.
-- Transaction: any; usually alone.
-- See: docs/design/backpressure.md
-- pages: 1000 + 100 a lane + 4 an uncounted job
create function forebay.renew_counters_v1(p_least bigint default 500, p_queues text[] default null) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    -- Before the snapshot below.
    v_last     constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    v_deferred constant bigint := coalesce(pg_sequence_last_value('forebay.deferred_seq'), 0);
    v_found    record;
    v_renewed  integer := 0;
begin
    perform forebay._require_same_cluster();
    for v_found in
        select w.last, w.base_no
        from forebay._waiting_read(p_queues) w
        left join lateral (select c.counted_at, c.consumed from forebay.counter_waiting c
                           where c.queue = w.queue and c.group_id = w.group_id order by c.oldest desc, c.no desc limit 1) c on true
        where w.is_first or w.visited >= p_least
           or (w.visited > 0 or c.consumed <> (w.last).consumed) and c.counted_at not between forebay._now() - interval '1 minute' and forebay._now()
    loop
        perform forebay._keep_waiting(v_found.last, v_found.base_no, v_last, v_deferred);
        v_renewed := v_renewed + 1;
    end loop;
    return v_renewed;
end
$$;
