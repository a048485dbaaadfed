-- Create or replace the functions of one segment. A migration that changes one of them calls this for each segment.
-- Their texts are the files of functions/claim/segment.
--
-- Locks: the caller holds the maintenance key.
create function forebay._make_segment_functions(p_segment_id bigint, p_hi bigint) returns void
language plpgsql volatile
as $$
declare
    v_sealed_before constant text :=
        case when exists (select from forebay.segment s where s.segment_id = p_segment_id - 1)
             then format('exists (select from forebay.seal f where f.segment_id = %s and f.xid <= pg_snapshot_xmax(s.stop))', p_segment_id - 1)
             else 'true' end;
begin
    -- build: segment functions
end
$$;
