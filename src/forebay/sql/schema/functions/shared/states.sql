-- The state of a deferred job, by its row: retrying after a failed attempt, else scheduled. A failed attempt sets its pauses back
-- to null, each snooze or postponement after it counts one.
create function forebay._state_of_deferred(p_attempt integer, p_pauses integer) returns text
language sql immutable
as $$ select case when p_attempt > 0 and p_pauses is null then 'retrying' else 'scheduled' end $$;


-- The jobs that run in the process of a lease, by its last heartbeat; null when that is older than p_since, or said none.
create function forebay._running_jobs(p_lease_id bigint, p_since timestamptz) returns bigint[]
language sql stable
as $$
    select h.running_jobs
    from (select i.heartbeat_at, i.running_jobs from forebay.heartbeat i where i.lease_id = p_lease_id order by i.heartbeat_at desc limit 1) h
    where h.heartbeat_at >= p_since
$$;
