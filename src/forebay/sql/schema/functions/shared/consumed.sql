-- Numbers below this one belong to the archive of another cluster, which an adoption sealed without an xid: their jobs have
-- ended, or continue in newer rows. 0 in a log that was never adopted.
create function forebay._archived_below() returns bigint
language sql stable
as $$
    select coalesce(max(s.hi), 0) from forebay.seal f join forebay.segment s using (segment_id) where f.xid = '0'
$$;


-- Is a row of the log behind a cursor?
create function forebay._is_consumed(
    p_xid xid8, p_seq bigint, p_from pg_snapshot, p_to pg_snapshot, p_pos_lo bigint, p_pos_hi bigint, p_pos_xid xid8,
    p_pos_seq bigint)
returns boolean
language sql immutable
as $$
    select pg_visible_in_snapshot(p_xid, p_from)
        or (p_to is not null and pg_visible_in_snapshot(p_xid, p_to)
            and (p_seq < p_pos_lo or (p_seq < p_pos_hi and (p_xid, p_seq) <= (p_pos_xid, p_pos_seq))
                 or p_pos_xid = '0' and p_seq <= p_pos_seq))  -- Keyed lanes are read in the order of numbers.
$$;
