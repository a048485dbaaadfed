-- grant: worker

-- Close a lease that its worker no longer needs. Jobs that it still holds, without knowing if the
-- answer to their claim was lost, are released without using an attempt; returns how many, or null
-- if the lease was already closed. `p_retired`: the worker continues with another lease, so
-- forebay.ended_workers() does not show it.
--
-- Errors: 55P03 after 2 s, if an open transaction holds a settlement of the lease.
-- Transaction: any; meant to be autocommitted.
-- Locks: the lease (UPDATE).
-- pages: 40 + 20 a job
create function forebay.close_lease_v1(p_lease_id bigint, p_retired boolean default false) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
set lock_timeout = '2s'
as $$
begin
    return forebay._revoke(p_lease_id, case when p_retired then 'retired' else 'closed' end, false);
end
$$;
