-- Roles and grants. Nothing for PUBLIC; producers call functions only.

do $$
declare
    v_role text;
begin
    foreach v_role in array array['forebay_producer', 'forebay_worker', 'forebay_operator', 'forebay_reader'] loop
        if not exists (select from pg_roles where rolname = v_role) then
            begin
                execute format('create role %I nologin', v_role);
            exception
                when insufficient_privilege then
                    raise notice 'role % was not created: no privilege to do so; forebay doctor will say so', v_role;
                when duplicate_object or unique_violation then
                    null;  -- Another database of this cluster made it meanwhile.
            end;
        end if;
    end loop;
end
$$;

-- Grant what each role needs, to those roles that exist. Run again after a role was made by hand.
create function forebay._grant() returns void
language plpgsql volatile
as $$
declare
    v_role  text;
    v_calls text[];
    v_call  regprocedure;
begin
    revoke all on schema forebay from public;
    revoke all on all tables in schema forebay from public;
    revoke all on all sequences in schema forebay from public;
    revoke all on all functions in schema forebay from public;
    foreach v_role in array array['forebay_producer', 'forebay_worker', 'forebay_operator', 'forebay_reader'] loop
        continue when not exists (select from pg_roles where rolname = v_role);
        execute format('grant usage on schema forebay to %I', v_role);
        v_calls := case v_role
            when 'forebay_producer' then array['enqueue', 'enqueue_many', 'enqueue_unique', 'cancel', 'note_direct']
            when 'forebay_worker' then array['enqueue', 'enqueue_many', 'enqueue_unique', 'cancel', 'job', 'open_group', 'ready_v1', 'claim_v1',
                'settle_v1', 'start_suspect_v1', 'missing_batches_v1', 'open_lease_v1', 'close_lease_v1', 'beat_v1', 'hold_posts_v1', 'leave_posts_v1', 'note_progress_v1', 'result', 'revoke_lost_v1', 'promote_v1',
                'extend_v1', 'seal_v1', 'sweep_v1', 'retain_v1', 'trim_v1', 'summarize_v1', 'count_v1', 'schema_version',
                'note_direct', 'sample_sync', 'unfinished', 'sync_status', 'sync_audits', 'note_audit', 'note_repair']
            when 'forebay_operator' then array['job', 'jobs', 'job_history', 'result', 'cancel', 'depth', 'open_group', 'pause_queue', 'resume_queue', 'spread_queue', 'limit_queue', 'pace_queue', 'pace', 'redrive',
                'redrive_matching', 'purge_dead', 'note_act', 'note_outcome', 'schema_version', 'segment_held_by',
                'sample_sync', 'unfinished', 'sync_status', 'sync_audits', 'note_audit', 'note_repair']
            else array['job', 'jobs', 'job_history', 'result', 'depth', 'pace', 'schema_version', 'segment_held_by', 'unfinished', 'sync_status', 'sync_audits'] end;
        for v_call in
            select p.oid::regprocedure from pg_proc p
            where p.pronamespace = 'forebay'::regnamespace
              and (p.proname = any (v_calls) or v_role in ('forebay_producer', 'forebay_worker') and p.proname ~ '^backfill')
        loop
            execute format('grant execute on function %s to %I', v_call, v_role);
        end loop;
        if v_role in ('forebay_operator', 'forebay_reader') then
            execute format('grant select on all tables in schema forebay to %I', v_role);
            execute format('grant select on all sequences in schema forebay to %I', v_role);
        end if;
    end loop;
end
$$;

select forebay._grant();

-- Room to write from the first moment on.
select forebay.extend_v1();
