-- Add a lane to the registry unless a row of it is visible; returns the lane.
--
-- A session that sees a committed job also sees its lane: the row seen here, or written here, belongs to a committed
-- transaction or to the job's transaction. Never waits: there is no unique key.
create function forebay._add_lane(
    p_lane bigint, p_queue text, p_priority integer, p_audience bigint, p_sort text,
    p_shard integer default null, p_limit_key text default null)
returns bigint
language plpgsql volatile
as $$
begin
    if not exists (select from forebay.lane l where l.lane = p_lane) then
        insert into forebay.lane (lane, queue, priority, audience, sort, shard, recorded_at, limit_key)
        values (p_lane, p_queue, p_priority, p_audience, p_sort, p_shard, forebay._now(), p_limit_key);
    end if;
    return p_lane;
end
$$;


-- The lane of (queue, priority, audience), recorded in the registry.
create function forebay._record_lane(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql volatile
as $$
    select forebay._add_lane(forebay._lane_id(p_queue, p_priority, p_audience), p_queue, p_priority, p_audience, 'plain',
                         case p_audience when 0 then 0 end)
$$;


-- The lane of jobs with ordering keys for (queue, priority, audience), recorded in the registry.
create function forebay._record_keyed_lane(p_queue text, p_priority integer, p_audience bigint) returns bigint
language plpgsql volatile
as $$
begin
    if pg_sequence_last_value('forebay.key_seq') is null then
        perform nextval('forebay.key_seq');
    end if;
    return forebay._add_lane(forebay._keyed_lane_id(p_queue, p_priority, p_audience), p_queue, p_priority, p_audience, 'keyed');
end
$$;


-- The lane of a limit key's jobs for (queue, priority, audience), recorded in the registry, and its dispatch lane.
create function forebay._record_limited_lane(p_queue text, p_priority integer, p_audience bigint, p_limit_key text) returns bigint
language plpgsql volatile
as $$
declare
    v_lane constant bigint := forebay._limited_lane_id(p_queue, p_priority, p_audience, p_limit_key);
begin
    if not exists (select from forebay.lane l where l.lane = v_lane) then
        if pg_sequence_last_value('forebay.limiter_seq') is null then
            perform nextval('forebay.limiter_seq');
        end if;
        perform forebay._add_lane(forebay._dispatch_lane_id(p_queue, p_priority, p_audience), p_queue, p_priority, p_audience, 'dispatch');
        perform forebay._add_lane(v_lane, p_queue, p_priority, p_audience, 'limited', null, p_limit_key);
    end if;
    return v_lane;
end
$$;


-- The lane in which a group's job continues, recorded in the registry.
create function forebay._record_private_lane(
    p_queue text, p_priority integer, p_audience bigint, p_ordering_key text, p_limit_key text)
returns bigint
language sql volatile
as $$
    select case when p_ordering_key is not null then forebay._record_keyed_lane(p_queue, p_priority, p_audience)
                when p_limit_key is not null then forebay._record_limited_lane(p_queue, p_priority, p_audience, p_limit_key)
                else forebay._record_lane(p_queue, p_priority, p_audience) end
$$;


-- The public lanes for many jobs, recorded in the registry: one, or all lanes of a sharded queue.
--
-- The caller distributes the jobs by p_shards. Read a second time, the numbers of shards may have changed, and jobs would go to
-- lanes that are not in the registry.
create function forebay._record_lanes(p_queue text, p_priority integer, p_shards jsonb) returns bigint[]
language sql volatile
as $$
    select array(
        select forebay._add_lane(forebay._shard_id(p_queue, p_priority, shard), p_queue, p_priority, 0, 'plain', shard)
        from generate_series(0, coalesce((p_shards ->> p_queue)::integer, 1) - 1) shard order by shard)
$$;
