-- The lane of (queue, priority, audience): a pure function, so that an enqueue finds the lane without a registry. Its number is
-- even, like those of all lanes except those of limit keys.
create function forebay._lane_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql immutable
as $$ select hashtextextended((p_queue || '/' || p_priority::text || ('/' || p_audience::text)) collate "C", 0) & -2 $$;


-- One of the public lanes of a sharded queue. Shard 0 is the lane that the queue had before.
create function forebay._shard_id(p_queue text, p_priority integer, p_shard integer) returns bigint
language sql immutable
as $$
    select case p_shard when 0 then forebay._lane_id(p_queue, p_priority, 0)
                       else hashtextextended((p_queue || '/' || p_priority::text || '/0/' || p_shard::text) collate "C", 0) & -2 end
$$;


-- The lane of jobs with ordering keys for (queue, priority, audience).
create function forebay._keyed_lane_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql immutable
as $$
    select hashtextextended((p_queue || '/' || p_priority::text || '/' || p_audience::text || '/key') collate "C", 0) & -2
$$;


-- The lane of a limit key's jobs for (queue, priority, audience). The upper 16 bits identify the queue, and the number is odd: so
-- an index finds new rows of all such lanes of a queue.
create function forebay._limited_lane_id(p_queue text, p_priority integer, p_audience bigint, p_limit_key text) returns bigint
language sql immutable
as $$
    select (hashtextextended(p_queue collate "C", 0) << 48) | 1
         | (hashtextextended((p_queue || '/' || p_priority::text || '/' || p_audience::text || '//' || p_limit_key) collate "C", 0)
            & 281474976710654)
$$;


-- The dispatch lane of (queue, priority, audience): claims from it take jobs of any limit key.
create function forebay._dispatch_lane_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql immutable
as $$
    select hashtextextended((p_queue || '/' || p_priority::text || '/' || p_audience::text || '/dispatch_lane') collate "C", 0) & -2
$$;
