-- Lanes of limit keys of a queue (p_shelf) with rows in ranges of transactions, from at most p_most pairs of a transaction and a
-- lane. It skips from one pair to the next, however many jobs each has.
create function forebay._arrivals_{segment}(
    p_shelf bigint, p_ranges forebay._xid_range[], p_most integer, out pairs integer, out lanes bigint[])
language plpgsql stable
as $$
begin
    with recursive step as (
        select f.xid, f.lane, r.high from unnest(p_ranges) r (low, high), lateral (
            select i.xid, i.lane from forebay.log_{segment} i
            where i.lane >> 48 = p_shelf and i.lane & 1 = 1 and i.xid >= r.low and i.xid < r.high
            order by i.lane >> 48, i.xid, i.lane limit 1) f
        union all
        select n.xid, n.lane, s.high from step s, lateral (
            select i.xid, i.lane from forebay.log_{segment} i
            where i.lane >> 48 = p_shelf and i.lane & 1 = 1 and (i.xid, i.lane) > (s.xid, s.lane) and i.xid < s.high
            order by i.lane >> 48, i.xid, i.lane limit 1) n
    )
    select count(*), array_agg(distinct u.lane) into pairs, lanes
    from (select s.lane from step s limit p_most) u;
end
$$;
