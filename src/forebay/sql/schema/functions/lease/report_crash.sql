-- grant: worker

-- Revoke the leases of a process that a signal ended, as the process that had started it saw; returns how
-- many. Its jobs return at once as suspects, and forebay.ended_workers() shows the signal.
--
-- Parameters:
--   p_host, p_pid  of the process, as it reported them with its lease
--   p_signal       number of the signal, 1 to 64
--
-- Errors: JQ001 a bad signal; 55P03 after 2 s, if an open transaction holds a settlement of a lease.
-- Transaction: any; meant to be autocommitted.
-- Locks: the leases (UPDATE).
-- pages: 40 + 20 a job
create function forebay.report_crash_v1(p_host text, p_pid integer, p_signal integer) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
set lock_timeout = '2s'
as $$
declare
    v_lease bigint;
    v_count integer := 0;
begin
    if (p_signal between 1 and 64) is not true then
        raise exception using errcode = 'JQ001', message = format('signal %s is not within 1 to 64', coalesce(p_signal::text, 'null'));
    end if;
    for v_lease in
        select l.lease_id from forebay.lease l
        where l.closed_at is null and l.details ->> 'host' = p_host and l.details ->> 'pid' = p_pid::text order by l.lease_id
    loop
        if forebay._revoke(v_lease, 'revoked', true, p_signal) is not null then
            v_count := v_count + 1;
        end if;
    end loop;
    return v_count;
end
$$;
