-- The number of public lanes of each priority over which the jobs of a queue are distributed; 1 where their order is kept.
create function forebay._shards_of(p_queue text) returns integer
language sql stable
as $$ select coalesce((select s.lanes from forebay.queue_shards s where s.queue = p_queue), 1) $$;


-- A public lane for one job, recorded in the registry: any lane of a sharded queue.
create function forebay._pick_lane(p_queue text, p_priority integer) returns bigint
language plpgsql volatile
as $$
declare
    v_shard integer := floor(random() * forebay._shards_of(p_queue));
begin
    return forebay._add_lane(forebay._shard_id(p_queue, p_priority, v_shard), p_queue, p_priority, 0, 'plain', v_shard);
end
$$;


-- The number of public lanes of some queues, by queue; null: none of them is sharded.
create function forebay._shards(p_queues text[]) returns jsonb
language sql volatile
as $$
    select case when pg_sequence_last_value('forebay.shard_seq') is not null then
        (select jsonb_object_agg(s.queue, s.lanes) from forebay.queue_shards s where s.queue = any (p_queues)) end
$$;


-- The public lane for the job at a place of the input.
create function forebay._lane_for_place(p_queue text, p_priority integer, p_place bigint, p_shards jsonb) returns bigint
language sql volatile
as $$
    select case when p_shards is null then forebay._lane_id(p_queue, p_priority, 0)
                else forebay._shard_id(p_queue, p_priority, (p_place % coalesce((p_shards ->> p_queue)::integer, 1))::integer) end
$$;
