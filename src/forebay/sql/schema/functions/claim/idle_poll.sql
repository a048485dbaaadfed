-- Idle polls: what a session remembers of its last poll that found no ready lane, so that the next one reads only what is newer.
--
-- Invariant "commit decides": the memory of a poll at the snapshot S is that everything S shows has been claimed. Later only a newer
-- row of the log makes a lane ready, or a transaction that advances forebay.poll_horizon. A row is newer when S does not show its
-- transaction: that began after S, or was in progress at S. So a poll with the same answer reads no cursor. A memory with another horizon
-- is not used, and none begins while such a transaction is open, so S shows what they all did. Time alone makes a lane ready too, so that
-- its cursor moves (forebay._should_move()): after five seconds the memory is not used.
--
-- It is a parameter of the session without any effect, not a table: it costs no write, and a crash, which may take back the claims
-- that it relies on, ends the session. A pooler may pass it to another client; it says the same to each.


-- What this session remembers of a poll for groups with this hash of ids; null: nothing. A change of the type forebay._idle_poll needs
-- other names of the parameters, since sessions outlive migrations.
create function forebay._recall_poll(p_hash bigint) returns forebay._idle_poll
language plpgsql volatile
as $$
declare
    v forebay._idle_poll := nullif(current_setting('forebay.idle_' || (p_hash & 15), true), '')::forebay._idle_poll;
begin
    return case when v.hash = p_hash then v end;
end
$$;


-- The id of the next transaction, without drawing one. All that drew a number before this call have lower ids.
create function forebay._next_xid() returns xid8
language plpgsql volatile
as $$
declare
    v_known constant xid8 := pg_snapshot_xmax(pg_current_snapshot());
begin
    return (v_known::text::bigint + age(v_known::xid))::text::xid8;
end
$$;


-- Is the log, without reading it, known to have no row that an idle poll did not see? p_last is its last number.
create function forebay._is_still_idle(p_idle forebay._idle_poll, p_last bigint) returns boolean
language plpgsql volatile
as $$
begin
    -- In steps, since an expression with a query is a statement even where the query is not evaluated.
    if p_last <> p_idle.last_seq
       -- A transaction that had begun, and that the snapshot did not list yet, may have ended.
       or p_idle.next_xid > pg_snapshot_xmax(p_idle.snap)
          and pg_snapshot_xmax(pg_current_snapshot()) > pg_snapshot_xmax(p_idle.snap) then
        return false;
    elsif pg_snapshot_xmin(p_idle.snap) = pg_snapshot_xmax(p_idle.snap) then
        return true;
    end if;
    return not exists (select from pg_snapshot_xip(p_idle.snap) x where pg_visible_in_snapshot(x, pg_current_snapshot()));
end
$$;


-- The segments that a poll reads: the last sealed one and those after it, up to the number p_last; which one is sealed; its seal; and that
-- of the one before.
create function forebay._newest_segments(p_last bigint, out segments bigint[], out sealed bigint, out below xid8, out before xid8)
language plpgsql volatile
as $$
declare
    v_hi bigint;
begin
    select f.segment_id, f.xid, i.hi into sealed, below, v_hi
    from forebay.seal f join forebay.segment i using (segment_id) order by f.segment_id desc limit 1;
    segments := array(
        select s.segment_id from forebay.segment s
        where s.lo >= coalesce(v_hi, 0) and s.lo <= p_last
        order by s.lo);
    select f.xid into before from forebay.seal f where f.segment_id = sealed - 1;
    if sealed is not null then
        segments := sealed || segments;
    end if;
end
$$;


-- The lanes of some groups with rows that an idle poll did not see, and the snapshot of this answer. Groups share the probe of a public
-- lane. p_segments are read; rows of transactions below p_before may be in older ones, and if such a one has ended since, lanes is null.
create function forebay._changed_lanes(
    p_group_ids bigint[], p_idle forebay._idle_poll, p_segments bigint[], p_sealed bigint, p_below xid8, p_before xid8,
    out lanes bigint[], out snap pg_snapshot)
language plpgsql volatile
as $$
declare
    v_places  forebay._place[];
    v_moved   boolean[];
    v_ended   forebay._xid_range[];
    v_segment bigint;
begin
    select array_agg(row(null, l.lane, null, null, null, p_idle.snap, null)::forebay._place), array_agg(false), pg_current_snapshot()
    into v_places, v_moved, snap
    from (select distinct i.lane from forebay.lane i
          where i.queue = any (p_idle.queues) and i.state <> 'dormant'
            and (i.audience = 0 or abs(i.audience) = any (p_group_ids))) l;
    if p_before > pg_snapshot_xmin(p_idle.snap) then
        if p_before > pg_snapshot_xmax(p_idle.snap)
           or exists (select from pg_snapshot_xip(p_idle.snap) x where x < p_before and pg_visible_in_snapshot(x, snap)) then
            return;
        end if;
    end if;
    v_ended := forebay._xid_ranges('1:1:', snap);
    foreach v_segment in array p_segments loop
        exit when array_position(v_moved, false) is null;
        execute 'select forebay._moved_' || v_segment || '($1, $2, $3, $4, $5)'
            into v_moved using v_places, v_moved, snap, v_ended, case when v_segment = p_sealed then p_below end;
    end loop;
    lanes := array(select (p.place).lane from (select unnest(v_places) as place, unnest(v_moved) as moved) p where p.moved);
end
$$;


-- Let the session remember that a poll found no ready lane.
--
-- Parameters:
--   p_idle   what the session remembered so far of these groups
--   p_new    the poll; its queues and wake-up sequences are added here
create function forebay._remember_poll(p_group_ids bigint[], p_idle forebay._idle_poll, p_new forebay._idle_poll) returns void
language plpgsql volatile
as $$
declare
    v      forebay._idle_poll := p_new;
    v_last constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
begin
    -- A segment was begun during the poll: the snapshot may show rows of it that were not looked for.
    if v_last <> v.last_seq then
        if exists (select from forebay.segment s where s.lo > v.last_seq and s.lo <= v_last) then
            return;
        end if;
    end if;
    if p_idle.hash is not null then
        v.queues := p_idle.queues;
        v.flags := p_idle.flags;
    else
        select case when count(distinct g.queue) <= 16 then array_agg(distinct g.queue) end,
               array_agg(distinct forebay._wakeup(g.queue)::oid)
        into v.queues, v.flags
        from forebay.queue_group g where g.group_id = any (p_group_ids);
    end if;
    perform set_config('forebay.idle_' || (v.hash & 15), v::text, false);
end
$$;


-- Let no session rely on an idle poll from before this transaction's commit: it makes lanes ready without a row of the log.
create function forebay._forget_polls() returns void
language plpgsql volatile
as $$
begin
    lock table only forebay.lock_polls in row exclusive mode;
    perform nextval('forebay.poll_horizon');
end
$$;


-- May a memory begin? Only when each transaction that called forebay._forget_polls() before this call has ended: a later snapshot shows
-- what it did, and one that calls it from now on advances the horizon. The lock is free again when this returns.
create function forebay._may_remember() returns boolean
language plpgsql volatile
as $$
begin
    lock table only forebay.lock_polls in share mode nowait;
    raise exception 'free';  -- The end of the block gives the lock back.
exception
    when lock_not_available then
        return false;
    when raise_exception then
        return true;
end
$$;


-- Let producers notify for some time: a worker sleeps. Nothing without a time.
create function forebay._announce_sleep(p_flags oid[], p_millis integer) returns void
language plpgsql volatile
as $$
declare
    v_until constant bigint := (extract(epoch from clock_timestamp()) * 1000)::bigint + p_millis;
begin
    if p_millis is null then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);  -- Setting a flag sequence writes WAL; the commit need not wait for it.
    if not forebay._is_same_cluster() then
        perform forebay._record_same_cluster();
    end if;
    perform forebay._advance_flag(f.flag, v_until, 250)
    from unnest(p_flags) f (flag)
    -- A time in the future is from before the clock was set back.
    where not coalesce(pg_sequence_last_value(f.flag) between v_until and v_until + 70000, false);
end
$$;
