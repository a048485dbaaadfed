-- Write checked jobs; returns their ids in input order.
create function forebay._enqueue_jobs(p_jobs forebay._job_input[]) returns bigint[]
language plpgsql volatile
as $$
declare
    v_now      timestamptz := forebay._now();
    v_ready    bigint[];
    v_deferred bigint[];
    v_target   record;
    v_queue    text;
    v_priority integer;
    v_lanes    bigint[];  -- the lanes of that queue and priority, which most jobs have
    v_limited  record := row(null::text, null::integer, null::bigint);  -- the same for jobs with a limit key: queue, priority and lane
    v_shards   constant jsonb := forebay._shards(array(select distinct u.queue from unnest(p_jobs) u));
begin
    for v_target in
        select distinct u.queue, u.priority, u.ordering_key is not null as is_keyed, u.limit_key is not null as is_limited from unnest(p_jobs) u
    loop
        if v_target.is_keyed then
            perform forebay._record_keyed_lane(v_target.queue, v_target.priority, 0);
        elsif v_target.is_limited then
            v_limited := row(v_target.queue, v_target.priority, forebay._record_limited_lane(v_target.queue, v_target.priority, 0));
        else
            v_lanes := forebay._record_lanes(v_target.queue, v_target.priority, v_shards);
            v_queue := v_target.queue;
            v_priority := v_target.priority;
        end if;
        perform forebay._notify(v_target.queue);
    end loop;
    if pg_sequence_last_value('forebay.limit_seq') is not null then
        perform forebay._require_below_max_waiting(q.queue, q.more)
        from (select u.queue, count(*) as more from unnest(p_jobs) u group by u.queue) q;
    end if;

    with written as (
        insert into forebay.log (lane, enqueued_at, expires_at, {job})
        select case when u.ordering_key is not null then forebay._keyed_lane_id(u.queue, u.priority, 0)
                    when u.limit_key is not null and u.queue = v_limited.f1 and u.priority = v_limited.f2 then v_limited.f3
                    when u.limit_key is not null then forebay._limited_lane_id(u.queue, u.priority, 0)
                    when u.queue = v_queue and u.priority = v_priority then v_lanes[1 + u.ordinality % cardinality(v_lanes)]
                    else forebay._lane_for_place(u.queue, u.priority, u.ordinality, v_shards) end, v_now, u.expires_at,
               {job of u}
        from unnest(p_jobs) with ordinality u
        where coalesce(u.run_at, v_now + make_interval(secs => u.delay), v_now) <= v_now
        order by u.ordinality
        returning seq)
    select array_agg(w.seq) into v_ready from written w;

    if coalesce(cardinality(v_ready), 0) = cardinality(p_jobs) then
        return coalesce(v_ready, '{}');
    end if;

    with written as (
        insert into forebay.deferred (run_at, lane, enqueued_at, job_id, expires_at, {job})
        select d.start,
               case when d.ordering_key is not null then forebay._keyed_lane_id(d.queue, d.priority, 0)
                    when d.limit_key is not null and d.queue = v_limited.f1 and d.priority = v_limited.f2 then v_limited.f3
                    when d.limit_key is not null then forebay._limited_lane_id(d.queue, d.priority, 0)
                    when d.queue = v_queue and d.priority = v_priority then v_lanes[1 + d.ordinality % cardinality(v_lanes)]
                    else forebay._lane_for_place(d.queue, d.priority, d.ordinality, v_shards) end, v_now, nextval('forebay.log_seq'),
               coalesce(d.expires_at, d.start + interval '30 days'),
               {job of d}
        from (select u.*, coalesce(u.run_at, v_now + make_interval(secs => u.delay)) as start
              from unnest(p_jobs) with ordinality u
              where coalesce(u.run_at, v_now + make_interval(secs => u.delay)) > v_now
              order by u.ordinality) d
        returning job_id)
    select array_agg(w.job_id) into v_deferred from written w;
    perform forebay._announce_due(min(d.start))
    from (select coalesce(u.run_at, v_now + make_interval(secs => u.delay)) as start from unnest(p_jobs) u) d where d.start > v_now;

    -- Both lists are in input order: merge them by what each job was, ready or deferred.
    return (
        select array_agg(case when m.is_deferred then v_deferred[m.place] else v_ready[m.place] end order by m.nr)
        from (select c.nr, c.is_deferred, row_number() over (partition by c.is_deferred order by c.nr) as place
              from (select u.ordinality as nr, coalesce(coalesce(u.run_at, v_now + make_interval(secs => u.delay)) > v_now, false) as is_deferred
                    from unnest(p_jobs) with ordinality u
                   ) c) m);
end
$$;
