-- grant: operator, reader

-- Why a sealed segment cannot be emptied yet, or null when every job in it is settled for every group.
create function forebay._segment_held_by(p_segment_id bigint) returns text
language plpgsql volatile
as $$
declare
    v_seal xid8;
begin
    select f.xid into v_seal from forebay.seal f where f.segment_id = p_segment_id;
    -- All writers of the segment have ended: later statements see all its rows, and no new row can come.
    if pg_snapshot_xmin(pg_current_snapshot()) < v_seal then
        return 'a transaction that may have written to it is still open';
    end if;
    return (select h.reason from forebay._segment_holders(array[p_segment_id], true) h limit 1);
end
$$;


-- What keeps sealed segments from being emptied: groups that have not passed a lane (0: the queue has no group), running jobs, jobs
-- that wait for their key. forebay.retain_v1() and forebay.groups() both follow it.
--
-- Stable, so that one snapshot shows cursors, batches and waiting jobs: with one for each, a job that waits for its key when the
-- batches are read, and is claimed before the waiting jobs are, would be in neither.
--
-- Parameters: p_first, end with the first one that is found; otherwise all, a group more than once.
create function forebay._segment_holders(p_segments bigint[], p_first boolean)
returns table (segment_id bigint, group_id bigint, reason text)
language plpgsql stable
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_lo bigint;
    v_hi bigint;
begin
    foreach segment_id in array p_segments loop
        -- The lanes that have rows in the segment, one probe each.
        for group_id, reason in execute format(
            'with recursive used as (
                 (select i.lane from forebay.log_%1$s i order by i.lane limit 1)
                 union all
                 select n.lane from used u cross join lateral (
                     select i.lane from forebay.log_%1$s i where i.lane > u.lane order by i.lane limit 1) n)
             select coalesce(g.group_id, 0),
                    format(''queue %%s, priority %%s: group %%s has not passed it'', l.queue, l.priority, coalesce(g.name, ''default''))
             from used u
             cross join lateral (select i.queue, i.priority, i.audience, bool_and(i.state = ''dormant'') as is_dormant
                                 from forebay.lane i where i.lane = u.lane group by i.queue, i.priority, i.audience) l
             left join lateral (select i.group_id, i.name, i.start_after, i.has_all_lanes from forebay.queue_group i
                                where i.queue = l.queue and (l.audience = 0 or i.group_id = abs(l.audience)) offset 0) g on true
             -- Without a cursor: jobs of public lanes that are older than the group are not its own.
             left join lateral (select coalesce((select b.snap_from from forebay.batch b
                                                 where b.group_id = g.group_id and b.lane = u.lane order by b.no desc limit 1),
                                                case l.audience when 0 then g.start_after end) as snap_from) c on true
             -- Every group that was there has had the jobs of a dormant lane.
             where not (l.is_dormant and coalesce(g.has_all_lanes, true)) and (c.snap_from is null or pg_snapshot_xmin(c.snap_from) < $1)',
            segment_id) using (select f.xid from forebay.seal f where f.segment_id = _segment_holders.segment_id)
        loop
            return next;
            if p_first then
                return;
            end if;
        end loop;
    end loop;
    select min(s.lo), max(s.hi) into v_lo, v_hi from forebay.segment s where s.segment_id = any (p_segments);
    for segment_id, group_id, reason in
        with part as materialized (select s.segment_id, s.lo, s.hi from forebay.segment s where s.segment_id = any (p_segments))
        select p.segment_id, o.group_id, format('worker %s still has jobs of it', (select e.worker from forebay.lease e where e.lease_id = o.lease_id))
        from forebay._open_jobs() o join part p on o.seq >= p.lo and o.seq < p.hi
        where o.seq >= v_lo and o.seq < v_hi
    loop
        return next;
        if p_first then
            return;
        end if;
    end loop;
    return query
    select distinct s.segment_id, p.group_id, 'jobs of it wait for their key'
    from forebay._all_parked() p
    join forebay.segment s on p.seq >= s.lo and p.seq < s.hi and s.segment_id = any (p_segments);
end
$$;


-- Why a full segment of the log cannot be emptied yet: an open transaction, a group that has not
-- passed it, a worker with jobs of it; null if nothing prevents it, or the segment is not full. The
-- doctor uses this for its check of retention. It reads the segment's rows, and reports only which
-- queue, group or worker they belong to.
--
-- Transaction: the caller's; reads only.
create function forebay.segment_held_by(segment_id bigint) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
begin
    if not exists (select from forebay.seal f where f.segment_id = segment_held_by.segment_id) then
        return null;
    end if;
    return coalesce(
        forebay._segment_held_by(segment_held_by.segment_id),
        (select format('export %s has not written it', e.name) from forebay.export e
         where exists (select from forebay.segment s where s.segment_id = segment_held_by.segment_id and s.due_at is not null)
           and not exists (select from forebay.exported_segment x where x.name = e.name and x.segment_id = segment_held_by.segment_id)
         order by 1 limit 1));
end
$$;
