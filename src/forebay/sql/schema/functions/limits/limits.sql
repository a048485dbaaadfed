-- grant: operator, reader

-- The queues that have limits or jobs with limit keys, a row for each group: the limits, how many
-- jobs workers hold, the number of limit keys with parked jobs, and when the queue's rate lets the
-- next job start (null: at once).
--
-- Transaction: the caller's; reads only.
-- See: docs/howto/limits.md
-- pages: 300 + 2 a lane + 20 an open lease
create function forebay.limits(only_queue text default null)
returns table (queue text, group_name text, max_waiting bigint, rate double precision, burst integer, concurrency integer,
               key_rate double precision, key_burst integer, key_concurrency integer, running bigint, keys_waiting integer,
               next_start_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_group record;
    v       forebay._limiter_view;
begin
    for v_group in
        select q.queue, g.group_id, g.name
        from (select l.queue from forebay.queue_limits l union select l.queue from forebay.lane l where l.sort = 'limited') q
        left join forebay.queue_group g on g.queue = q.queue
        where only_queue is null or q.queue = only_queue
        order by q.queue, g.name
    loop
        v := forebay._read_limiter(coalesce(v_group.group_id, 0), v_group.queue);
        queue := v_group.queue;
        group_name := coalesce(v_group.name, 'default');
        max_waiting := (v.limits).max_waiting;
        rate := (v.limits).rate;
        burst := (v.limits).burst;
        concurrency := (v.limits).concurrency;
        key_rate := (v.limits).key_rate;
        key_burst := (v.limits).key_burst;
        key_concurrency := (v.limits).key_concurrency;
        running := coalesce((select sum(f.open) from forebay._in_flight(v_group.group_id) f), 0);
        keys_waiting := (select count(*) from forebay._waiting_limit_keys(v_group.group_id));
        next_start_at := case when rate is not null and forebay._permits(v.tat, rate, burst, v.at) = 0
                              then v.tat - make_interval(secs => (coalesce(burst, ceil(rate)) - 1) / rate) end;
        return next;
    end loop;
end
$$;
