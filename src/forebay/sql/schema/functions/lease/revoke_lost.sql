-- grant: worker

-- Revoke at most one lost lease; its unsettled jobs come back as suspects. Returns it, or no row if
-- none is lost.
--
-- A lease is lost when there was no sign of life, heartbeat or claim, for its `lease_seconds`; or
-- for its `suspect_seconds` if the connection that sent the last heartbeat is gone and the lease
-- has jobs. The caller's session must also be that old: after a restart, a crash of one backend or
-- a failover every session is new, and live workers get their time to report. A lease that a
-- settlement's open transaction holds is skipped until that transaction ends.
--
-- Parameters:
--   p_observed_seconds  for how long the caller has seen the server's clock run evenly, since it
--                       may have been set: no longer silence counts; null relies on the clock
--   p_clock             the clock as the caller has just read it; nothing is revoked if it was set
--                       since
--
-- Errors: JQ012, JQ030, 55P03 if an open transaction holds a settlement of every lost lease.
-- Transaction: alone.
-- Locks: the lease (UPDATE).
--
-- Inside: where the schema's owner may not see when the session began, its age counts from its
-- first call of this function. A settlement's transaction that is idle is ended after five seconds;
-- a forgotten prepared transaction keeps only its lease from being revoked, and no other.
--
-- Invariant "silence is observed": the clock of the server shows how long a lease is silent only as
-- far as the caller has seen it run evenly; and signs of life from the future are from before it
-- was set back, and prove nothing.
-- pages: 40 + 12 an open lease
create function forebay.revoke_lost_v1(p_observed_seconds double precision default null, p_clock timestamptz default null)
returns table (lease_id bigint, worker text, jobs bigint, silent_seconds double precision)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
set lock_timeout = '500ms'
as $$
declare
    v_at      timestamptz;
    v_session double precision := forebay._observed_seconds(clock_timestamp());
    v_lost    record;
begin
    perform forebay._require_alone('forebay.revoke_lost_v1()');
    perform forebay._require_same_cluster();
    v_at := forebay._now();
    if (clock_timestamp() - p_clock between interval '-1 second' and interval '1 second') is false then
        return;
    end if;
    for v_lost in
        select l.* from forebay._silent_leases(v_at, p_observed_seconds) l order by l.heartbeat_at nulls first
    loop
        -- Only now, since looking up one session means reading all of them.
        if v_session is null then
            -- A session from the future began before the clock was set back: it is older than what the caller has observed.
            select coalesce(case when a.backend_start <= clock_timestamp()
                                 then extract(epoch from clock_timestamp() - a.backend_start) end, p_observed_seconds, 0)
            into v_session
            from pg_stat_get_activity(pg_backend_pid()) a;
        end if;
        continue when v_session <= v_lost.suspect_seconds
            or least(v_lost.silent, p_observed_seconds) <= v_lost.lease_seconds
               and exists (select from pg_stat_get_activity(coalesce(v_lost.backend_pid, 0)) a where a.pid is not null);
        begin
            jobs := forebay._revoke(v_lost.lease_id, 'revoked', true);
        exception when lock_not_available then
            continue;
        end;
        if jobs is not null then
            lease_id := v_lost.lease_id;
            worker := v_lost.worker;
            silent_seconds := v_lost.silent;
            return next;
            return;
        end if;
    end loop;
end
$$;


-- Seconds since this session first called revoke_lost_v1; null where the owner of the schema may see when the session began, and
-- when the clock was set back since.
--
-- PostgreSQL shows the start of a session to its own role and to pg_read_all_stats. Inside a function of the owner that is the
-- owner, not the caller. So the session itself keeps the time of its first call, in a parameter without effect. The value has the
-- process id, so that a default of the role or the database is not believed.
create function forebay._observed_seconds(p_at timestamptz) returns double precision
language plpgsql volatile
as $$
declare
    v_since   text;
    v_seconds double precision;
begin
    if pg_has_role(session_user, 'usage') or pg_has_role('pg_read_all_stats', 'usage') then
        return null;
    end if;
    v_since := current_setting('forebay.observes_since', true);
    if v_since is null or split_part(v_since, ' ', 1) <> pg_backend_pid()::text then
        perform set_config('forebay.observes_since', format('%s %s', pg_backend_pid(), extract(epoch from p_at)), false);
        return 0;
    end if;
    v_seconds := extract(epoch from p_at) - split_part(v_since, ' ', 2)::numeric;
    return case when v_seconds >= 0 then v_seconds end;
end
$$;


-- The open leases that are lost at a time, unless the connection of one that is only suspected still exists.
create function forebay._silent_leases(p_at timestamptz, p_observed_seconds double precision)
returns table (lease_id bigint, worker text, suspect_seconds double precision, lease_seconds double precision, backend_pid integer,
               heartbeat_at timestamptz, silent double precision)
language sql stable
as $$
    select l.lease_id, l.worker, l.suspect_seconds, l.lease_seconds, h.backend_pid, h.heartbeat_at, s.silent::double precision
    from forebay.lease l
    left join lateral (
        select b.heartbeat_at, b.backend_pid from forebay.heartbeat b
        where b.lease_id = l.lease_id and b.heartbeat_at <= p_at + interval '1 second'
        order by b.heartbeat_at desc limit 1) h on true
    left join lateral (
        select b.claimed_at, b.floor from forebay.batch b
        where b.lease_id = l.lease_id order by b.claim_no desc limit 1) c on true
    cross join lateral (
        select coalesce(extract(epoch from p_at - greatest(
                            h.heartbeat_at, case when c.claimed_at <= p_at + interval '1 second' then c.claimed_at end)),
                        p_observed_seconds) as silent) s
    where l.closed_at is null
      and (extract(epoch from p_at - h.heartbeat_at) > l.suspect_seconds) is not false
      and least(s.silent, p_observed_seconds) > l.suspect_seconds
      and (least(s.silent, p_observed_seconds) > l.lease_seconds
           or exists (select from forebay.batch b
                      where b.lease_id = l.lease_id and b.claim_no >= c.floor
                        and not exists (select from forebay.settlement t
                                        where t.lease_id = b.lease_id and t.claim_no = b.claim_no and t.offsets is null)))
$$;
