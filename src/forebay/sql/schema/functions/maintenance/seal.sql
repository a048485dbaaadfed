-- grant: worker

-- Seal the segments that the sequence has passed; returns how many.
--
-- Errors: JQ012, JQ030.
-- Transaction: alone.
-- Locks: the maintenance lock.
--
-- Inside: a row draws its xid before its number. So once last_value has passed the end of a
-- segment, every row of it has an xid below one drawn *afterwards*: that xid is recorded. (The xmin
-- of a snapshot taken then would not do: a writer may have drawn its xid without showing it yet.)
-- pages: 60
create function forebay.seal_v1() returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last   bigint;
    v_sealed integer;
begin
    perform forebay._require_alone('forebay.seal_v1()');
    perform forebay._require_same_cluster();
    if not forebay._try_lock('maintenance') then
        return 0;
    end if;
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    if not exists (
        select from forebay.segment s
        where s.hi <= v_last
          and s.segment_id > coalesce((select max(f.segment_id) from forebay.seal f), -1)) then
        return 0;
    end if;
    -- The insert draws the xid, in this later statement.
    insert into forebay.seal (segment_id, xid, sealed_at)
    select s.segment_id, pg_current_xact_id(), forebay._now()
    from forebay.segment s
    where s.hi <= v_last
      and s.segment_id > coalesce((select max(f.segment_id) from forebay.seal f), -1)
    order by s.segment_id;
    get diagnostics v_sealed = row_count;
    perform forebay._forget_polls();  -- Cursors may be far behind now.
    return v_sealed;
end
$$;
