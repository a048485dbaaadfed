-- Follows the insert of a claim's batch.

if not found then
    raise exception using errcode = 'JQ010',
        message = format('lease %s is closed', p_lease_id),
        detail = jsonb_build_object('lease', p_lease_id),
        hint = 'Its jobs were given to other workers. Open a new lease.';
end if;
