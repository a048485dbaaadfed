-- grant: worker

-- Revoke at most one lease that is lost; returns it, or no row.
--
-- A lease is lost when there was no sign of life, heartbeat or claim, for lease_seconds; or for suspect_seconds if the connection
-- that sent the last heartbeat is gone and the lease has jobs (without jobs it can wait). The caller's session must also
-- be that old: after a restart, a crash of one backend or a failover every session is new, and live workers get
-- their time to report. A lease that a settlement's open transaction holds is skipped until that transaction ends. If idle,
-- it is ended after five seconds; a forgotten prepared transaction keeps only its lease from being revoked, and no other.
--
-- Errors: JQ012 not called alone, JQ030 foreign cluster.
-- pages: 40 + 12 an open lease
create function forebay.revoke_lost_v1() returns table (lease_id bigint, worker text, jobs bigint, silent_seconds double precision)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
set lock_timeout = '500ms'
as $$
declare
    v_at      constant timestamptz := clock_timestamp();
    v_session double precision;
    v_lost    record;
begin
    perform forebay._require_alone('forebay.revoke_lost_v1()');
    perform forebay._require_same_cluster();
    for v_lost in
        select l.lease_id, l.worker, l.suspect_seconds, l.lease_seconds, h.backend_pid, s.silent::double precision
        from forebay.lease l
        cross join lateral (
            select b.heartbeat_at, b.backend_pid from forebay.heartbeat b
            where b.lease_id = l.lease_id order by b.heartbeat_at desc limit 1) h
        left join lateral (
            select b.claimed_at, b.floor from forebay.batch b
            where b.lease_id = l.lease_id order by b.claim_no desc limit 1) c on true
        cross join lateral (select extract(epoch from v_at - greatest(h.heartbeat_at, c.claimed_at)) as silent) s
        where l.closed_at is null
          and extract(epoch from v_at - h.heartbeat_at) > l.suspect_seconds
          and s.silent > l.suspect_seconds
          and (s.silent > l.lease_seconds
               or exists (select from forebay.batch b
                          where b.lease_id = l.lease_id and b.claim_no >= c.floor
                            and not exists (select from forebay.settlement t
                                            where t.lease_id = b.lease_id and t.claim_no = b.claim_no and t.offsets is null)))
        order by h.heartbeat_at
    loop
        -- Only now, since looking up one session means reading all of them.
        if v_session is null then
            select extract(epoch from v_at - a.backend_start) into v_session
            from pg_stat_get_activity(pg_backend_pid()) a;
        end if;
        continue when v_session <= v_lost.suspect_seconds
            or v_lost.silent <= v_lost.lease_seconds
               and exists (select from pg_stat_get_activity(v_lost.backend_pid) a where a.pid is not null);
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
