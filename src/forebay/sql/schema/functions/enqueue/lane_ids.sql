-- A number for a name: 64 bits of a cryptographic hash with this schema's secret.
--
-- Invariant "own lane": without the secret, names with the same number cannot be constructed. The outer hash only shortens the
-- unpredictable result of the inner one.
create function forebay._secret_hash(p_name text) returns bigint
language sql volatile
as $$
    select hashtextextended(
        encode(sha256(convert_to(concat_ws('/', pg_sequence_last_value('forebay.lane_secret') | 1, p_name), 'UTF8')), 'hex')
        collate "C", 0)
$$;


-- The lane of (queue, priority, audience), computed from its name alone, so that an enqueue finds the lane without the registry.
-- Its number is even, like those of all lanes except those of jobs with limit keys.
create function forebay._lane_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql volatile
as $$
    -- forebay._secret_hash(concat_ws('/', p_queue, p_priority, p_audience)), in fewer steps: every enqueue calls this.
    select hashtextextended(
        encode(sha256(convert_to(concat_ws('/', pg_sequence_last_value('forebay.lane_secret') | 1, p_queue, p_priority, p_audience), 'UTF8')),
               'hex') collate "C", 0) & -2
$$;


-- One of the public lanes of a sharded queue. Shard 0 is the lane that the queue had before.
create function forebay._shard_id(p_queue text, p_priority integer, p_shard integer) returns bigint
language sql volatile
as $$
    select case p_shard when 0 then forebay._lane_id(p_queue, p_priority, 0)
                        else forebay._secret_hash(concat_ws('/', p_queue, p_priority, 0, p_shard)) & -2 end
$$;


-- The lane of jobs with ordering keys for (queue, priority, audience).
create function forebay._keyed_lane_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql volatile
as $$ select forebay._secret_hash(concat_ws('/', p_queue, p_priority, p_audience, 'key')) & -2 $$;


-- The lane of jobs with limit keys for (queue, priority, audience).
create function forebay._limited_lane_id(p_queue text, p_priority integer, p_audience bigint) returns bigint
language sql volatile
as $$ select forebay._secret_hash(concat_ws('/', p_queue, p_priority, p_audience, 'limit')) | 1 $$;
