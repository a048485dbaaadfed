-- Can this transaction rely on a row of the lane in the registry? Then readers find its jobs without a further row.
--
-- It can rely on a row in use that it wrote, and, when it sees the last retirement of lanes, on one that it sees. The transaction
-- id is drawn before the horizon is read, and the horizon before the row: see forebay.forget_v1().
--
-- Invariant "own lane": the whole row is compared, not only the number.
-- Errors: JQ006 another lane has the number.
create function forebay._is_recorded(
    p_lane bigint, p_queue text, p_priority integer, p_audience bigint, p_sort text, p_shard integer,
    out is_recorded boolean, out is_committed boolean, out horizon bigint)
language plpgsql volatile
as $$
declare
    v_is_same boolean;
begin
    horizon := case when pg_current_xact_id() is not null then coalesce(pg_sequence_last_value('forebay.lane_horizon'), 1) end;
    -- Positive is the age of a row of another transaction, which is committed because it is visible; not of this transaction's.
    select bool_and((l.queue, l.priority, l.audience, l.sort) = (p_queue, p_priority, p_audience, p_sort)
                    and l.shard is not distinct from p_shard),
           coalesce(bool_or(l.state = 'used' and (age(l.xmin) <= 0 or s.is_seen)), false),
           coalesce(bool_or(l.state = 'used' and age(l.xmin) > 0 and s.is_seen), false)
    into v_is_same, is_recorded, is_committed
    from (select pg_visible_in_snapshot(horizon::text::xid8, pg_current_snapshot()) as is_seen offset 0) s
    join forebay.lane l on l.lane = p_lane;
    if v_is_same is false then
        raise exception using errcode = 'JQ006',
            message = format('the lane of queue %s, priority %s is in use under another name', p_queue, p_priority),
            detail = jsonb_build_object('queue', p_queue, 'priority', p_priority),
            hint = 'Nothing was written. Use another queue or priority.';
    end if;
end
$$;


-- Add a lane to the registry unless the transaction can rely on a row of it; returns the lane.
--
-- A session that sees a committed job also sees its lane: the row seen here, or written here, belongs to a committed
-- transaction or to the job's transaction. Never waits: there is no unique key.
-- Errors: JQ006 another lane has the number.
create function forebay._add_lane(
    p_lane bigint, p_queue text, p_priority integer, p_audience bigint, p_sort text,
    p_shard integer default null)
returns bigint
language plpgsql volatile
as $$
begin
    if not (forebay._is_recorded(p_lane, p_queue, p_priority, p_audience, p_sort, p_shard)).is_recorded then
        insert into forebay.lane (lane, queue, priority, audience, sort, shard, recorded_at)
        values (p_lane, p_queue, p_priority, p_audience, p_sort, p_shard, forebay._now());
    end if;
    return p_lane;
end
$$;


-- Put lanes in use again, for rows that this transaction has written to them without the registry: a dormant lane has a row with
-- its name.
create function forebay._use_lanes(p_lanes bigint[]) returns void
language plpgsql volatile
as $$
declare
    v_horizon constant bigint := case when pg_current_xact_id() is not null then coalesce(pg_sequence_last_value('forebay.lane_horizon'), 1) end;
begin
    insert into forebay.lane (lane, queue, priority, audience, sort, shard, recorded_at)
    select n.lane, n.queue, n.priority, n.audience, n.sort, n.shard, forebay._now()
    from (select distinct u from unnest(p_lanes) u) a (lane)
    cross join lateral (select l.* from forebay.lane l where l.lane = a.lane limit 1) n
    where not exists (
        select from forebay.lane i
        where i.lane = a.lane and i.state = 'used'
          and (age(i.xmin) <= 0 or pg_visible_in_snapshot(v_horizon::text::xid8, pg_current_snapshot())));
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


-- The lane of jobs with limit keys for (queue, priority, audience), recorded in the registry.
create function forebay._record_limited_lane(p_queue text, p_priority integer, p_audience bigint) returns bigint
language plpgsql volatile
as $$
begin
    if pg_sequence_last_value('forebay.limiter_seq') is null then
        perform nextval('forebay.limiter_seq');
    end if;
    return forebay._add_lane(forebay._limited_lane_id(p_queue, p_priority, p_audience), p_queue, p_priority, p_audience, 'limited');
end
$$;


-- The lane in which a group's job continues, recorded in the registry.
create function forebay._record_private_lane(
    p_queue text, p_priority integer, p_audience bigint, p_ordering_key text, p_limit_key text)
returns bigint
language sql volatile
as $$
    select case when p_ordering_key is not null then forebay._record_keyed_lane(p_queue, p_priority, p_audience)
                when p_limit_key is not null then forebay._record_limited_lane(p_queue, p_priority, p_audience)
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
