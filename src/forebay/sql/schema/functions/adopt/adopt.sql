-- Adoption: decide what becomes of a log that was restored from another cluster.
-- grant: none

-- The transaction that divides the rows: older rows were restored, younger ones were written here.
--
-- A restore copies the rows before it creates the constraints, so the catalog row of a primary key, which is never updated,
-- divides the two. In a copy that was made within the cluster that row is as old as the original; there the catalog row of the
-- database divides them.
create function forebay._native_after() returns xid
language sql stable
as $$
    select case when n.system_identifier = i.system_identifier and age(d.xmin) < age(c.xmin) then d.xmin else c.xmin end
    from (select * from forebay.cluster order by cluster_no desc limit 1) n, forebay._identity() i, pg_database d, pg_constraint c
    where d.datname = current_database() and c.conname = 'cluster_pk' and c.conrelid = 'forebay.cluster'::regclass
$$;


-- Adopt a log that was restored from another cluster. `forebay adopt` calls this function. Returns
-- the number of jobs appended again, and the number discarded.
--
-- With `p_resume`, jobs that were waiting, scheduled, or claimed but not settled when the dump was
-- taken are appended again, once for each group that had not finished them; without it they count
-- as cancelled. Jobs enqueued here since the restore are kept in either case.
--
-- Errors: JQ012, JQ031 this is the log's own cluster, 55P03 after 60 s.
-- Transaction: alone.
-- Locks: the maintenance and promotion locks; SHARE on the old segments: it waits for enqueues in
--   progress there, new ones write elsewhere. At the end ACCESS EXCLUSIVE on those that were in
--   use.
-- See: docs/howto/restore-a-dump.md
--
-- Inside: every old segment becomes archive, new rows go to fresh segments, and cursors are created
-- again.
create function forebay.adopt_v1(p_resume boolean, out resumed bigint, out discarded bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '60s'
-- planner: short
as $$
declare
    v_last    bigint;
    v_start   bigint;
    v_segment record;
    v_lane    record;
    v_lease   record;
    v_row     record;
    v_queue   record;
    v_position    forebay.promotion;
    v_count   bigint;
    v_skipped bigint[];
    v_border  constant xid := forebay._native_after();
begin
    perform forebay._require_alone('forebay.adopt_v1()');
    resumed := 0;
    discarded := 0;
    if exists (select from forebay._identity() i,
                           (select c.* from forebay.cluster c order by c.cluster_no desc limit 1) n
               where n.system_identifier = i.system_identifier and n.database_oid = i.database_oid) then
        raise exception using errcode = 'JQ031',
            message = 'this log belongs to this cluster; there is nothing to adopt',
            hint = 'Adopt only a log that was restored from a dump of another cluster.';
    end if;
    lock table only forebay.lock_maintenance, only forebay.lock_promotion in share update exclusive mode;

    -- Fresh segments for all jobs enqueued from now on; wait for enqueues in progress in the old ones.
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    select s.lo into v_start from forebay.segment s where s.lo > v_last order by s.lo limit 1;
    if v_start is null then
        perform forebay._make_segment(s.segment_id + 1, s.hi, s.hi + forebay._setting_value('segment_rows'))
        from forebay.segment s order by s.segment_id desc limit 1;
        select s.lo into v_start from forebay.segment s where s.lo > v_last order by s.lo limit 1;
    end if;
    perform setval('forebay.log_seq', v_start);
    for v_segment in select s.segment_id from forebay.segment s where s.lo < v_start and s.removed_at is null loop
        execute format('lock table forebay.log_%s in share mode', v_segment.segment_id);
    end loop;

    -- Queues that no worker has served yet.
    for v_queue in select distinct l.queue from forebay.lane l
                   where not exists (select from forebay.queue_group g where g.queue = l.queue) loop
        perform forebay._imply_group(v_queue.queue);
    end loop;

    -- Behind a cursor, waiting for their key; jobs of the leases are counted with these.
    select coalesce(sum(p.jobs), 0) into v_count from forebay._all_parked() p;
    if p_resume then
        resumed := v_count;
    else
        discarded := v_count;
    end if;

    -- Numbers and transactions of the other cluster. Rows that are written now are noted again.
    delete from forebay.counter_cancelled;

    -- Claimed and not settled.
    for v_lease in select l.lease_id from forebay.lease l where l.closed_at is null order by l.opened_at loop
        if p_resume then
            resumed := resumed + coalesce(forebay._revoke(v_lease.lease_id, 'adopted', false), 0);
        else
            discarded := discarded + coalesce(forebay._discard_lease(v_lease.lease_id), 0);
        end if;
    end loop;

    if p_resume then
        for v_row in select p.group_id, p.job from forebay._parked_jobs() p order by p.group_id, p.place loop
            select l.queue, l.priority into v_lane from forebay.lane l where l.lane = (v_row.job).lane limit 1;
            perform forebay._continue_job(
                v_row.job, forebay._record_private_lane(v_lane.queue, v_lane.priority, v_row.group_id,
                                                        (v_row.job).ordering_key, (v_row.job).limit_key),
                (v_row.job).attempt, (v_row.job).pauses, null);
        end loop;
    end if;
    delete from forebay.parked;
    delete from forebay.key_run;
    delete from forebay.limit_parked;
    delete from forebay.limit_run;

    -- Waiting in the log.
    for v_lane in
        select l.lane, l.queue, l.priority, l.audience, g.group_id, g.start_after, b.no, b.snap_from, b.snap_to,
               b.pos_xid, b.pos_seq, b.high_seq, b.handed_total, b.skipped_total, s.lo, s.hi
        from (select distinct i.lane, i.queue, i.priority, i.audience from forebay.lane i) l
        join forebay.queue_group g on g.queue = l.queue and (l.audience = 0 or abs(l.audience) = g.group_id)
        left join lateral (select i.* from forebay.batch i
                           where i.group_id = g.group_id and i.lane = l.lane order by i.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment
    loop
        v_skipped := '{}';
        for v_segment in
            select s.segment_id from forebay.segment s where s.lo < v_start and s.removed_at is null order by s.segment_id
        loop
            for v_row in execute format(
                'select row(l.*)::forebay.log as r, age(l.xmin) < age($2) as native
                 from forebay.log_%s l where l.lane = $1 and l.kind <> '''' order by l.xid, l.seq', v_segment.segment_id) using v_lane.lane, v_border
            loop
                if not v_row.native then
                    continue when v_lane.snap_from is null and v_lane.audience = 0
                                  and pg_visible_in_snapshot((v_row.r).xid, v_lane.start_after);
                    continue when v_lane.snap_from is not null and forebay._is_consumed(
                        (v_row.r).xid, (v_row.r).seq, v_lane.snap_from, v_lane.snap_to, v_lane.lo, v_lane.hi,
                        v_lane.pos_xid, v_lane.pos_seq);
                    if not p_resume then
                        discarded := discarded + 1;
                        v_skipped := v_skipped || (v_row.r).seq;
                        continue;
                    end if;
                end if;
                continue when forebay._is_moved(coalesce((v_row.r).job_id, (v_row.r).seq), v_lane.group_id, (v_row.r).seq);
                resumed := resumed + 1;
                perform forebay._continue_job(
                    v_row.r,
                    forebay._record_private_lane(v_lane.queue, v_lane.priority,
                                               case when v_lane.audience < 0 then v_lane.audience else v_lane.group_id end,
                                               (v_row.r).ordering_key, (v_row.r).limit_key),
                    coalesce((v_row.r).attempt, 0), coalesce((v_row.r).pauses, 0), null);
            end loop;
        end loop;
        insert into forebay.batch (
            group_id, lane, no, snap_from, pos_segment, pos_xid, pos_seq, high_seq, handed_total, skipped_total,
            claimed_at, skipped, skipped_as)
        values (v_lane.group_id, v_lane.lane, coalesce(v_lane.no, 0) + 1, '1:1:', 0, '0', 0,
                greatest(v_lane.high_seq, v_last), coalesce(v_lane.handed_total, 0),
                coalesce(v_lane.skipped_total, 0) + cardinality(v_skipped), forebay._now(),
                v_skipped, array_fill('c'::"char", array[cardinality(v_skipped)]));
    end loop;
    -- A group that was being closed stays, paused: its jobs have new rows, and closing it would give up all of them.
    update forebay.queue_group g
    set start_after = '1:1:', closing_at = null, closing_snap = null, fenced_lane = null;
    delete from forebay.batch b using forebay.closed_group c where c.group_id = b.group_id;
    -- Counted by snapshots of the other cluster.
    delete from forebay.counter_waiting;
    delete from forebay.counter_fold;
    delete from forebay.counter;
    delete from forebay.counter_sample;
    delete from forebay.counter_cell;
    delete from forebay.counter_change;
    delete from forebay.withdrawn;
    delete from forebay.limiter;
    -- Transaction ids of the other cluster.
    update forebay.lane l set state = 'used' where l.state = 'retired';
    perform setval('forebay.lane_horizon', 1), setval('forebay.lane_barrier', 1);

    -- Deferred and not yet promoted: written again, with xids of this cluster.
    select * into v_position from forebay.promotion p order by p.no desc limit 1;
    if p_resume then
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, attempt, pauses, unique_key, {job})
        select d.run_at, d.lane, d.enqueued_at, d.job_id, d.expires_at, d.attempt, d.pauses, d.unique_key, {job of d}
        from forebay.deferred d
        where age(d.xmin) >= age(v_border) and d.kind <> ''
          and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                   and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id))
        order by d.run_at, d.deferred_id;
        get diagnostics v_count = row_count;
        resumed := resumed + v_count;
    else
        select count(*) into v_count
        from forebay.deferred d
        where age(d.xmin) >= age(v_border) and d.kind <> ''
          and not (v_position.no is not null and pg_visible_in_snapshot(d.xid, v_position.snap)
                   and (d.run_at, d.deferred_id) <= (v_position.run_at, v_position.deferred_id));
        discarded := discarded + v_count;
    end if;
    -- The rows written above are younger than the border.
    delete from forebay.deferred d where age(d.xmin) >= age(v_border);
    delete from forebay.promotion;
    -- Subjects are no jobs that wait: they stay in the calendar, which looks at each of them.
    perform forebay._wake_subjects(array_agg(s.subject_id), array_agg(coalesce(n.due_at, forebay._now())))
    from forebay.subject s cross join lateral forebay._newest_state(s.subject_id) n
    where n.state in ('s', 'g') or n.state = 'k' and n.lane is not null;
    perform forebay._wake_all_flows();

    -- An enqueue that drew its number before the move and writes its row after this commit would write to a segment that is
    -- no longer read: refuse the row, and the transaction with it.
    for v_segment in
        select s.segment_id from forebay.segment s
        where s.lo <= v_last and s.removed_at is null
          and not exists (select from forebay.seal f where f.segment_id = s.segment_id)
    loop
        execute format('alter table forebay.log_%s add constraint adopted check (false) not valid', v_segment.segment_id);
    end loop;

    delete from forebay.seal;
    insert into forebay.seal (segment_id, xid, sealed_at)
    select s.segment_id, '0', forebay._now() from forebay.segment s where s.lo < v_start;
    insert into forebay.cluster (system_identifier, database_oid)
    select i.system_identifier, i.database_oid from forebay._identity() i;
    perform forebay._record_event('adopt', p_new => jsonb_build_object('resumed', resumed, 'discarded', discarded),
                                  p_count => resumed + discarded);
end
$$;


-- Close a restored lease and count its unsettled jobs as cancelled; returns how many.
create function forebay._discard_lease(p_lease_id bigint) returns bigint
language plpgsql volatile
as $$
declare
    v_batch record;
    v_open  smallint[];
    v_count bigint := 0;
begin
    update forebay.lease l set closed_at = forebay._now(), closed_as = 'adopted' where l.lease_id = p_lease_id;
    for v_batch in select b.claim_no, b.seqs from forebay.batch b where b.lease_id = p_lease_id loop
        v_open := array(
            select i::smallint from generate_subscripts(v_batch.seqs, 1) i
            where not exists (select from forebay.settlement s
                              where s.lease_id = p_lease_id and s.claim_no = v_batch.claim_no
                                and (s.offsets is null or i::smallint = any (s.offsets))));
        continue when cardinality(v_open) = 0;
        insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes)
        values (p_lease_id, v_batch.claim_no, 2147483647, forebay._now(), v_open,
                array_fill('c'::"char", array[cardinality(v_open)]));
        v_count := v_count + cardinality(v_open);
    end loop;
    return v_count;
end
$$;
