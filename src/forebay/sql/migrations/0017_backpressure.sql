-- Backpressure: how many jobs of a queue may wait, asked by enqueues, also while no worker runs.
--
-- A queue's depth is counted like a reader counts: what was appended up to a snapshot, plus what became visible since,
-- minus what the newest batches say was handed out or skipped. Counts are appended and read newest first; nobody updates
-- one. Most enqueues need not even count what came since: the numbers drawn since bound it from above.
-- See docs/design/backpressure.md.


-- The sequence tells an enqueue, without a look at the table, that there never was a limit.
create table forebay.queue_limit (
    queue text primary key,
    most  bigint not null check (most >= 1)
);
create sequence forebay.limit_seq as bigint cache 1;

-- What had been appended to a queue's public lanes, as a group counts: handed out, skipped or waiting when it was counted.
create sequence forebay.queue_count_seq as bigint cache 1;

create table forebay.queue_count (
    queue    text not null,
    group_id bigint not null,            -- 0: the queue has no group yet
    no       bigint not null default nextval('forebay.queue_count_seq'),
    seq      bigint not null,            -- the last number drawn before the snapshot
    snap     pg_snapshot not null,
    total    bigint not null
);
create index queue_count_newest on forebay.queue_count (queue, group_id, no desc);

comment on table forebay.queue_limit is 'How many jobs of a queue may wait; set with forebay.limit_queue().';


-- How many jobs of a queue wait for a group (0: it has none), or an upper bound of it that is at most p_enough.
--
-- Not counted are jobs that wait for a time, and those that one group alone reads again: retries, redrives.
-- Of open transactions only the own one is counted.
--
-- Parameters: p_keep_from, append the count when so many rows had to be counted for it; null: never.
create function forebay._waiting(p_queue text, p_group_id bigint, p_enough bigint, p_keep_from bigint) returns bigint
language plpgsql volatile
as $$
declare
    v_last     constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);  -- Before any snapshot below.
    v_count    forebay.queue_count;
    v_lanes    bigint[];
    v_readers  bigint[];  -- lanes whose batches say what became of them; parked jobs are taken by claims of private ones, too
    v_consumed bigint;
    v_sql      text;
    v_rows     bigint;
    v_parked   bigint;
    v_others   bigint;
    v_snap     pg_snapshot;
begin
    select c.* into v_count from forebay.queue_count c
    where c.queue = p_queue and c.group_id = p_group_id order by c.no desc limit 1;
    v_lanes := array(select distinct l.lane from forebay.lane l where l.queue = p_queue and l.audience = 0);
    v_readers := v_lanes;
    if pg_sequence_last_value('forebay.key_seq') is not null then
        v_readers := v_readers || array(select distinct l.lane from forebay.lane l
                                        where l.queue = p_queue and l.part < 0 and abs(l.audience) = nullif(p_group_id, 0));
    end if;
    select coalesce(sum(b.handed_total + b.skipped_total), 0) into v_consumed
    from unnest(v_readers) l (lane),
         lateral (select i.handed_total, i.skipped_total from forebay.batch i
                  where i.group_id = p_group_id and i.lane = l.lane order by i.no desc limit 1) b;
    if v_count.total + v_last - v_count.seq - v_consumed <= p_enough then
        return v_count.total + v_last - v_count.seq - v_consumed;
    end if;

    if v_count.total is null then
        select count(*), count(*) filter (where w.xid is distinct from pg_current_xact_id_if_assigned()), pg_current_snapshot(),
               (select coalesce(sum(b.handed_total + b.skipped_total), 0)
                from unnest(v_readers) l (lane),
                     lateral (select i.handed_total, i.skipped_total from forebay.batch i
                              where i.group_id = p_group_id and i.lane = l.lane order by i.no desc limit 1) b),
               case when pg_sequence_last_value('forebay.key_seq') is null then 0
                    else (select count(*) from forebay._all_parked() p
                          where p.group_id = p_group_id and p.lane = any (v_lanes) and p.place > 0) end
        into v_rows, v_others, v_snap, v_consumed, v_parked
        from unnest(v_lanes) l (lane)
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = p_group_id and i.lane = l.lane order by i.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment
        left join forebay.queue_group g on g.group_id = p_group_id
        join lateral (
            select i.xid from forebay.log i
            where i.lane = l.lane and i.seq >= forebay._archived_below()
              and (b.snap_from is not null or g.start_after is null or not pg_visible_in_snapshot(i.xid, g.start_after))
              and (b.snap_from is null or not forebay._is_consumed(
                      i.xid, i.seq, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq))) w on true;
        v_count.total := v_consumed + v_parked;
    else
        select string_agg(format(
                   'select i.xid from forebay.log_%s i
                    where i.lane = any ($1) and i.xid >= pg_snapshot_xmin($2) and not pg_visible_in_snapshot(i.xid, $2)',
                   s.segment_id), ' union all ')
        into v_sql
        from forebay.segment s left join forebay.seal f using (segment_id)
        where s.lo <= v_last and (f.xid is null or f.xid > pg_snapshot_xmin(v_count.snap));
        execute format(
            'select count(*), count(*) filter (where r.xid is distinct from pg_current_xact_id_if_assigned()), pg_current_snapshot()
             from (%s) r', coalesce(v_sql, 'select null::xid8 as xid where false'))
            into v_rows, v_others, v_snap using v_lanes, v_count.snap;
    end if;
    if v_rows >= p_keep_from then
        insert into forebay.queue_count (queue, group_id, seq, snap, total)
        values (p_queue, p_group_id, v_last, v_snap, v_count.total + v_others);
    end if;
    return v_count.total + v_rows - v_consumed;
end
$$;


-- Refuse p_more jobs when they would exceed the queue's limit for the group that is furthest behind.
--
-- Errors: 53400.
create function forebay._require_room(p_queue text, p_more bigint) returns void
language plpgsql volatile
set enable_seqscan = off
set jit = off
as $$
declare
    v_most    bigint;
    v_group   record;
    v_waiting bigint;
begin
    select l.most into v_most from forebay.queue_limit l where l.queue = p_queue;
    if v_most is null or p_more = 0 then
        return;
    end if;
    for v_group in
        select g.group_id from forebay.queue_group g where g.queue = p_queue
        union all
        select 0 where not exists (select from forebay.queue_group g where g.queue = p_queue)
    loop
        v_waiting := forebay._waiting(p_queue, v_group.group_id, v_most - p_more, 100);
        if v_waiting + p_more > v_most then
            raise exception using errcode = '53400',
                message = format('queue %s is full: %s jobs wait, %s more would exceed the limit of %s', p_queue, v_waiting, p_more, v_most),
                detail = jsonb_build_object('queue', p_queue, 'waiting', v_waiting, 'limit', v_most),
                hint = 'Nothing was enqueued. Try again when workers have caught up, or raise the limit: forebay.limit_queue().';
        end if;
    end loop;
end
$$;


-- Limit how many jobs of a queue may wait; returns the limit before, null for none.
--
-- Parameters: most, at least 1; null: no limit.
-- Errors: JQ001 a bad name or number.
create function forebay.limit_queue(queue text, most bigint default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_before bigint;
begin
    if (limit_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true or limit_queue.most < 1 then
        raise exception using errcode = 'JQ001',
            message = format('cannot limit queue %s to %s jobs', coalesce(quote_literal(left(limit_queue.queue, 40)), 'null'),
                             coalesce(limit_queue.most::text, 'null')),
            hint = 'Names have letters, digits and _ . : - only; the number is at least 1, or null for no limit.';
    end if;
    select l.most into v_before from forebay.queue_limit l where l.queue = limit_queue.queue;
    if limit_queue.most is null then
        delete from forebay.queue_limit l where l.queue = limit_queue.queue;
        return v_before;
    end if;
    perform nextval('forebay.limit_seq');
    insert into forebay.queue_limit (queue, most) values (limit_queue.queue, limit_queue.most)
    on conflict on constraint queue_limit_pkey do update set most = excluded.most;
    -- The first count visits all that waits; enqueues go on from it.
    perform forebay._waiting(limit_queue.queue, g.group_id, -1, 0)
    from forebay.queue_group g where g.queue = limit_queue.queue;
    return v_before;
end
$$;


-- Count what waits in every queue; returns those queues where p_most or more do.
--
-- The first count of a queue visits all that waits, later ones what was enqueued since. Workers call it now and then.
--
-- Errors: JQ030 foreign cluster.
create function forebay.count_v1(p_most bigint default 1000000)
returns table (queue text, group_name text, waiting bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_group record;
begin
    perform forebay._require_home();
    for v_group in select g.group_id, g.queue, g.name from forebay.queue_group g order by g.group_id loop
        waiting := forebay._waiting(v_group.queue, v_group.group_id, -1, 1);
        if waiting >= p_most then
            queue := v_group.queue;
            group_name := v_group.name;
            return next;
        end if;
    end loop;
    perform forebay._trim_gates(100000);
    delete from forebay.queue_count c
    where c.no < (select n.no from forebay.queue_count n
                  where n.queue = c.queue and n.group_id = c.group_id order by n.no desc limit 1);
end
$$;
