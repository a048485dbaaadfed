-- grant: worker

-- Expire jobs of lanes that no worker claims, one step: `expired` is their number, and `next` is
-- `p_after` of the call that continues, or null at the end of the pass.
--
-- Parameters:
--   p_since  of jobs with an explicit expiry, look only at those that expire after this time; null:
--            all. An expiry may be committed long after its time, so from time to time a pass must
--            look at all of them
--   p_after  null: begin a pass
--   p_most   1 to 1000000 jobs
--   p_lanes  0 to 1000000; 0: the pass ends before the heads of the lanes
--
-- Errors: JQ001 a bad number, JQ012, JQ030.
-- Transaction: alone.
-- Locks: the sweep's lock, the locks of the lanes it visits.
--
-- Inside: a pass looks in two places: jobs with an explicit expiry anywhere (it writes a tombstone,
-- which the claim later reads), and expired jobs at the head of a lane that no worker polls (the
-- cursor moves over them). Both happen under the lane's lock, so that a claim and the sweep never
-- both decide. Bounded: a call looks at p_most jobs of the first kind, then at p_lanes lanes, and
-- expires about p_most jobs.
-- pages: 300 + 20 a lane + 12 a job + 700 a segment
create function forebay.sweep_v1(
    p_since timestamptz default null, p_after text default null, p_most integer default 1000, p_lanes integer default 50,
    out expired bigint, out next text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
set lock_timeout = '1s'
as $$
declare
    v_after   constant jsonb := p_after;
    v_at      constant timestamptz := forebay._now();
    v_place   record;
    v_segment bigint;
    v_row     record;
    v_end     record;
    v_from    timestamptz;
    v_seq     bigint;
    v_left    integer := p_most;
    v_lane    bigint;
    v_lanes   integer := 0;
    v_rows       forebay.log[] := '{}';
    v_groups     bigint[] := '{}';
    v_queues     text[] := '{}';
    v_priorities integer[] := '{}';
    v_audiences  bigint[] := '{}';
    v_starts     pg_snapshot[] := '{}';
    v_died       bigint;
    v_dead       bigint[] := '{}';
    v_is_implied boolean := p_after is not null;
begin
    if (p_most between 1 and 1000000 and p_lanes between 0 and 1000000) is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot sweep %s jobs in %s lanes', coalesce(p_most::text, 'null'), coalesce(p_lanes::text, 'null')),
            hint = 'The first is 1 to 1000000, the second 0 to 1000000.';
    end if;
    perform forebay._require_alone('forebay.sweep_v1()');
    perform forebay._require_same_cluster();
    expired := 0;
    if not forebay._try_lock('sweep') then
        return;
    end if;
    if v_after is null and p_lanes > 0 then
        perform forebay._imply_groups(p_most);
        v_is_implied := true;
    end if;

    -- First the search, then the locks: claims must not wait for the search.
    if v_after ->> 0 is distinct from 'lane' then
        for v_segment in
            select s.segment_id from forebay.segment s
            where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
              and s.lo >= forebay._archived_below() and s.segment_id >= coalesce((v_after ->> 1)::bigint, 0)
            order by s.segment_id
        loop
            v_from := coalesce(case when v_segment = (v_after ->> 1)::bigint then (v_after ->> 2)::timestamptz end, p_since, '-infinity');
            v_seq := coalesce(case when v_segment = (v_after ->> 1)::bigint then (v_after ->> 3)::bigint end, 9223372036854775807);
            execute format(
                'select count(*) as seen, max(x.expires_at) as at, (array_agg(x.seq order by x.expires_at desc, x.seq desc))[1] as seq
                 from (select i.expires_at, i.seq from forebay.log_%s i
                       where i.expires_at is not null and i.expires_at <= $1 and (i.expires_at, i.seq) > ($2, $3)
                       order by i.expires_at, i.seq limit $4) x', v_segment)
                into v_end using v_at, v_from, v_seq, v_left;
            continue when v_end.seen = 0;
            if not v_is_implied then
                perform forebay._imply_groups(p_most);
                v_is_implied := true;
            end if;
            for v_row in execute format(
                'select row(l.*)::forebay.log as r, p.group_id, p.queue, p.priority, p.audience, p.start_after
                 from (select * from forebay.log_%s x
                       where x.expires_at is not null and (x.expires_at, x.seq) > ($1, $2) and (x.expires_at, x.seq) <= ($3, $4) offset 0) l
                 cross join lateral (
                     select g.group_id, g.queue, g.start_after, i.priority, i.audience, c.*
                     from (select distinct j.queue, j.priority, j.audience from forebay.lane j where j.lane = l.lane) i
                     join forebay.queue_group g on g.queue = i.queue and i.audience in (0, g.group_id, -g.group_id) and g.closing_at is null
                     left join lateral (select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
                                        from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
                                        where b.group_id = g.group_id and b.lane = l.lane order by b.no desc limit 1) c on true) p
                 where (p.snap_from is not null or p.audience <> 0 or not pg_visible_in_snapshot(l.xid, p.start_after))
                   and (p.snap_from is null
                        or not forebay._is_consumed(l.xid, l.seq, p.snap_from, p.snap_to, p.lo, p.hi, p.pos_xid, p.pos_seq))
                   and not exists (select from forebay.tombstone t
                                   where t.job_id = coalesce(l.job_id, l.seq) and t.reason <> ''k'' and (t.reason <> ''m'' or l.seq <= t.up_to)
                                     and (t.group_id is null or t.group_id = p.group_id))', v_segment)
                using v_from, v_seq, v_end.at, v_end.seq
            loop
                v_rows := v_rows || v_row.r;
                v_groups := v_groups || v_row.group_id;
                v_queues := v_queues || v_row.queue;
                v_priorities := v_priorities || v_row.priority;
                v_audiences := v_audiences || v_row.audience;
                v_starts := v_starts || v_row.start_after;
            end loop;
            v_left := v_left - v_end.seen;
            if v_left <= 0 then
                next := jsonb_build_array('row', v_segment, v_end.at, v_end.seq);
                exit;
            end if;
        end loop;
        for v_nr in 1 .. cardinality(v_rows) loop
            v_died := forebay._expire_one(
                v_rows[v_nr], v_groups[v_nr], v_queues[v_nr], v_priorities[v_nr], v_audiences[v_nr], v_starts[v_nr]);
            if v_died is not null then
                v_dead := v_dead || v_died;
            end if;
        end loop;
        expired := cardinality(v_dead);
        if expired > 0 then
            perform forebay._report_deaths(v_dead);
        end if;
        if next is not null or p_lanes = 0 then
            return;
        end if;
    end if;

    v_lane := coalesce(case when v_after ->> 0 = 'lane' then (v_after ->> 1)::bigint end, -9223372036854775808);
    for v_place in
        select l.lane, g.group_id, c.claimed_at
        from (select i.lane, i.queue, i.audience, i.sort, i.state from forebay.lane i where i.lane > v_lane order by i.lane limit p_lanes) l
        left join forebay.queue_group g
            on g.queue = l.queue and l.audience in (0, g.group_id, -g.group_id) and l.sort = 'plain' and l.state <> 'dormant' and g.closing_at is null
               and not forebay._is_polled(g)
        left join lateral (select b.claimed_at from forebay.batch b
                           where b.group_id = g.group_id and b.lane = l.lane order by b.no desc limit 1) c on true
        order by l.lane
    loop
        -- The locks last until the end of this call: with p_most jobs it has had them for long enough.
        if expired >= p_most then
            next := jsonb_build_array('lane', v_lane);
            return;
        end if;
        if v_place.group_id is not null and coalesce(v_place.claimed_at < v_at - interval '5 seconds', true) then
            expired := expired + forebay._sweep_lane(v_place.group_id, v_place.lane, p_most);
        end if;
        if expired < p_most then
            v_lane := v_place.lane;
            v_lanes := v_lanes + 1;
        end if;
    end loop;
    next := case when expired >= p_most or v_lanes >= p_lanes then jsonb_build_array('lane', v_lane) end;
end
$$;


-- Does a worker look for the jobs of a group and find none ready? Its claims expire what they meet. Jobs that are ready stay so, and
-- expire, while the group is paused or its queue has limits.
create function forebay._is_polled(p_group forebay.queue_group) returns boolean
language sql volatile
as $$
    select p_group.paused_at is null and forebay._leader_of(p_group.group_id) is not null
           and not exists (select from forebay.queue_limits l where l.queue = p_group.queue)
$$;


-- Open a group for each queue that was never served, at most p_most: its jobs expire for an implied one. Visits every queue.
create function forebay._imply_groups(p_most integer) returns void
language plpgsql volatile
as $$
declare
    v_queue text;
begin
    for v_queue in
        select q.queue from forebay._queues_of(null) q (queue)
        where not exists (select from forebay.queue_group g where g.queue = q.queue) limit p_most
    loop
        perform forebay._imply_group(v_queue);
    end loop;
end
$$;


-- Move the cursor of a lane over expired jobs at its head; returns their number.
--
-- A lane that another session claims from needs no sweep. The lock of a lane without such jobs is released at once, by the
-- rollback to a savepoint: other lanes may have the same lock, and their claims wait.
create function forebay._sweep_lane(p_group_id bigint, p_lane bigint, p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_before record;
    v_after  record;
begin
    if not forebay._try_lock_lane(p_group_id, p_lane) then
        return 0;
    end if;
    select max(b.no) as no, max(b.skipped_total) as skipped into v_before
    from (select i.no, i.skipped_total from forebay.batch i
          where i.group_id = p_group_id and i.lane = p_lane order by i.no desc limit 1) b;
    perform forebay._take(null, null, null, p_group_id, p_lane, p_most, true);
    select max(b.no) as no, max(b.skipped_total) as skipped into v_after
    from (select i.no, i.skipped_total from forebay.batch i
          where i.group_id = p_group_id and i.lane = p_lane order by i.no desc limit 1) b;
    if v_after.no is not distinct from v_before.no then
        raise no_data_found;
    end if;
    return coalesce(v_after.skipped, 0) - coalesce(v_before.skipped, 0);
exception when no_data_found then
    return 0;
end
$$;


-- Expire one job of a group under its lane's lock, unless the cursor has passed it; returns its dead letter's id, or null.
create function forebay._expire_one(
    p_row forebay.log, p_group_id bigint, p_queue text, p_priority integer, p_audience bigint, p_start_after pg_snapshot)
returns bigint
language plpgsql volatile
as $$
declare
    v_cur record;
begin
    perform forebay._lock_lane(p_group_id, p_row.lane);
    select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq into v_cur
    from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
    where b.group_id = p_group_id and b.lane = p_row.lane order by b.no desc limit 1;
    if v_cur.snap_from is null then
        if p_audience = 0 and pg_visible_in_snapshot(p_row.xid, p_start_after) then
            return null;
        end if;
    elsif forebay._is_consumed(p_row.xid, p_row.seq, v_cur.snap_from, v_cur.snap_to, v_cur.lo, v_cur.hi, v_cur.pos_xid, v_cur.pos_seq) then
        return null;
    end if;
    insert into forebay.tombstone (job_id, group_id, reason, recorded_at, enqueued_at)
    values (coalesce(p_row.job_id, p_row.seq), p_group_id, 'e', forebay._now(), p_row.enqueued_at);
    perform forebay._record_row_left(p_queue, p_group_id, p_priority, p_row, 'e');
    return forebay._write_dead_letter(p_group_id, p_queue, p_priority, p_row, 'expired', coalesce(p_row.attempt, 0));
end
$$;
