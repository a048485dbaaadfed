-- Leases: a worker process's right to its batches, with heartbeats and revocation.
-- grant: worker

-- Open a lease for a worker process; returns its id.
--
-- Parameters:
--   p_worker           a name for people
--   p_lease_seconds    the lease is lost after this time without a heartbeat
--   p_suspect_seconds  or after this time, if the connection of its last heartbeat is gone too
--   p_version          the schema version that the worker's code was made for: as long as the
--                      worker passes it, no migration removes what such code calls while the lease
--                      is open; null: not reported
--   p_details          what forebay.workers() shows: an object with `host`, `pid`, `group`,
--                      `queues`, `app`, `app_version`, `version`, `concurrency`, `processes` and
--                      `uptime_seconds`, at most 20,000 bytes
--
-- Errors: JQ001 a bad duration, no name, or bad details, JQ020 the schema no longer serves code of
--   that version, JQ030 foreign cluster.
-- Transaction: any; meant to be autocommitted.
-- See: docs/design/upgrades.md
-- pages: 40
create function forebay.open_lease_v1(
    p_worker text, p_lease_seconds double precision default 30, p_suspect_seconds double precision default 5,
    p_version integer default null, p_details jsonb default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    v_lease_id bigint;
begin
    if p_worker is null or not (p_lease_seconds > 0 and p_lease_seconds <= 86400)
       or not (p_suspect_seconds > 0 and p_suspect_seconds <= p_lease_seconds) then
        raise exception using errcode = 'JQ001',
            message = format('lease of %s s with suspicion after %s s: both must be positive, at most a day, the second at most the first',
                             p_lease_seconds, p_suspect_seconds);
    end if;
    if p_details is not null and (jsonb_typeof(p_details) <> 'object' or octet_length(p_details::text) > 20000) then
        raise exception using errcode = 'JQ001', message = 'details of a worker must be an object of at most 20000 bytes';
    elsif exists (
        select from jsonb_each(p_details) d
        where d.value <> 'null' and not case
            when d.key in ('pid', 'concurrency', 'processes', 'uptime_seconds') then jsonb_typeof(d.value) = 'number' and d.value between '0' and '2147483647'
            when d.key = 'queues' then jsonb_typeof(d.value) = 'array' and not d.value @? 'strict $[*] ? (@.type() != "string")'
            else true end) then
        -- Else the screens that read them would end with an error, for all workers.
        raise exception using errcode = 'JQ001',
            message = 'details of a worker: pid, concurrency, processes and uptime_seconds must be numbers from 0 to 2147483647, and queues texts';
    end if;
    if not forebay._is_same_cluster() then
        perform forebay._require_same_cluster();
        perform forebay._record_same_cluster();
    end if;
    insert into forebay.lease (lease_id, worker, version, lease_seconds, suspect_seconds, opened_at, details)
    values (forebay._random_name(), left(p_worker, 200), p_version, p_lease_seconds, p_suspect_seconds, forebay._now(),
            p_details || jsonb_build_object('started_at', forebay._now() - make_interval(secs => (p_details -> 'uptime_seconds')::double precision)))
    returning lease_id into v_lease_id;
    -- A later statement than the insert, which waits for a migration that removes what older code calls.
    if p_version < forebay._served_from() then
        raise exception using errcode = 'JQ020',
            message = format('schema version %s serves code made for version %s or later; this worker was made for %s',
                             forebay.schema_version(), forebay._served_from(), p_version),
            detail = jsonb_build_object('found', forebay.schema_version(), 'needed', p_version),
            hint = 'Install a newer version of the library; a schema is never downgraded.';
    end if;
    insert into forebay.heartbeat (lease_id, heartbeat_at, backend_pid)
    values (v_lease_id, forebay._now(), pg_backend_pid());
    return v_lease_id;
end
$$;


-- The version of the oldest code that this schema serves: code made for this version or a later one. A migration named post_
-- removes what code of earlier versions calls.
create function forebay._served_from() returns integer
language sql stable
as $$ select coalesce(max(m.version), 0) from forebay.schema_migration m where starts_with(m.name, 'post_') $$;
