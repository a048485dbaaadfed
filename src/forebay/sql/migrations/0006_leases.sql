-- Leases: a worker process's right to its batches; heartbeats; revocation.


-- Identity of this database: the cluster and the database within it.
create function forebay._identity(out system_identifier bigint, out database_oid oid)
language sql stable
as $$
    select c.system_identifier, d.oid
    from pg_control_system() c, pg_database d where d.datname = current_database()
$$;

insert into forebay.cluster (system_identifier, database_oid)
select i.system_identifier, i.database_oid from forebay._identity() i;


-- That this schema is at home here is found out once for each start of the server: reading the server's control file takes longer
-- than most polls. What stands in the register is another number after a start, in a copy of the database, and for a restored table.
create sequence forebay.home_seq as bigint minvalue -9223372036854775808 cache 1;

create function forebay._home_token() returns bigint
language sql stable
as $$
    select hashtextextended(pg_relation_filepath('forebay.cluster') collate "C",
                            (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint)
$$;


create function forebay._is_home() returns boolean
language sql volatile
as $$ select coalesce(pg_sequence_last_value('forebay.home_seq') = forebay._home_token(), false) $$;


-- Raise when this schema was restored from another cluster and not yet adopted. Writes nothing, so that whoever must not have
-- written can ask.
--
-- Errors: JQ030.
create function forebay._require_home() returns void
language plpgsql volatile
as $$
declare
    v_noted record;
    v_here  record;
begin
    if forebay._is_home() then
        return;
    end if;
    select c.system_identifier, c.database_oid into v_noted from forebay.cluster c order by c.cluster_no desc limit 1;
    select i.* into v_here from forebay._identity() i;
    if v_noted.system_identifier is distinct from v_here.system_identifier
       or v_noted.database_oid is distinct from v_here.database_oid then
        raise exception using errcode = 'JQ030',
            message = format('this schema belongs to cluster %s, database %s; this is cluster %s, database %s',
                             v_noted.system_identifier, v_noted.database_oid, v_here.system_identifier, v_here.database_oid),
            detail = jsonb_build_object('recorded', format('%s/%s', v_noted.system_identifier, v_noted.database_oid),
                                        'actual', format('%s/%s', v_here.system_identifier, v_here.database_oid)),
            hint = 'It was restored from another cluster. Nothing runs until forebay adopt --resume or --discard decides.';
    end if;
end
$$;


-- Remember until the server starts again that this schema is at home. Only after forebay._require_home(), and where a
-- transaction may get its id.
create function forebay._note_home() returns void
language sql volatile
as $$ select setval('forebay.home_seq', forebay._home_token()) $$;


-- Open a lease for a worker process; returns its id.
--
-- Parameters:
--   p_worker           a name for humans
--   p_lease_seconds    the lease is lost after so long without a heartbeat
--   p_suspect_seconds  or after so long, when its heartbeat connection is gone too
--   p_version          of the schema that the worker's code was made for; null: it does not say
-- Errors: JQ001 a bad duration, JQ020 code of that version is not served any more, JQ030 foreign cluster.
create function forebay.open_lease_v1(
    p_worker text, p_lease_seconds double precision default 30, p_suspect_seconds double precision default 5,
    p_version integer default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
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
    if not forebay._is_home() then
        perform forebay._require_home();
        perform forebay._note_home();
    end if;
    insert into forebay.lease (worker, version, lease_seconds, suspect_seconds, opened_at)
    values (left(p_worker, 200), p_version, p_lease_seconds, p_suspect_seconds, forebay._now())
    returning lease_id into v_lease_id;
    -- A later statement than the insert, which waits for a migration that takes away what older code calls.
    if p_version < forebay._served_from() then
        raise exception using errcode = 'JQ020',
            message = format('schema version %s serves code made for version %s or later; this worker was made for %s',
                             forebay.schema_version(), forebay._served_from(), p_version),
            detail = jsonb_build_object('found', forebay.schema_version(), 'needed', p_version),
            hint = 'Install a newer version of the library; a schema is never downgraded.';
    end if;
    insert into forebay.heartbeat (lease_id, beat_at, backend_pid)
    values (v_lease_id, forebay._now(), pg_backend_pid());
    return v_lease_id;
end
$$;


-- The register of a post; null when there is none.
create function forebay._register(p_post bigint) returns regclass
language sql stable
as $$ select to_regclass('forebay."post_' || p_post::text || '"') $$;


-- Who holds a post now, a number below 2^20; null when nobody does, or it has no register.
--
-- A time too far ahead was written before the clock was set back.
create function forebay._holder(p_post bigint) returns integer
language plpgsql volatile
as $$
declare
    v_value constant bigint := pg_sequence_last_value(forebay._register(p_post));
begin
    if (v_value >> 20) - (extract(epoch from clock_timestamp()) * 1000)::bigint between 1 and 600000 then
        return (v_value & 1048575)::integer;
    end if;
    return null;
end
$$;


-- Take vacant posts and keep those that the caller holds, for some seconds; returns which it holds now.
--
-- A register is read and set outside transactions and locks nothing. Of two who take a post at the same moment the later
-- one is written down; the other learns it at its next call. What a post asks for may be done by several. A post without
-- a register is everybody's.
--
-- Parameters:
--   p_holder   who asks, 0 to 1048575, drawn at random by each worker
--   p_posts    0 is the upkeep, any other the group of that number
--   p_seconds  how long they are kept unless renewed, at most 600
-- Errors: JQ001 a bad holder or time.
create function forebay.hold_posts_v1(p_holder integer, p_posts bigint[], p_seconds double precision) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_post     bigint;
    v_register regclass;
    v_held     bigint[] := '{}';
begin
    if (p_holder between 0 and 1048575 and p_seconds > 0 and p_seconds <= 600) is not true then
        raise exception using errcode = 'JQ001',
            message = format('holder %s for %s s: the first must be within 0 to 1048575, the second within 0 to 600',
                             coalesce(p_holder::text, 'null'), coalesce(p_seconds::text, 'null'));
    end if;
    perform set_config('synchronous_commit', 'off', true);
    foreach v_post in array p_posts loop
        continue when forebay._holder(v_post) <> p_holder;
        v_register := forebay._register(v_post);
        if v_register is not null then
            perform setval(v_register,
                ((extract(epoch from clock_timestamp()) + p_seconds) * 1000)::bigint << 20 | p_holder);
        end if;
        v_held := v_held || v_post;
    end loop;
    return v_held;
end
$$;


-- Leave posts that the caller holds, and tell everybody who listens: NOTIFY forebay_bell with the post's number.
--
-- It is no producer's transaction, so that it may notify where enqueues may not.
create function forebay.leave_posts_v1(p_holder integer, p_posts bigint[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_post bigint;
begin
    perform set_config('synchronous_commit', 'off', true);
    foreach v_post in array p_posts loop
        if forebay._holder(v_post) = p_holder then
            perform setval(forebay._register(v_post), 1);
            if pg_notification_queue_usage() < 0.25 then
                perform pg_notify('forebay_bell', v_post::text);
            end if;
        end if;
    end loop;
end
$$;


-- Keep leases alive; which of them are still open, which of the running jobs were asked to cancel, which posts nobody
-- holds, and how large the crowd is: how many leases are open in all, at most 1,000, or null for who runs jobs.
--
-- Touches no lease row and takes no lock that anything else holds.
--
-- Parameters: p_lease_ids, all leases of this process; p_job_ids, jobs it is running; p_posts, posts it would take.
create function forebay.beat_v1(p_lease_ids bigint[], p_job_ids bigint[] default '{}', p_posts bigint[] default '{}')
returns table (open_leases bigint[], cancelled_jobs bigint[], vacant_posts bigint[], crowd integer)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_post bigint;
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into forebay.heartbeat (lease_id, beat_at, backend_pid)
    select b.lease_id, forebay._now(), pg_backend_pid() from unnest(p_lease_ids) b (lease_id);
    open_leases := array(select l.lease_id from forebay.lease l
                         where l.lease_id = any (p_lease_ids) and l.closed_at is null);
    cancelled_jobs := '{}';
    if cardinality(p_job_ids) > 0 and pg_sequence_last_value('forebay.tombstone_seq') is not null then
        cancelled_jobs := array(select distinct t.job_id from forebay.tombstone t
                                where t.job_id = any (p_job_ids) and t.reason = 'c');
    end if;
    vacant_posts := '{}';
    foreach v_post in array p_posts loop
        if forebay._holder(v_post) is null then
            vacant_posts := vacant_posts || v_post;
        end if;
    end loop;
    if cardinality(p_job_ids) = 0 then
        crowd := (select count(*) from (select from forebay.lease l where l.closed_at is null limit 1000) o);
    end if;
    return next;
end
$$;


-- Take a lease away: close it and send its unsettled jobs to the group's private lanes.
--
-- Invariants: "single holder", "nothing lost". The lease row is locked FOR UPDATE, which waits for
-- every claim and settlement that holds it FOR KEY SHARE; what is settled is read in later statements.
-- A death is put down to a job only if it was a suspect, claimed alone, and its start is recorded.
--
-- Parameters: p_suspects, whether the jobs come back as suspects; false when the worker itself says
--   that it never started them.
-- Returns: how many jobs were sent back; null when the lease was closed already.
-- Errors: 55P03 when a settlement is held open by its transaction; try again.
-- Locks: the lease (FOR UPDATE).
create function forebay._revoke(p_lease_id bigint, p_closed_as text, p_suspects boolean) returns bigint
language plpgsql volatile
as $$
declare
    v_worker  text;
    v_floor   bigint;
    v_batch   record;
    v_lane    record;
    v_row     forebay.log;
    v_attempt integer;
    v_target  bigint;
    v_open    integer;
    v_started boolean;
    v_sent    bigint := 0;
    v_held    text[];  -- keys whose next job is on its way
    v_dead    text[];
begin
    select l.worker into v_worker from forebay.lease l
    where l.lease_id = p_lease_id and l.closed_at is null for update;
    if not found then
        return null;
    end if;
    update forebay.lease l set closed_at = forebay._now(), closed_as = p_closed_as where l.lease_id = p_lease_id;

    select b.floor into v_floor from forebay.batch b
    where b.lease_id = p_lease_id order by b.claim_no desc limit 1;

    for v_batch in
        select b.claim_no, b.group_id, b.lane, b.seqs, b.xids, b.lanes, b.keys, s.whole, s.offsets
        from forebay.batch b
        cross join lateral (
            select coalesce(bool_or(i.offsets is null), false) as whole,
                   array(select o from forebay.settlement j, unnest(j.offsets) o
                         where j.lease_id = p_lease_id and j.claim_no = b.claim_no) as offsets
            from forebay.settlement i
            where i.lease_id = p_lease_id and i.claim_no = b.claim_no) s
        where b.lease_id = p_lease_id and b.claim_no >= coalesce(v_floor, 0)
        order by b.claim_no
    loop
        continue when v_batch.whole;
        select l.queue, l.priority, l.audience, l.limit_key into v_lane from forebay.lane l where l.lane = v_batch.lane limit 1;
        v_held := null;
        v_dead := '{}';
        if v_batch.keys is not null then
            v_held := forebay._keys_in_transit(p_lease_id, v_batch.claim_no, v_batch.keys)
                      || forebay._keys_before(v_batch.group_id, p_lease_id, v_batch.claim_no, v_batch.keys);
        end if;
        v_started := v_lane.audience < 0 and exists (
            select from forebay.suspect_start s where s.lease_id = p_lease_id and s.claim_no = v_batch.claim_no);
        for v_open in
            select i from generate_subscripts(v_batch.seqs, 1) i
            where i <> all (v_batch.offsets) order by i
        loop
            v_sent := v_sent + 1;
            -- Of a key's jobs only the first can have been started.
            if v_batch.keys[v_open] = any (v_held) then
                insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes)
                values (p_lease_id, v_batch.claim_no, -v_open, forebay._now(), array[v_open::smallint], array['k'::"char"]);
                continue;
            end if;
            v_row := forebay._row(coalesce(v_batch.lanes[v_open], v_batch.lane),
                                  coalesce(v_batch.xids[v_open], v_batch.xids[1]), v_batch.seqs[v_open]);
            v_attempt := coalesce(v_row.attempt, 0);
            if p_suspects and v_started then
                v_attempt := v_attempt + 1;
                perform forebay._note_failure(v_row, v_batch.group_id, v_attempt, 'worker lost',
                    jsonb_build_object('type', 'WorkerLost', 'message', 'the worker died while it ran this job alone'), v_worker);
                if v_attempt >= coalesce(v_row.max_attempts, 20) then
                    perform forebay._bury(v_batch.group_id, v_lane.queue, v_lane.priority, v_row, 'worker lost', v_attempt);
                    insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes)
                    values (p_lease_id, v_batch.claim_no, -v_open, forebay._now(), array[v_open::smallint], array['x'::"char"]);
                    if v_row.ordering_key is not null then
                        v_dead := v_dead || v_row.ordering_key;
                    end if;
                    continue;
                end if;
            end if;
            if v_row.ordering_key is not null then
                v_held := v_held || v_row.ordering_key;
            end if;
            v_target := forebay._note_private_lane(
                v_lane.queue, v_lane.priority,
                case when p_suspects or v_lane.audience < 0 then -v_batch.group_id else v_batch.group_id end,
                v_row.ordering_key, v_lane.limit_key);
            perform forebay._go_on(v_row, v_target, v_attempt, coalesce(v_row.pauses, 0),
                case when p_suspects and v_started
                     then forebay._now() + make_interval(secs => least(3600, 5 * 2 ^ least(v_attempt - 1, 20))) end);
            insert into forebay.settlement (lease_id, claim_no, flush_no, settled_at, offsets, outcomes)
            values (p_lease_id, v_batch.claim_no, -v_open, forebay._now(), array[v_open::smallint],
                    array[case when p_suspects then 'l' else 'h' end::"char"]);
        end loop;
        if v_dead <> '{}' then
            perform forebay._announce_keys(
                v_lane.queue, v_lane.priority, v_batch.group_id, v_dead);
        end if;
    end loop;
    return v_sent;
end
$$;


-- Close a lease whose worker is done with it; jobs that it holds without knowing (the answer to their claim was lost)
-- go back unstarted. Returns how many; null when it was closed already.
create function forebay.close_lease_v1(p_lease_id bigint) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set lock_timeout = '2s'
as $$
begin
    return forebay._revoke(p_lease_id, 'closed', false);
end
$$;


-- Revoke at most one lease that is lost; returns it, or no row.
--
-- Lost: no sign of life, heartbeat or claim, for lease_seconds; or none for suspect_seconds while the connection that
-- sent the last heartbeat is gone and the lease has jobs: without any there is no hurry. The caller's own session must
-- be that old as well: after a restart, a crash of one backend or a failover every session is new, and the living get
-- their time to report. A lease that a settlement's open transaction holds is passed over until that has ended: idle, it
-- ends by itself after five seconds; a forgotten prepared transaction keeps its own lease from being revoked and nobody
-- else's.
--
-- Errors: JQ012 not called alone, JQ030 foreign cluster.
create function forebay.revoke_lost_v1() returns table (lease_id bigint, worker text, jobs bigint, silent_seconds double precision)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set lock_timeout = '500ms'
as $$
declare
    v_at      constant timestamptz := clock_timestamp();
    v_session double precision;
    v_lost    record;
begin
    perform forebay._require_alone('forebay.revoke_lost_v1()');
    perform forebay._require_home();
    for v_lost in
        select l.lease_id, l.worker, l.suspect_seconds, l.lease_seconds, h.backend_pid, s.silent::double precision
        from forebay.lease l
        cross join lateral (
            select b.beat_at, b.backend_pid from forebay.heartbeat b
            where b.lease_id = l.lease_id order by b.beat_at desc limit 1) h
        left join lateral (
            select b.claimed_at, b.floor from forebay.batch b
            where b.lease_id = l.lease_id order by b.claim_no desc limit 1) c on true
        cross join lateral (select extract(epoch from v_at - greatest(h.beat_at, c.claimed_at)) as silent) s
        where l.closed_at is null
          and extract(epoch from v_at - h.beat_at) > l.suspect_seconds
          and s.silent > l.suspect_seconds
          and (s.silent > l.lease_seconds
               or exists (select from forebay.batch b
                          where b.lease_id = l.lease_id and b.claim_no >= c.floor
                            and not exists (select from forebay.settlement t
                                            where t.lease_id = b.lease_id and t.claim_no = b.claim_no and t.offsets is null)))
        order by h.beat_at
    loop
        -- Only now, since a look at one session is a look at all of them.
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


-- Which of a worker's batches the database does not know: an asynchronously committed claim that a crash of the
-- server took back. Their jobs are claimed anew; the worker stops its handlers of them.
create function forebay.missing_batches_v1(p_lease_id bigint, p_claim_nos bigint[]) returns bigint[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
    select array(select c.claim_no from unnest(p_claim_nos) c (claim_no)
                 where not exists (select from forebay.batch b
                                   where b.lease_id = p_lease_id and b.claim_no = c.claim_no))
$$;
