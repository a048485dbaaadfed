-- grant: operator, reader

-- The jobs that were `ready` or `running` at a moment of the past, one row for each group, oldest
-- first. `running`: a worker had claimed the job and not settled it. Moments since the last
-- sealing of a segment that retention has emptied are known. Jobs that waited for a key or a limit, and scheduled and retrying jobs that have
-- started since, are not known.
--
-- Parameters:
--   at          in the past
--   only_queue  null: all
--   most        1 to 10000 rows of each state and lane
--
-- Errors: JQ001 the moment is not in the past or no longer known, or `most` is out of range.
-- See: docs/howto/look-back.md#look-at-a-moment, docs/design/archive.md
create function forebay.jobs_at(at timestamptz, only_queue text default null, most integer default 100)
returns table (job_id bigint, group_name text, queue text, state text, kind text, attempt integer, enqueued_at timestamptz, worker text, claimed_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_lane record;
    v_seen pg_snapshot;
    v_at   timestamptz;
    v_known timestamptz := (select max(e.sealed_at) from forebay.segment s join forebay.seal e using (segment_id) where s.removed_at is not null);
begin
    if (jobs_at.at <= forebay._now()) is not true then
        raise exception using errcode = 'JQ001', column = 'at', message = format('at %s is not a time in the past', coalesce(jobs_at.at::text, 'null'));
    elsif (jobs_at.most between 1 and 10000) is not true then
        raise exception using errcode = 'JQ001', column = 'most', message = format('most %s is outside 1 to 10000', coalesce(jobs_at.most::text, 'null'));
    end if;
    if jobs_at.at < v_known then
        raise exception using errcode = 'JQ001', column = 'at',
            message = format('what waited and ran at %s is not known any more: retention has emptied the log of that time', jobs_at.at),
            hint = format('Moments since %s are known.', v_known);
    end if;
    return query
    select coalesce(r.job_id, r.seq), g.name, g.queue, 'running', r.kind, coalesce(r.attempt, 0) + 1, r.enqueued_at, o.worker, o.claimed_at
    from forebay._open_at(jobs_at.at) o
    join forebay.queue_group g on g.group_id = o.group_id and (jobs_at.only_queue is null or g.queue = jobs_at.only_queue)
    cross join lateral forebay._row(o.lane, o.xid, o.seq) r
    where r.seq is not null
    order by o.claimed_at, o.seq
    limit jobs_at.most;
    -- What was committed then: what the newest snapshot of that time has seen. Later claims of its window have the same one: what was
    -- enqueued after the first of them is known by its time.
    select c.snap, forebay._seen_since(c.group_id, c.lane, c.no, c.snap) into v_seen, v_at
    from (select coalesce(b.snap_to, b.snap_from) as snap, b.group_id, b.lane, b.no
          from forebay.queue_group g
          cross join lateral (select distinct l.lane from forebay.lane l where l.queue = g.queue) l
          cross join lateral forebay._batch_at(g.group_id, l.lane, jobs_at.at) b
          where b.no is not null
          order by pg_snapshot_xmax(coalesce(b.snap_to, b.snap_from)) desc, b.claimed_at desc limit 1) c;
    for v_lane in
        select g.group_id, g.name, g.queue,
               row(1, l.lane, case l.audience when 0 then g.start_after else '1:1:' end, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq)::forebay._cursor as cursor
        from forebay.queue_group g
        cross join lateral (select distinct i.lane, i.audience, i.priority from forebay.lane i where i.queue = g.queue and i.audience in (0, g.group_id, -g.group_id)) l
        left join lateral forebay._batch_at(g.group_id, l.lane, jobs_at.at) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment
        where (jobs_at.only_queue is null or g.queue = jobs_at.only_queue) and g.created_at <= jobs_at.at
        order by g.queue, g.name, l.priority
    loop
        return query execute
            'select coalesce(u.job_id, u.seq), $2, $3, ''ready'', u.kind, coalesce(u.attempt, 0) + 1, u.enqueued_at, null::text, null::timestamptz from ('
            || forebay._unread_sql(array[v_lane.cursor], 'l.xid, l.seq, l.job_id, l.kind, l.attempt, l.enqueued_at',
                                   case when v_seen is null then 'true' else format('i.xid < %L', greatest(pg_snapshot_xmax(v_seen), pg_snapshot_xmin(pg_current_snapshot()))) end)
            || ') u where u.enqueued_at <= $4 and ($5 is null or pg_visible_in_snapshot(u.xid, $5) or u.job_id is null and u.enqueued_at > $6) limit $7'
            using array[v_lane.cursor], v_lane.name, v_lane.queue, jobs_at.at, v_seen, v_at, jobs_at.most;
    end loop;
end
$$;


-- When the first batch with a snapshot was claimed, of the batches of a group and lane up to a number.
create function forebay._seen_since(p_group_id bigint, p_lane bigint, p_no bigint, p_snap pg_snapshot) returns timestamptz
language plpgsql stable
-- planner: in order
as $$
declare
    v_low  bigint := (select b.no from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane order by b.no limit 1);
    v_high bigint := p_no;
    v_mid  bigint;
begin
    while v_low < v_high loop
        v_mid := (v_low + v_high) / 2;
        if (select pg_snapshot_xmax(coalesce(b.snap_to, b.snap_from)) < pg_snapshot_xmax(p_snap) from forebay.batch b
            where b.group_id = p_group_id and b.lane = p_lane and b.no = v_mid) is not false then
            v_low := v_mid + 1;
        else
            v_high := v_mid;
        end if;
    end loop;
    return (select b.claimed_at from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane and b.no = v_low);
end
$$;


-- The newest batch of a group and lane that was there at a moment; null: none was. If it was deleted, it stands where the next one began.
create function forebay._batch_at(p_group_id bigint, p_lane bigint, p_at timestamptz) returns forebay.batch
language plpgsql stable
-- planner: in order
as $$
declare
    v_low  bigint := (select b.no from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane order by b.no limit 1);
    v_high bigint := (select b.no from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane order by b.no desc limit 1);
    v_mid  bigint;
    v_row  forebay.batch;
begin
    if v_low is null then
        return null;
    end if;
    v_low := v_low - 1;  -- The first one that may be later than the moment is above it.
    while v_low < v_high loop
        v_mid := (v_low + v_high + 1) / 2;
        -- Numbers are dense but for deleted ones, which are old.
        if coalesce((select b.claimed_at from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane and b.no = v_mid), '-infinity') <= p_at then
            v_low := v_mid;
        else
            v_high := v_mid - 1;
        end if;
    end loop;
    select b.* into v_row from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane and b.no = v_low;
    if v_row.no is null and v_low > 0 then
        select b.* into v_row from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane and b.no = v_low + 1;
        v_row.snap_to := null;
        v_row.pos_segment := null;
        v_row.pos_xid := null;
        v_row.pos_seq := null;
    end if;
    return v_row;
end
$$;


-- The jobs that workers had at a moment.
create function forebay._open_at(p_at timestamptz)
returns table (group_id bigint, worker text, lane bigint, xid xid8, seq bigint, claimed_at timestamptz)
language sql stable
as $$
    select b.group_id, e.worker, coalesce(b.lanes[u.nr], b.lane), coalesce(b.xids[u.nr], b.xids[1]), u.seq, b.claimed_at
    from forebay.lease e
    cross join lateral (select forebay._claim_at(e.lease_id, p_at) as no offset 0) c
    join forebay.batch n on n.lease_id = e.lease_id and n.claim_no = c.no
    join forebay.batch b on b.lease_id = e.lease_id and b.claim_no between n.floor and n.claim_no
    cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
    where e.opened_at <= p_at and (e.closed_at is null or e.closed_at > p_at)
      and not exists (select from forebay.settlement s
                      where s.lease_id = b.lease_id and s.claim_no = b.claim_no and s.settled_at <= p_at
                        and (s.offsets is null or u.nr::smallint = any (s.offsets)))
$$;


-- The number of the newest claim of a lease at a moment; null: none was. Claims without jobs have no batch, so this halves times, not numbers.
create function forebay._claim_at(p_lease_id bigint, p_at timestamptz) returns bigint
language plpgsql stable
-- planner: in order
as $$
declare
    v_low  bigint := 0;
    v_high bigint := coalesce((select b.claim_no from forebay.batch b where b.lease_id = p_lease_id order by b.claim_no desc limit 1), 0);
    v_mid  bigint;
    v_near record;
begin
    while v_low < v_high loop
        v_mid := (v_low + v_high + 1) / 2;
        select b.claim_no, b.claimed_at into v_near from forebay.batch b
        where b.lease_id = p_lease_id and b.claim_no >= v_mid order by b.claim_no limit 1;
        if v_near.claimed_at <= p_at then
            v_low := v_near.claim_no;
        else
            v_high := v_mid - 1;
        end if;
    end loop;
    return nullif(v_low, 0);
end
$$;
