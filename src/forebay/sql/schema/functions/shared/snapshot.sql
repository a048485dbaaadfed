-- The current snapshot without the caller's transaction: what a cursor that stops here has not passed.
--
-- The server's list of transactions in progress leaves the caller out. So where a later transaction has ended, the caller's own counts as
-- visible. A cursor with that snapshot would pass rows that the caller writes next, and nothing would read them again.
create function forebay._snapshot_of_others() returns pg_snapshot
language plpgsql stable
as $$
declare
    v_own  constant xid8 := pg_current_xact_id_if_assigned();
    v_snap constant pg_snapshot := pg_current_snapshot();
begin
    if (v_own < pg_snapshot_xmax(v_snap)) is not true then
        return v_snap;
    end if;
    return pg_snapshot_xmin(v_snap) || ':' || pg_snapshot_xmax(v_snap) || ':'
           || (select string_agg(i.xid::text, ',' order by i.xid) from (select pg_snapshot_xip(v_snap) as xid union select v_own) i);
end
$$;
