-- Lanes of limit keys of a queue (p_shelf) with new rows between two snapshots, from at most p_most pairs of a
-- transaction and a lane. It skips from one pair to the next, however many jobs each has.
create function forebay._arrivals_{segment}(
    p_shelf bigint, p_from pg_snapshot, p_to pg_snapshot, p_late xid8[], p_most integer, out pairs integer, out lanes bigint[])
language plpgsql stable
as $$
begin
    pairs := 0;
    if not exists (select from forebay.log_{segment} l
                   where l.lane >> 48 = p_shelf and l.lane & 1 = 1
                     and l.xid >= pg_snapshot_xmax(p_from) and l.xid < pg_snapshot_xmax(p_to))
       and p_late = '{}' then
        return;
    end if;
    with recursive step as (
        (select i.xid, i.lane from forebay.log_{segment} i
         where i.lane >> 48 = p_shelf and i.lane & 1 = 1
           and i.xid >= pg_snapshot_xmax(p_from) and i.xid < pg_snapshot_xmax(p_to)
         order by i.lane >> 48, i.xid, i.lane limit 1)
        union all
        select n.xid, n.lane from step s, lateral (
            select i.xid, i.lane from forebay.log_{segment} i
            where i.lane >> 48 = p_shelf and i.lane & 1 = 1
              and (i.xid, i.lane) > (s.xid, s.lane) and i.xid < pg_snapshot_xmax(p_to)
            order by i.lane >> 48, i.xid, i.lane limit 1) n
    ), late as (
        select f.xid, f.lane from unnest(p_late) x (xid), lateral (
            select i.xid, i.lane from forebay.log_{segment} i
            where i.lane >> 48 = p_shelf and i.lane & 1 = 1 and i.xid = x.xid
            order by i.lane >> 48, i.xid, i.lane limit 1) f
        union all
        select n.xid, n.lane from late s, lateral (
            select i.xid, i.lane from forebay.log_{segment} i
            where i.lane >> 48 = p_shelf and i.lane & 1 = 1 and i.xid = s.xid and i.lane > s.lane
            order by i.lane >> 48, i.xid, i.lane limit 1) n
    )
    select count(*), array_agg(distinct u.lane) filter (where pg_visible_in_snapshot(u.xid, p_to))
    into pairs, lanes
    from (select * from (select * from step union all select * from late) a limit p_most) u;
end
$$;
