-- grant: operator

-- Trade ordering for parallel claims: split a queue into shards. New jobs are distributed over
-- `lanes` (1 to 64) lanes of each priority, so that claims of different worker processes do not
-- wait for each other. 1 restores the order, for jobs enqueued from then on. Waiting jobs stay in
-- their lanes and are claimed from there. Returns the previous number.
--
-- Errors: JQ001 a bad name or number.
-- Transaction: the caller's. Enqueues use the new number once it is committed.
-- Locks: the settings lock and the queue's row in the table of shards, until the transaction ends; neither enqueues nor
--   claims wait for it.
-- See: docs/howto/run-workers.md#when-many-processes-claim-few-jobs-at-a-time
create function forebay.shard_queue(queue text, lanes integer) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before integer;
begin
    if (shard_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' and shard_queue.lanes between 1 and 64) is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot split queue %s into %s shards', coalesce(quote_literal(left(shard_queue.queue, 40)), 'null'),
                             coalesce(shard_queue.lanes::text, 'null')),
            hint = 'Names have letters, digits and _ . : - only; the number is 1 to 64.';
    end if;
    perform forebay._lock_settings();
    v_before := forebay._shards_of(queue);
    perform nextval('forebay.shard_seq'), setval('forebay.lane_secret', pg_sequence_last_value('forebay.lane_secret') | 1)
    where shard_queue.lanes > 1;
    insert into forebay.queue_shards (queue, lanes) values (shard_queue.queue, shard_queue.lanes)
    on conflict on constraint queue_shards_pkey do update set lanes = excluded.lanes;
    if v_before <> shard_queue.lanes then
        perform forebay._record_event('queues.shard', queue, p_old => to_jsonb(v_before), p_new => to_jsonb(lanes));
    end if;
    return v_before;
end
$$;
