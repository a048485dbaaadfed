-- Has a lane rows that its snapshot does not show? Answered from the newest segment and the one before, for all lanes at once.
create function forebay._moved_{segment}(p_places forebay._place[], p_moved boolean[]) returns boolean[]
language plpgsql stable
as $$
begin
    return array(
        select case
            when p.moved then true
            when exists (select from forebay.log_{segment} l where l.lane = p.lane and l.xid >= pg_snapshot_xmax(p.snap)) then true
            when pg_snapshot_xmin(p.snap) = pg_snapshot_xmax(p.snap) then false
            else exists (
                select from pg_snapshot_xip(p.snap) as late (xid)
                where exists (select from forebay.log_{segment} l where l.lane = p.lane and l.xid = late.xid)) end
        from rows from (unnest(p_places), unnest(p_moved)) with ordinality
             as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved, nr)
        order by p.nr);
end
$$;
