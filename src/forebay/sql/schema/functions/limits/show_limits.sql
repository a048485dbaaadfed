-- grant: operator, reader

-- The queues with a pace or with limit keys, for each group: the pace, how many jobs run, of how many limit keys jobs wait or
-- may wait, and when the next job of the queue may start by its rate.
create function forebay.pace(only_queue text default null)
returns table (queue text, group_name text, concurrency integer, rate double precision, burst integer, key_concurrency integer,
               key_rate double precision, key_burst integer, running bigint, keys_waiting integer, next_start_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_group record;
    v       forebay._gate_view;
begin
    for v_group in
        select q.queue, g.group_id, g.name
        from (select p.queue from forebay.queue_pace p union select l.queue from forebay.lane l where l.sort = 'dispatch') q
        left join forebay.queue_group g on g.queue = q.queue
        where only_queue is null or q.queue = only_queue
        order by q.queue, g.name
    loop
        v := forebay._look_at_gate(coalesce(v_group.group_id, 0), v_group.queue);
        queue := v_group.queue;
        group_name := coalesce(v_group.name, 'default');
        concurrency := (v.pace).concurrency;
        rate := (v.pace).rate;
        burst := (v.pace).burst;
        key_concurrency := (v.pace).key_concurrency;
        key_rate := (v.pace).key_rate;
        key_burst := (v.pace).key_burst;
        running := coalesce((select sum(f.open) from forebay._in_flight(v_group.group_id) f), 0);
        keys_waiting := (select count(distinct k) from unnest(v.lane_keys) k);
        next_start_at := case when rate is not null and forebay._tokens(v.tat, rate, burst, v.at) = 0
                              then v.tat - make_interval(secs => (coalesce(burst, ceil(rate)) - 1) / rate) end;
        return next;
    end loop;
end
$$;
