-- How many jobs of a queue wait for a group (0: the queue has no group), or an upper bound that is at most p_enough.
--
-- Not counted are scheduled jobs, and those that only one group reads again: retries, redrives.
-- Of open transactions only the caller's counts.
--
-- Parameters: p_keep_from, append the count when at least this many rows had to be counted; null: never. p_most, for an enqueue: a
--   first count ends there, is not kept, and its result is a lower bound; and after this many numbers a count is renewed, so that
--   none has much more to visit.
create function forebay._waiting(p_queue text, p_group_id bigint, p_enough bigint, p_keep_from bigint, p_most bigint default null)
returns bigint
language plpgsql volatile
as $$
declare
    v_last     constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);  -- Before any snapshot below.
    v_count    forebay.queue_count;
    v_lanes    bigint[];
    v_batch_lanes  bigint[];  -- lanes whose batches say what became of the jobs; claims of private lanes take parked jobs, too
    v_consumed bigint;
    v_sql      text;
    v_rows     bigint;
    v_parked   bigint;
    v_others   bigint;
    v_snap     pg_snapshot;
    v_ranges   forebay._xid_range[];
begin
    select c.* into v_count from forebay.queue_count c
    where c.queue = p_queue and c.group_id = p_group_id order by c.no desc limit 1;
    v_lanes := array(select distinct l.lane from forebay.lane l where l.queue = p_queue and l.audience = 0);
    v_batch_lanes := v_lanes;
    if num_nonnulls(pg_sequence_last_value('forebay.key_seq'), pg_sequence_last_value('forebay.limiter_seq')) > 0 then
        v_batch_lanes := v_batch_lanes || array(select distinct l.lane from forebay.lane l
                                        where l.queue = p_queue and l.sort in ('keyed', 'limited') and abs(l.audience) = nullif(p_group_id, 0));
    end if;
    select coalesce(sum(b.handed_total + b.skipped_total), 0) + forebay._forgotten(p_queue, p_group_id) into v_consumed
    from unnest(v_batch_lanes) l (lane),
         lateral (select i.handed_total, i.skipped_total from forebay.batch i
                  where i.group_id = p_group_id and i.lane = l.lane order by i.no desc limit 1) b;
    if v_count.total + v_last - v_count.seq - v_consumed <= p_enough and (v_last - v_count.seq >= p_most) is not true then
        return v_count.total + v_last - v_count.seq - v_consumed;
    end if;

    if v_count.total is null then
        select coalesce(sum(u.unread), 0), coalesce(sum(u.unread - u.own), 0), forebay._snapshot_of_others(pg_current_snapshot()),
               (select coalesce(sum(b.handed_total + b.skipped_total), 0) + forebay._forgotten(p_queue, p_group_id)
                from unnest(v_batch_lanes) l (lane),
                     lateral (select i.handed_total, i.skipped_total from forebay.batch i
                              where i.group_id = p_group_id and i.lane = l.lane order by i.no desc limit 1) b),
               (select coalesce(sum(p.jobs), 0) from forebay._all_parked() p
                where p.group_id = p_group_id and p.lane = any (v_lanes) and p.place > 0)
        into v_rows, v_others, v_snap, v_consumed, v_parked
        from (select array_agg(row(0, l.lane, coalesce(g.start_after, '1:1:'), b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq)::forebay._cursor) as all
              from unnest(v_lanes) l (lane)
              left join forebay.queue_group g on g.group_id = p_group_id
              left join lateral (select i.* from forebay.batch i
                                 where i.group_id = p_group_id and i.lane = l.lane order by i.no desc limit 1) b on true
              left join forebay.segment s on s.segment_id = b.pos_segment) c
        left join lateral forebay._count_unread(c.all, p_most) u on true;
        if v_rows >= p_most then
            return v_rows;
        end if;
        v_count.total := v_consumed + v_parked;
    else
        v_snap := pg_current_snapshot();
        v_ranges := forebay._xid_ranges(v_count.snap, v_snap) || forebay._own_xid_range();
        v_snap := forebay._snapshot_of_others(v_snap);
        select string_agg(format(
                   'select i.xid from unnest($1) l (lane), unnest($2) r (low, high), lateral (
                        select i.xid from forebay.log_%s i where i.lane = l.lane and i.xid >= r.low and i.xid < r.high offset 0) i',
                   s.segment_id), ' union all ')
        into v_sql
        from forebay.segment s left join forebay.seal f using (segment_id)
        where s.lo <= v_last and s.removed_at is null and (f.xid is null or f.xid > v_ranges[1].low);
        execute format(
            'select count(*), count(*) filter (where r.xid is distinct from pg_current_xact_id_if_assigned())
             from (%s) r', coalesce(v_sql, 'select null::xid8 as xid where false'))
            into v_rows, v_others using v_lanes, v_ranges;
    end if;
    if v_rows >= p_keep_from or v_last - v_count.seq >= p_most then
        insert into forebay.queue_count (queue, group_id, seq, snap, total)
        values (p_queue, p_group_id, v_last, v_snap, v_count.total + v_others);
    end if;
    return v_count.total + v_rows - v_consumed;
end
$$;


-- A snapshot without the caller's transaction. The server's list of those in progress leaves the caller out. So where a later
-- transaction has ended, the caller's counts as visible, and with that snapshot its rows would never be counted.
create function forebay._snapshot_of_others(p_snap pg_snapshot) returns pg_snapshot
language sql stable
as $$
    select case when x.own < pg_snapshot_xmax(p_snap)
                then (pg_snapshot_xmin(p_snap) || ':' || pg_snapshot_xmax(p_snap) || ':'
                      || (select string_agg(i.xid::text, ',' order by i.xid)
                          from (select pg_snapshot_xip(p_snap) as xid union select x.own) i))::pg_snapshot
                else p_snap end
    from pg_current_xact_id_if_assigned() x (own)
$$;


-- The jobs that a group had from lanes of the queue that were forgotten.
create function forebay._forgotten(p_queue text, p_group_id bigint) returns bigint
language sql stable
as $$ select coalesce((select f.total from forebay.forgotten f where f.queue = p_queue and f.group_id = p_group_id), 0) $$;


-- Refuse p_more jobs when they would exceed the queue's max_waiting for the group that is furthest behind.
--
-- A group that was not counted yet, with more than 10,000 waiting jobs, refuses only what exceeds these: no enqueue counts millions.
-- forebay.count_v1() counts it within a minute.
-- Errors: 53400.
create function forebay._require_below_max_waiting(p_queue text, p_more bigint) returns void
language plpgsql volatile
-- planner: in order
as $$
declare
    v_max     bigint;
    v_group   record;
    v_waiting bigint;
begin
    select l.max_waiting into v_max from forebay.queue_limits l where l.queue = p_queue;
    if v_max is null or p_more = 0 then
        return;
    end if;
    for v_group in
        select g.group_id from forebay.queue_group g where g.queue = p_queue
        union all
        select 0 where not exists (select from forebay.queue_group g where g.queue = p_queue)
    loop
        v_waiting := forebay._waiting(p_queue, v_group.group_id, v_max - p_more, 100, 10000);
        if v_waiting + p_more > v_max then
            raise exception using errcode = '53400',
                message = format('queue %s is full: %s jobs wait, %s more would exceed max_waiting %s', p_queue, v_waiting, p_more, v_max),
                detail = jsonb_build_object('queue', p_queue, 'waiting', v_waiting, 'max_waiting', v_max),
                hint = 'Nothing was enqueued. Try again when workers have caught up, or raise max_waiting with forebay.limit_queue().';
        end if;
    end loop;
end
$$;
