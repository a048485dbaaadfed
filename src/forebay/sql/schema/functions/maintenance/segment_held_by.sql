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
    return forebay._segment_needed_by(p_segment_id);
end
$$;


-- Why a segment whose writers have all ended is needed, or null.
--
-- Stable, so that one snapshot shows cursors, batches and waiting jobs: with one for each, a job that waits for its key when the
-- batches are read, and is claimed before the waiting jobs are, would be in neither.
create function forebay._segment_needed_by(p_segment_id bigint) returns text
language plpgsql stable
as $$
declare
    v_lo   bigint;
    v_hi   bigint;
    v_seal xid8;
    v_lane record;
    v_any  boolean;
    v_open record;
begin
    select s.lo, s.hi, f.xid into v_lo, v_hi, v_seal
    from forebay.segment s join forebay.seal f using (segment_id) where s.segment_id = p_segment_id;
    for v_lane in
        select l.lane, l.queue, l.priority, g.group_id, g.name
        from (select i.lane, i.queue, i.priority, i.audience, bool_and(i.state = 'dormant') as is_dormant
              from forebay.lane i group by i.lane, i.queue, i.priority, i.audience) l
        left join forebay.queue_group g on g.queue = l.queue and (l.audience = 0 or g.group_id = abs(l.audience))
        -- Without a cursor: jobs of public lanes that are older than the group are not its own.
        left join lateral (select coalesce((select b.snap_from from forebay.batch b
                                            where b.group_id = g.group_id and b.lane = l.lane order by b.no desc limit 1),
                                           case l.audience when 0 then g.start_after end) as snap_from) c on true
        -- Every group that was there has had the jobs of a dormant lane.
        where not (l.is_dormant and coalesce(g.has_all_lanes, true)) and (c.snap_from is null or pg_snapshot_xmin(c.snap_from) < v_seal)
    loop
        execute format('select exists (select from forebay.log_%s l where l.lane = $1)', p_segment_id)
            into v_any using v_lane.lane;
        if v_any then
            return format('queue %s, priority %s: group %s has not passed it', v_lane.queue, v_lane.priority, coalesce(v_lane.name, 'default'));
        end if;
    end loop;
    select e.worker, b.claim_no into v_open
    from forebay.lease e
    join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
    join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
    where e.closed_at is null
      and exists (select from unnest(b.seqs) with ordinality u (seq, nr)
                  where u.seq >= v_lo and u.seq < v_hi
                    and not exists (select from forebay.settlement s
                                    where s.lease_id = b.lease_id and s.claim_no = b.claim_no
                                      and (s.offsets is null or u.nr::smallint = any (s.offsets))))
    limit 1;
    if found then
        return format('worker %s still has jobs of it', v_open.worker);
    end if;
    if pg_sequence_last_value('forebay.key_seq') is not null
       and exists (select from forebay._all_parked() p where p.seq >= v_lo and p.seq < v_hi) then
        return 'jobs of it wait for their ordering key';
    end if;
    return null;
end
$$;


-- Why a sealed segment cannot be emptied yet; null when it can, or when it is not sealed.
--
-- Reads the segment's rows, and reports only which queue, group or worker they belong to.
create function forebay.segment_held_by(segment_id bigint) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
begin
    if not exists (select from forebay.seal f where f.segment_id = segment_held_by.segment_id) then
        return null;
    end if;
    return forebay._segment_held_by(segment_held_by.segment_id);
end
$$;
