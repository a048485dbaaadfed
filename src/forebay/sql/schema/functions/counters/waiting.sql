-- How many jobs of a queue wait for a group (0: the queue has no group), or an upper bound that is at most p_enough. Null: the group is gone, or
-- the queue has its first one by now.
--
-- All that wait count: ready, scheduled, retrying and parked jobs, as forebay.depth() shows them. Of open transactions only the caller's.
--
-- Parameters: p_keep_from, append the count when at least this many rows had to be visited; null: never. p_most, for an enqueue: a
--   first count ends there, is not kept, and its result is a lower bound; and after this many numbers a count is renewed, so that
--   none has much more to visit.
create function forebay._waiting(p_queue text, p_group_id bigint, p_enough bigint, p_keep_from bigint, p_most bigint default null)
returns bigint
language plpgsql volatile
-- planner: in order
as $$
declare
    -- Before any snapshot below.
    v_last     constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    v_deferred constant bigint := coalesce(pg_sequence_last_value('forebay.deferred_seq'), 0);
    v_drawn    bigint;
    v_bound    bigint;
    v_count    record;
    v_found    record;
    v_waiting  bigint;
begin
    select c.seq, c.deferred_seq, c.waiting, c.consumed into v_count from forebay.counter_waiting c
    where c.queue = p_queue and c.group_id = p_group_id order by c.oldest desc, c.no desc limit 1;
    if v_count.waiting is not null then
        -- A job that begins to wait draws a number: that of its row. Only keyed jobs that are requeued do not.
        v_drawn := v_last - v_count.seq + v_deferred - v_count.deferred_seq;
        if v_count.waiting + v_drawn <= p_enough and (v_drawn >= p_most) is not true then
            return v_count.waiting + v_drawn;
        end if;
        v_bound := v_count.waiting + v_drawn + v_count.consumed - forebay._consumed(p_queue, p_group_id);
        if v_bound <= p_enough and (v_drawn >= p_most) is not true then
            return v_bound;
        end if;
    end if;
    select w.* into v_found from forebay._waiting_read(array[p_queue], p_group_id, p_most) w;
    if v_found.queue is null then
        return null;
    end if;
    v_waiting := (select coalesce(sum(u.ready + u.scheduled + u.retrying), 0)
                  from unnest(v_found.ready, v_found.scheduled, v_found.retrying) u (ready, scheduled, retrying));
    if v_found.is_first and v_waiting >= p_most then
        return v_waiting;
    end if;
    if v_found.visited >= p_keep_from or v_drawn >= p_most or v_found.is_first and p_keep_from is not null then
        perform forebay._keep_waiting(v_found.last, v_found.base_no, v_last, v_deferred);
    end if;
    return v_waiting;
end
$$;


-- Append a count; p_seq and p_deferred_seq are the last numbers before its snapshot.
--
-- Nothing where another count was appended since the one that it begins with, p_base_no: forebay.retain_v1() renews counts and then
-- empties a segment, and this one may have missed the rows. A transaction with one snapshot for all statements cannot tell, and keeps none.
create function forebay._keep_waiting(p_count forebay.counter_waiting, p_base_no bigint, p_seq bigint, p_deferred_seq bigint) returns void
language sql volatile
as $$
    insert into forebay.counter_waiting (
        queue, group_id, oldest, seq, deferred_seq, snap, counted_at, waiting, consumed, priorities, totals, scheduled, retrying, keyed)
    select p_count.queue, p_count.group_id, pg_snapshot_xmin(p_count.snap), p_seq, p_deferred_seq, p_count.snap, forebay._now(), p_count.waiting,
           p_count.consumed, p_count.priorities, p_count.totals, p_count.scheduled, p_count.retrying, p_count.keyed
    where current_setting('transaction_isolation') = 'read committed'
      and p_base_no is not distinct from (select c.no from forebay.counter_waiting c where c.queue = p_count.queue and c.group_id = p_count.group_id
                                          order by c.oldest desc, c.no desc limit 1)
$$;


-- The jobs that a group's batches have handed out or skipped in the plain lanes of a queue, those of forgotten lanes included.
create function forebay._consumed(p_queue text, p_group_id bigint) returns bigint
language sql stable
-- planner: in order
as $$
    select (select coalesce(sum(b.handed_total + b.skipped_total), 0)
            from (select distinct i.lane from forebay.lane i
                  where i.queue = p_queue and i.audience in (0, p_group_id, -p_group_id) and i.sort <> 'keyed') l
            cross join lateral (select i.handed_total, i.skipped_total from forebay.batch i
                                where i.group_id = p_group_id and i.lane = l.lane order by i.no desc limit 1) b)
         + (select coalesce(sum(f.total), 0) from forebay.forgotten f where f.queue = p_queue and f.group_id = p_group_id)
$$;


-- The group that max_waiting of a queue counts for: the one named there, 0 while the queue has no group, null without such a group.
create function forebay._waiting_group(p_queue text, p_name text) returns bigint
language sql stable
as $$
    select case when count(*) = 0 then 0 else min(g.group_id) filter (where g.name = coalesce(p_name, 'default')) end
    from forebay.queue_group g where g.queue = p_queue
$$;


-- Refuse p_more jobs when they would exceed the queue's max_waiting for the group that it counts for, or else that of the database. Other
-- groups, dead ones perhaps, stop no enqueue. The queues of Forebay, for events and deliveries, have only their own.
--
-- A group that was not counted yet, with more than 10,000 waiting jobs, refuses only what exceeds these: no enqueue counts millions.
-- forebay.renew_counters_v1() counts it within seconds.
-- Errors: 53400.
create function forebay._require_below_max_waiting(p_queue text, p_more bigint) returns void
language plpgsql volatile
-- planner: in order
as $$
declare
    v_max      bigint;
    v_name     text;
    v_group_id bigint;
    v_waiting  bigint;
begin
    select l.max_waiting, l.max_waiting_group into v_max, v_name from forebay.queue_limits l where l.queue = p_queue;
    if v_max is null and not starts_with(p_queue, 'forebay.') then
        v_max := forebay._setting_value('max_waiting');
    end if;
    if v_max is null or p_more = 0 then
        return;
    end if;
    -- Invariant "the group that was counted": another transaction may open or drop the group between two statements. Then once more.
    while v_waiting is null loop
        v_group_id := forebay._waiting_group(p_queue, v_name);
        if v_group_id is null then
            return;
        end if;
        v_waiting := forebay._waiting(p_queue, v_group_id, v_max - p_more, 100, 10000);
    end loop;
    if v_waiting + p_more > v_max then
        raise exception using errcode = '53400',
            message = format('queue %s is full: %s jobs wait, %s more would exceed max_waiting %s', p_queue, v_waiting, p_more, v_max),
            detail = jsonb_build_object('queue', p_queue, 'waiting', v_waiting, 'max_waiting', v_max),
            hint = 'Nothing was enqueued. Try again when workers have caught up, or raise max_waiting with forebay.limit_queue(), for all queues with forebay.configure().';
    end if;
end
$$;
