-- grant: worker, operator

-- Record how many jobs were enqueued for the drift that an audit found.
--
-- Locks: the audit's row.
create function forebay.record_repair(p_audit_id bigint, p_jobs bigint) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
    update forebay.mirror_audit a set repaired = a.repaired + p_jobs where a.audit_id = p_audit_id
$$;
