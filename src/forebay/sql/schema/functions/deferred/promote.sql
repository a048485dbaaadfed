-- grant: worker

-- Append due scheduled and retrying jobs to the log, at most `p_limit` (1 to 100,000), and those
-- that became visible late; issue the runs of due subjects. Returns how many; 0 also if another
-- session is promoting.
--
-- Errors: JQ001 a bad limit, JQ012, JQ030.
-- Transaction: alone.
-- Locks: the promotion lock; then rows of subjects (skips locked ones).
--
-- Inside: promoted rows are those visible in a snapshot at or below a position (run_at,
-- deferred_id). A promotion takes two disjoint sets: rows between the old position and the new one,
-- and rows at or below the old position that became visible since. Nothing is updated, locked or
-- skipped, so no row can be missed. The wake rows of subjects stand among them. Invariant "nothing
-- lost".
-- pages: 60 + 20 a job + 100 a subject + 3 an open transaction
create function forebay.promote_v1(p_limit integer default 5000) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
begin
    -- With a limit of 0 the position would move past jobs that were not promoted.
    if p_limit is null or p_limit not between 1 and 100000 then
        raise exception using errcode = 'JQ001', message = format('limit %s is outside 1 to 100000', coalesce(p_limit::text, 'null'));
    end if;
    perform forebay._require_alone('forebay.promote_v1()');
    perform forebay._require_same_cluster();
    return forebay._promote(p_limit);
end
$$;


-- The promotion itself. forebay.take() calls it behind a claim, in a transaction that has written: so its cursor ends at a snapshot without
-- the own transaction, which may add jobs that are due.
create function forebay._promote(p_limit integer) returns integer
language plpgsql volatile
as $$
declare
    v_cursor forebay.promotion;
    v_now    pg_snapshot;
    v_ranges forebay._xid_range[];
    v_at     timestamptz;
    v_run_at timestamptz[];
    v_ids    bigint[];
    v_position   timestamptz;
    v_position_id bigint;
    v_due    integer := 0;
    v_late   integer := 0;
    v_lanes  bigint[];
    v_subjects bigint[];
    v_flows  jsonb[];                    -- what woke flows wait for
    v_left   record;
    v_withdrawn boolean;                 -- Are there jobs that were cancelled while they waited?
begin
    if not forebay._try_lock('promotion') then
        return 0;
    end if;
    select forebay._snapshot_of_others(), forebay._now() into v_now, v_at;
    select * into v_cursor from forebay.promotion p order by p.no desc limit 1;
    if not found then
        v_cursor := row(0, '1:1:', '-infinity', 0, 0, v_at);
    end if;
    if pg_snapshot_xmax(v_cursor.snap) > pg_snapshot_xmax(v_now) then
        raise exception using errcode = 'JQ030',
            message = 'the promotion cursor is ahead of this cluster',
            hint = 'This database was restored from another cluster. Run forebay adopt --resume or --discard.';
    end if;
    if v_cursor.run_at > v_at then
        -- The clock was set back. Once the rows promoted already are deleted, the position may follow the clock.
        delete from forebay.deferred d
        where (d.run_at, d.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
          and pg_visible_in_snapshot(d.xid, v_cursor.snap);
        delete from forebay.withdrawn w
        where (w.run_at, w.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
          and pg_visible_in_snapshot(w.row_xid, v_cursor.snap);
        v_cursor.run_at := v_at;
        v_cursor.deferred_id := 0;
    end if;

    v_ranges := forebay._xid_ranges(v_cursor.snap, v_now);
    -- Mostly nothing is due and nothing was added: two probes, and one for each transaction in progress at either snapshot.
    if not exists (select from forebay.deferred d
                   where (d.run_at, d.deferred_id) > (v_cursor.run_at, v_cursor.deferred_id) and d.run_at <= v_at)
       and not exists (
           select from unnest(v_ranges) r (low, high), lateral (
               select from forebay.deferred d where d.xid >= r.low and d.xid < r.high limit 1) f)
       and not forebay._should_move(v_cursor.snap, v_now, v_cursor.promoted_at) then
        return 0;
    end if;

    select array_agg(d.run_at order by d.run_at, d.deferred_id), array_agg(d.deferred_id order by d.run_at, d.deferred_id)
    into v_run_at, v_ids
    from (select i.run_at, i.deferred_id from forebay.deferred i
          where (i.run_at, i.deferred_id) > (v_cursor.run_at, v_cursor.deferred_id)
            and i.run_at <= v_at
            and pg_visible_in_snapshot(i.xid, v_now)
          order by i.run_at, i.deferred_id
          limit p_limit) d;
    if cardinality(v_ids) = p_limit then
        v_position := v_run_at[p_limit];
        v_position_id := v_ids[p_limit];
    else
        v_position := v_at;
        v_position_id := 9223372036854775807;
    end if;

    v_withdrawn := exists (select from forebay.withdrawn);
    if v_ids is not null then
        with due as materialized (
            select d.* from forebay.deferred d
            where (d.run_at, d.deferred_id) > (v_cursor.run_at, v_cursor.deferred_id)
              and (d.run_at, d.deferred_id) <= (v_position, v_position_id)
              and pg_visible_in_snapshot(d.xid, v_now)
        ), written as (
            insert into forebay.log (
                lane, enqueued_at, job_id, expires_at, attempt, pauses, unique_key, ready_at, {job})
            select d.lane, d.enqueued_at, nullif(d.job_id, 0), d.expires_at, d.attempt, d.pauses, d.unique_key, d.run_at, {job of d}
            from due d
            where d.job_id >= 0
            order by d.run_at, d.deferred_id
            returning lane, seq, job_id
        )
        select (select array_agg(w.lane) from written w where v_withdrawn) as new_lanes, (select array_agg(w.seq) from written w where v_withdrawn) as new_seqs,
               (select array_agg(w.job_id) from written w where v_withdrawn) as new_jobs, count(*) as jobs, array_agg(d.lane) as all_lanes, array_agg(d.lane) filter (where d.kind <> '') as lanes,
               array_agg(d.xid) filter (where d.kind <> '') as xids,
               array_agg(forebay._state_of_deferred(d.attempt, d.pauses)) filter (where d.kind <> '') as states,
               array_agg(-d.job_id) filter (where d.job_id < 0 and d.job_id <> forebay._flow_mark()) as subjects,
               array_agg(d.args) filter (where d.job_id = forebay._flow_mark()) as flows,
               array_agg(d.kind) filter (where d.kind <> '') as kinds, array_agg(d.tag) filter (where d.kind <> '') as tags
        into v_left from due d;
        v_due := v_left.jobs;
        v_lanes := v_left.all_lanes;
        v_subjects := v_left.subjects;
        v_flows := v_left.flows;
        perform forebay._record_left(v_left.lanes, v_left.xids, v_left.states, v_left.kinds, v_left.tags);
        perform forebay._note_cancelled_again(v_left.new_lanes, v_left.new_seqs, v_left.new_jobs);
    end if;

    -- At or below the old position, and visible only since.
    with late as materialized (
        select d.*
        from unnest(v_ranges) r (low, high), lateral (
            select * from forebay.deferred i where i.xid >= r.low and i.xid < r.high
            offset 0) d  -- Keeps the planner from reading everything below the position by time.
        where (d.run_at, d.deferred_id) <= (v_cursor.run_at, v_cursor.deferred_id)
    ), written as (
        insert into forebay.log (
            lane, enqueued_at, job_id, expires_at, attempt, pauses, unique_key, ready_at, {job})
        select d.lane, d.enqueued_at, nullif(d.job_id, 0), d.expires_at, d.attempt, d.pauses, d.unique_key, d.run_at, {job of d}
        from late d
        where d.job_id >= 0
        order by d.run_at, d.deferred_id
        returning lane, seq, job_id
    )
    select (select array_agg(w.lane) from written w where v_withdrawn) as new_lanes, (select array_agg(w.seq) from written w where v_withdrawn) as new_seqs,
           (select array_agg(w.job_id) from written w where v_withdrawn) as new_jobs, count(*) as jobs, array_agg(d.lane) as all_lanes, array_agg(d.lane) filter (where d.kind <> '') as lanes,
               array_agg(d.xid) filter (where d.kind <> '') as xids,
           array_agg(forebay._state_of_deferred(d.attempt, d.pauses)) filter (where d.kind <> '') as states,
           array_agg(-d.job_id) filter (where d.job_id < 0 and d.job_id <> forebay._flow_mark()) as subjects,
               array_agg(d.args) filter (where d.job_id = forebay._flow_mark()) as flows,
               array_agg(d.kind) filter (where d.kind <> '') as kinds, array_agg(d.tag) filter (where d.kind <> '') as tags
    into v_left from late d;
    v_late := v_left.jobs;
    if v_late > 0 then
        v_lanes := v_lanes || v_left.all_lanes;
        v_subjects := v_subjects || v_left.subjects;
        v_flows := v_flows || v_left.flows;
        perform forebay._record_left(v_left.lanes, v_left.xids, v_left.states, v_left.kinds, v_left.tags);
        perform forebay._note_cancelled_again(v_left.new_lanes, v_left.new_seqs, v_left.new_jobs);
    end if;
    v_lanes := array(select distinct u from unnest(v_lanes) u);
    -- The lanes may have become dormant while the jobs waited.
    if v_lanes <> '{}' then
        perform forebay._use_lanes(v_lanes);
    end if;

    if v_subjects <> '{}' then
        perform forebay._wake_due_subjects(v_subjects);
    end if;

    if v_due + v_late > 0
       or exists (
           select from unnest(v_ranges) r (low, high), lateral (
               select from forebay.deferred d where d.xid >= r.low and d.xid < r.high limit 1) f)
       or forebay._should_move(v_cursor.snap, v_now, v_cursor.promoted_at) then
        insert into forebay.promotion (no, snap, run_at, deferred_id, promoted, promoted_at)
        values (v_cursor.no + 1, v_now, v_position, v_position_id, v_due + v_late, v_at);
        if v_due + v_late > 0 then
            perform forebay._notify(q.queue)
            from (select distinct l.queue
                  from (select distinct d.lane from forebay.deferred d
                        where (d.run_at, d.deferred_id) > (v_cursor.run_at, v_cursor.deferred_id)
                          and (d.run_at, d.deferred_id) <= (v_position, v_position_id)) d
                  cross join lateral (select i.queue from forebay.lane i where i.lane = d.lane limit 1) l) q;
        end if;
    end if;
    -- Behind the new position: flows whose time has come with the same promotion are in the log already.
    if v_flows <> '{}' then
        perform forebay._wake_flows(v_flows);
    end if;
    return v_due + v_late;
end
$$;
