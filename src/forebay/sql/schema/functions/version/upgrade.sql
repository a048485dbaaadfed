-- Raise while a worker of an older version lives. A migration calls it that removes what such workers call.
--
-- Invariant "deployed code keeps working" (docs/design/upgrades.md). Until the caller's transaction ends no lease is opened or
-- closed: a worker that starts meanwhile waits, and forebay.open_lease_v1() then refuses it. Claims and settlements continue.
--
-- Parameters: p_version, of the migration.
-- Errors: JQ020, with the workers; 55P03 when the lock is not granted within lock_timeout.
-- Locks: SHARE on the leases.
create function forebay._require_gone(p_version integer) returns void
language plpgsql volatile
as $$
declare
    v_count   bigint;
    v_workers text;
begin
    lock table forebay.lease in share mode;
    select count(*), string_agg(o.line, E'\n' order by o.nr) filter (where o.nr <= 20) into v_count, v_workers
    from (select row_number() over (order by l.opened_at) as nr,
                 format('%s, made for version %s', l.worker, coalesce(l.version::text, 'unknown')) as line
          from forebay.lease l
          left join lateral (select b.heartbeat_at from forebay.heartbeat b
                             where b.lease_id = l.lease_id order by b.heartbeat_at desc limit 1) h on true
          left join lateral (select b.claimed_at from forebay.batch b
                             where b.lease_id = l.lease_id order by b.claim_no desc limit 1) c on true
          where l.closed_at is null and (l.version < p_version) is not false and l.details ->> 'interface' is distinct from 'sql'
            and greatest(l.opened_at, h.heartbeat_at, c.claimed_at) > forebay._now() - make_interval(secs => l.lease_seconds)) o;
    if v_count > 0 then
        raise exception using errcode = 'JQ020',
            message = format('%s of an older version still %s: migration %s removes what they call',
                             case v_count when 1 then '1 worker' else v_count || ' workers' end,
                             case v_count when 1 then 'runs' else 'run' end, p_version),
            detail = v_workers,
            hint = 'Run forebay migrate again when they have ended, or use --wait.';
    end if;
end
$$;


-- Move a function out of the way of a new one with more parameters, for a pre migration: calls that have begun continue
-- with the old one, later ones find the new one. A post migration drops it there.
--
-- If it were dropped at once, running statements would miss it; under another name its body would not know its
-- own parameters; beside the new one, calls would be ambiguous.
create function forebay._set_aside(p_function regprocedure) returns void
language plpgsql volatile
as $$
begin
    create schema if not exists forebay_set_aside;
    revoke all on schema forebay_set_aside from public;
    execute format('alter function %s set schema forebay_set_aside', p_function);
end
$$;
