-- grant: worker

-- Does a job still wait, run or lie ahead of a cursor, in any group?
create function forebay._is_unfinished(p_job_id bigint) returns boolean
language sql stable
as $$
    select exists (select from forebay.deferred d where d.job_id = p_job_id)
        or exists (
            select from forebay._rows_of(p_job_id) r
            join lateral (select l.queue, l.audience from forebay.lane l where l.lane = r.lane limit 1) i on true
            left join forebay.queue_group g on g.queue = i.queue and (i.audience = 0 or abs(i.audience) = g.group_id)
            left join lateral (select b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq
                               from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
                               where b.group_id = g.group_id and b.lane = r.lane order by b.no desc limit 1) c on true
            where r.seq >= forebay._archived_below()
              and (c.snap_from is null
                   or not forebay._is_consumed(r.xid, r.seq, c.snap_from, c.snap_to, c.lo, c.hi, c.pos_xid, c.pos_seq)))
        or exists (select from forebay.job(p_job_id) j where j.state in ('claimed', 'running'))
$$;


-- Delete rows that are no longer needed: promoted deferred rows, old heartbeats and acts of the guard, and batches, settlements,
-- leases and failures whose segments are gone. Returns the number of rows. Never the newest row of a cursor, never an open batch.
--
-- Invariant "flat cost": while a snapshot is held, deleted rows stay in the indexes, in front of the rows to be deleted next. So
-- each call continues with deferred rows where the last one stopped, and everything else waits for a pass, every ten minutes.
-- Once an hour the pass takes deferred rows from the beginning, for rows that a late commit, or a call that was rolled back,
-- left behind.
--
-- Parameters: p_most, about the number of rows of a kind in this call; p_pass, make a pass now, over everything and from the
--   beginning; null: when a pass is due.
-- Errors: JQ030 foreign cluster.
create function forebay.trim_v1(p_most integer default 20000, p_pass boolean default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
set lock_timeout = '1s'
as $$
declare
    v_now    constant timestamptz := forebay._now();
    v_second constant bigint := extract(epoch from v_now);
    v_last   bigint;
    v_pass   boolean;
    v_rows   bigint;
    v_total  bigint;
begin
    perform forebay._require_same_cluster();
    if not forebay._try_lock('trim') then
        return 0;
    end if;
    v_last := coalesce(pg_sequence_last_value('forebay.trim_pass_seq'), 0);
    v_pass := coalesce(p_pass, v_last <= v_second - 600);
    v_total := forebay._trim_deferred(p_most, v_pass and coalesce(p_pass, v_last / 3600 < v_second / 3600));
    if v_pass then
        v_rows := forebay._trim_key_runs(p_most) + forebay._trim_batches(p_most) + forebay._trim_limiters(null);
        v_total := v_total + v_rows + forebay._trim_by_age() + forebay._trim_keys(p_most);
        if v_rows < p_most then
            perform setval('forebay.trim_pass_seq', v_second);
        end if;
    end if;
    return v_total;
end
$$;


-- Delete promoted rows, from the position on or from the beginning, and the promoter's old cursors.
create function forebay._trim_deferred(p_most integer, p_from_the_beginning boolean) returns bigint
language plpgsql volatile
as $$
declare
    v_cursor forebay.promotion;
    v_from   timestamptz := '-infinity';
    v_gone   timestamptz;
    v_rows   bigint;
begin
    select * into v_cursor from forebay.promotion p order by p.no desc limit 1;
    if not found then
        return 0;
    end if;
    if not p_from_the_beginning then
        v_from := to_timestamp(coalesce(pg_sequence_last_value('forebay.trim_position_seq'), 0) / 1000000.0);
    end if;
    with gone as (
        delete from forebay.deferred d
        where d.ctid = any (array(
            select i.ctid from forebay.deferred i
            where (i.run_at, i.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
              and i.run_at >= v_from
              and pg_visible_in_snapshot(i.xid, v_cursor.snap)
            order by i.run_at, i.deferred_id limit p_most))
        returning d.run_at)
    select count(*), max(g.run_at) into v_rows, v_gone from gone g;
    -- Just below: some rows as old as the position may be left.
    perform setval('forebay.trim_position_seq', greatest(
        1, (extract(epoch from case when v_rows < p_most then v_cursor.run_at else v_gone end) * 1000000)::bigint - 1));
    delete from forebay.promotion p
    where p.no < v_cursor.no - 100 and (p_from_the_beginning or p.no >= v_cursor.no - 10000);
    return v_rows;
end
$$;


-- Delete batches whose jobs left the archive, with their settlements and starts of suspects.
create function forebay._trim_batches(p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_first bigint;
    v_lane  record;
    v_rows  bigint;
    v_total bigint := 0;
begin
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    for v_lane in
        select g.group_id, l.lane
        from forebay.queue_group g
        join lateral (select distinct i.lane from forebay.lane i
                      where i.queue = g.queue and i.audience in (0, g.group_id, -g.group_id)) l on true
    loop
        exit when v_total >= p_most;
        -- high_seq rises with no: rows to delete are at the front, and mostly the first row shows that there are none.
        continue when (select b.high_seq >= v_first from forebay.batch b
                       where b.group_id = v_lane.group_id and b.lane = v_lane.lane order by b.no limit 1) is not false;
        with gone as (
            delete from forebay.batch b
            where b.group_id = v_lane.group_id and b.lane = v_lane.lane and b.high_seq < v_first
              and b.no < (select i.no from forebay.batch i
                          where i.group_id = v_lane.group_id and i.lane = v_lane.lane order by i.no desc limit 1)
              and b.no <= (select i.no from forebay.batch i
                           where i.group_id = v_lane.group_id and i.lane = v_lane.lane order by i.no limit 1) + p_most
              and not exists (select from forebay.lease l where l.lease_id = b.lease_id and l.closed_at is null
                              and b.claim_no >= (select i.floor from forebay.batch i
                                                 where i.lease_id = l.lease_id order by i.claim_no desc limit 1))
              -- A key run that still exists has the state of its key: a job of it may run long after its first row has gone.
              and (b.keys is null or not exists (
                  select from unnest(b.keys) k (key)
                  join forebay.key_run t on t.group_id = b.group_id and t.ordering_key = k.key
                                         and t.lease_id = b.lease_id and t.claim_no = b.claim_no))
            returning b.lease_id, b.claim_no),
        settled as (
            delete from forebay.settlement s using gone g
            where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1),
        started as (
            delete from forebay.suspect_start s using gone g
            where s.lease_id = g.lease_id and s.claim_no = g.claim_no returning 1)
        select (select count(*) from gone) + (select count(*) from settled) + (select count(*) from started) into v_rows;
        v_total := v_total + v_rows;
    end loop;
    return v_total;
end
$$;


-- Delete old heartbeats, closed leases, errors, acts of the guard, and tombstones that are no longer read.
create function forebay._trim_by_age() returns bigint
language plpgsql volatile
as $$
declare
    v_rows bigint;
    v_days constant bigint := forebay._setting_value('retention_days');
begin
    delete from forebay.heartbeat h
    where h.heartbeat_at < forebay._now() - interval '10 minutes'
      and (exists (select from forebay.heartbeat n where n.lease_id = h.lease_id and n.heartbeat_at > h.heartbeat_at)
           or not exists (select from forebay.lease l where l.lease_id = h.lease_id and l.closed_at is null));
    get diagnostics v_rows = row_count;
    delete from forebay.lease l
    where l.closed_at < forebay._now() - make_interval(days => v_days::integer)
      and not exists (select from forebay.batch b where b.lease_id = l.lease_id);
    -- Errors outlive their jobs' attempts; a tombstone is needed as long as a claim or a settlement may read it.
    delete from forebay.failure f
    where f.failed_at < forebay._now() - make_interval(days => greatest(60, 2 * v_days::integer));
    delete from forebay.guard_event e
    where e.at < forebay._now() - make_interval(days => greatest(60, 2 * v_days::integer));
    delete from forebay.tombstone t
    where t.recorded_at < forebay._now() - make_interval(days => 2 * v_days::integer)
      and not forebay._is_unfinished(t.job_id);
    v_rows := v_rows + forebay._trim_results() + forebay._trim_mirrors();
    return v_rows;
end
$$;
