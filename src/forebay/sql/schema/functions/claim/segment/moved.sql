-- Has a lane rows that its snapshot does not show? Answered from the newest segment and the one before, for all lanes at once.
-- p_ended are the ranges of transactions that have ended, see forebay._xid_ranges(). p_below: the segment is sealed and has only rows
-- with a lower xid; null: not sealed, or not known. Most cursors have passed a sealed segment, and it is not read for these.
create function forebay._moved_{segment}(
    p_places forebay._place[], p_moved boolean[], p_now pg_snapshot, p_ended forebay._xid_range[], p_below xid8 default null)
returns boolean[]
language plpgsql stable
as $$
begin
    return array(
        select case
            when p.moved then true
            when (pg_snapshot_xmax(p.snap) < p_below) is not false and exists (
                select from (select unnest(p_ended) as xids) e, lateral (
                    select from forebay.log_{segment} l
                    where l.lane = p.lane and l.xid >= greatest((e.xids).low, pg_snapshot_xmax(p.snap)) and l.xid < (e.xids).high limit 1) f
                where (e.xids).high > pg_snapshot_xmax(p.snap)) then true
            when pg_snapshot_xmin(p.snap) = pg_snapshot_xmax(p.snap) then false
            else exists (
                select from pg_snapshot_xip(p.snap) late (xid), lateral (
                    select from forebay.log_{segment} l where l.lane = p.lane and l.xid = late.xid limit 1) f
                where pg_visible_in_snapshot(late.xid, p_now) and pg_xact_status(late.xid) is distinct from 'aborted') end
        from rows from (unnest(p_places), unnest(p_moved)) with ordinality
             as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved, nr)
        order by p.nr);
end
$$;
