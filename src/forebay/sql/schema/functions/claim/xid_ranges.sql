-- The ids of the transactions that p_to shows and p_from does not, as ranges in ascending order. Rows are read by these ranges.
--
-- A scan of a longer range would visit the rows of each transaction that is in progress, and return none of them. Invariant "flat
-- cost": no claim and no poll reads the rows of an open transaction, however many it has written. Transactions that were in
-- progress at p_from and were rolled back since are left out too: their rows stay in the index until a vacuum.
create function forebay._xid_ranges(p_from pg_snapshot, p_to pg_snapshot) returns forebay._xid_range[]
language plpgsql stable
as $$
declare
    v_ranges forebay._xid_range[] := '{}';
    v_low    xid8 := pg_snapshot_xmax(p_from);
    v_xid    xid8;
begin
    if pg_snapshot_xmin(p_from) <> pg_snapshot_xmax(p_from) then
        v_ranges := array(
            select row(x, (x::text::numeric + 1)::text::xid8)::forebay._xid_range from pg_snapshot_xip(p_from) x
            where pg_visible_in_snapshot(x, p_to) and pg_xact_status(x) is distinct from 'aborted'
            order by x);
    end if;
    if pg_snapshot_xmin(p_to) <> pg_snapshot_xmax(p_to) then
        -- Its text has them in order. A query would cost more.
        foreach v_xid in array string_to_array(split_part(p_to::text, ':', 3), ',')::xid8[] loop
            continue when v_xid < v_low;
            if v_low < v_xid then
                v_ranges := v_ranges || row(v_low, v_xid)::forebay._xid_range;
            end if;
            v_low := (v_xid::text::numeric + 1)::text::xid8;
        end loop;
    end if;
    if v_low < pg_snapshot_xmax(p_to) then
        v_ranges := v_ranges || row(v_low, pg_snapshot_xmax(p_to))::forebay._xid_range;
    end if;
    return v_ranges;
end
$$;


-- The id of the caller's transaction, if it has one that its snapshot does not cover: a count includes the caller's own rows.
create function forebay._own_xid_range() returns forebay._xid_range[]
language sql stable
as $$
    select case when x.own >= pg_snapshot_xmax(pg_current_snapshot())
                then array[row(x.own, (x.own::text::numeric + 1)::text::xid8)::forebay._xid_range] else '{}' end
    from pg_current_xact_id_if_assigned() x (own)
$$;
