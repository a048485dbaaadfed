-- grant: worker

-- Close a lease that its worker no longer needs. Jobs that it holds without knowing (the answer to their claim was lost)
-- are released unstarted. Returns their number; null when the lease was closed already.
-- pages: 40 + 20 a job
create function forebay.close_lease_v1(p_lease_id bigint) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
set lock_timeout = '2s'
as $$
begin
    return forebay._revoke(p_lease_id, 'closed', false);
end
$$;
