-- grant: worker

-- Record that a suspect is about to start: if its worker dies now, the suspect counts as the cause.
-- A repeated call changes nothing.
--
-- Errors: JQ010 the lease is closed.
-- Transaction: any; meant to be autocommitted.
-- Locks: the lease (KEY SHARE).
-- pages: 20
create function forebay.start_suspect_v1(p_lease_id bigint, p_claim_no bigint) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
begin
    perform from forebay.lease l where l.lease_id = p_lease_id and l.closed_at is null for key share;
    if not found then
        raise exception using
            errcode = 'JQ010',
            message = format('lease %s is closed', p_lease_id),
            detail = jsonb_build_object('lease', p_lease_id),
            hint = 'Its jobs were given to other workers; do not start this job.';
    end if;
    insert into forebay.suspect_start (lease_id, claim_no, started_at)
    values (p_lease_id, p_claim_no, forebay._now())
    on conflict do nothing;
end
$$;
