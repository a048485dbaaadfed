-- grant: worker

-- Keep leases alive. The first 1,000 running jobs are kept in the heartbeat's row, from which
-- forebay.job() and forebay.depth() know what runs. Takes no lock that another session holds.
--
-- Parameters:
--   p_lease_ids  all leases of this process
--   p_job_ids    its running jobs
--   p_duties     duties it would take
--   p_memory_kb  its resident memory
--
-- Columns:
--   open_leases     which of the leases are open
--   cancelled_jobs  running jobs with a cancellation request for their group
--   leaderless      which of the duties have no leader
--   lease_count     for a worker that runs nothing, how many leases are open in all, at most 1,000;
--                   null for others
--   server_time     the time of the server
--   concurrency     what forebay.set_concurrency() has set for the worker, null for none
--   muted_causes    the muted causes of death
--   queue_attempts  the maximum attempts of the queues that have one
--   settings        as forebay.followed_settings_v1(); null: none was set
--   stop_by         who requested the worker to stop, by forebay.stop_workers(); null: no operator
--
-- Transaction: any; meant to be autocommitted. Commits asynchronously.
-- pages: 40 + 5 a job
create function forebay.heartbeat_v1(p_lease_ids bigint[], p_job_ids bigint[] default '{}', p_duties bigint[] default '{}',
                                     p_memory_kb integer default null)
returns table (open_leases bigint[], cancelled_jobs bigint[], leaderless bigint[], lease_count integer, server_time timestamptz,
               concurrency integer, muted_causes text[], queue_attempts jsonb, settings jsonb, stop_by text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
declare
    v_duty bigint;
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into forebay.heartbeat (lease_id, heartbeat_at, backend_pid, running_jobs, memory_kb)
    select b.lease_id, forebay._now(), pg_backend_pid(), nullif(p_job_ids[1:1000], '{}'), p_memory_kb from unnest(p_lease_ids) b (lease_id);
    open_leases := array(select l.lease_id from forebay.lease l
                         where l.lease_id = any (p_lease_ids) and l.closed_at is null);
    cancelled_jobs := '{}';
    if cardinality(p_job_ids) > 0 and pg_sequence_last_value('forebay.tombstone_seq') is not null then
        cancelled_jobs := array(select distinct t.job_id from forebay.tombstone t
                                where t.job_id = any (p_job_ids) and t.reason = 'c' and (t.group_id is null or forebay._reads_for(p_lease_ids, t.group_id)));
    end if;
    leaderless := '{}';
    foreach v_duty in array p_duties loop
        if forebay._leader_of(v_duty) is null then
            leaderless := leaderless || v_duty;
        end if;
    end loop;
    if cardinality(p_job_ids) = 0 then
        lease_count := (select count(*) from (select from forebay.lease l where l.closed_at is null limit 1000) o);
    end if;
    select s.concurrency, s.stop_by into concurrency, stop_by from forebay.worker_setting s
    join forebay.lease l on l.worker = s.worker where l.lease_id = any (p_lease_ids) limit 1;
    server_time := clock_timestamp();
    muted_causes := (select array_agg(m.cause) from forebay.muted_cause m where m.until > server_time or m.until is null);
    if pg_sequence_last_value('forebay.queue_attempts_seq') is not null then
        queue_attempts := (select jsonb_object_agg(a.queue, a.max_attempts) from forebay.queue_attempts a);
    end if;
    settings := forebay._followed_settings();
    return next;
end
$$;


-- Does one of these leases hold jobs for a group? A cancellation for one group leaves the job to the others.
create function forebay._reads_for(p_lease_ids bigint[], p_group_id bigint) returns boolean
language sql stable
as $$
    select exists (
        select from unnest(p_lease_ids) u (lease_id)
        cross join lateral (select i.floor from forebay.batch i where i.lease_id = u.lease_id order by i.claim_no desc limit 1) f
        join forebay.batch b on b.lease_id = u.lease_id and b.claim_no >= coalesce(f.floor, 0)
        where b.group_id = p_group_id)
$$;
