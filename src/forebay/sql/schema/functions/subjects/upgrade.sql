-- grant: operator, worker

-- Lock some subjects of a version until the transaction ends, so that their arguments can be
-- migrated, in the order of their names.
--
-- Parameters:
--   after  the name after which to continue; null: where the last upgrade of these stopped
--   most   1 to 10000 subjects that are looked at
--
-- Columns:
--   is_running  its run waits or runs, or another transaction has it; it is not locked
--   passed      the last name that was looked at, null at the end; one row without a subject when
--               none of these has the version
--
-- Errors: JQ001 a bad number.
-- Locks: the rows of the subjects that are returned, except with `is_running`. No run of them is
--   issued until the transaction ends.
create function forebay.lock_subjects_for_upgrade(queue text, kind text, from_version integer, after text default null, most integer default 100)
returns table (subject_id bigint, subject text, args jsonb, data jsonb, is_running boolean, passed text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_after  text := coalesce(
        lock_subjects_for_upgrade.after,
        (select u.after from forebay.subject_upgrade u
         where u.queue = lock_subjects_for_upgrade.queue and u.kind = lock_subjects_for_upgrade.kind
           and u.from_version = lock_subjects_for_upgrade.from_version), '');
    v_looked bigint[];
    v_locked bigint[];
    v_passed text;
    v_any    boolean := false;
begin
    if lock_subjects_for_upgrade.most is null or lock_subjects_for_upgrade.most not between 1 and 10000 then
        raise exception using errcode = 'JQ001', column = 'most',
            message = format('most %s is outside 1 to 10000', coalesce(lock_subjects_for_upgrade.most::text, 'null'));
    end if;
    select array_agg(i.subject_id order by i.subject), max(i.subject) into v_looked, v_passed
    from (select s.subject_id, s.subject from forebay.subject s
          where s.queue = lock_subjects_for_upgrade.queue and s.subject > v_after order by s.subject
          limit lock_subjects_for_upgrade.most) i;
    v_locked := array(
        select i.subject_id from (
            select s.subject_id from forebay.subject s
            where s.subject_id = any (v_looked)
              and ((forebay._newest_state(s.subject_id)).kind, (forebay._newest_state(s.subject_id)).version)
                  = (lock_subjects_for_upgrade.kind, lock_subjects_for_upgrade.from_version)
            order by s.subject for no key update skip locked) i);
    for subject_id, subject, args, data, is_running in
        select s.subject_id, s.subject, n.args, n.data,
               s.subject_id <> all (v_locked) or n.lane is not null and forebay._run_state(s.queue, n) <> 'ended'
        from unnest(v_looked) with ordinality u (id, nr)
        cross join lateral (select * from forebay.subject i where i.subject_id = u.id offset 0) s
        cross join lateral (select * from forebay._newest_state(s.subject_id) offset 0) n
        where n.kind = lock_subjects_for_upgrade.kind and n.version = lock_subjects_for_upgrade.from_version and n.state <> 'g'
        order by u.nr
    loop
        v_any := true;
        passed := v_passed;
        return next;
    end loop;
    if not v_any then
        subject_id := null; subject := null; args := null; data := null; is_running := null; passed := v_passed;
        return next;
    end if;
end
$$;


-- Give a subject that forebay.lock_subjects_for_upgrade() locked new arguments and data, with
-- another version. Returns whether it had the earlier version. Its next time does not change.
-- `data` null: no state.
--
-- Errors: JQ001 a bad version, JQ002 and JQ003 args or data too large or too deep.
-- Locks: the row of the subject.
create function forebay.upgrade_subject(subject_id bigint, from_version integer, to_version integer, args jsonb, data jsonb) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_variable
declare
    n forebay.subject_state;
begin
    if to_version is null or to_version not between 0 and 9999 then
        raise exception using errcode = 'JQ001', column = 'to_version', message = format('version %s is outside 0 to 9999', coalesce(to_version::text, 'null'));
    elsif jsonb_typeof(args) is distinct from 'object' or jsonb_typeof(data) not in ('object', 'null') then
        raise exception using errcode = 'JQ001', column = 'args', message = 'args and data must be JSON objects; data may be null';
    end if;
    perform forebay._check_args(args, null);
    perform forebay._check_args(data, null) from (select) d where jsonb_typeof(data) = 'object';
    perform from forebay.subject s where s.subject_id = upgrade_subject.subject_id for no key update;
    n := forebay._newest_state(subject_id);
    if n.version is distinct from from_version or n.state in ('i', 'g') then
        return false;
    end if;
    insert into forebay.subject_state (
        subject_id, no, part, state, at, due_at, wake_at, kind, version, priority, args, data, options, iterations, last_at, job_id, run_no,
        lane, job_xid, reason)
    values (
        n.subject_id, n.no + 1, 0, n.state, forebay._now(), n.due_at, n.wake_at, n.kind, to_version, n.priority, args, nullif(data, 'null'),
        n.options, n.iterations, n.last_at, n.job_id, n.run_no, n.lane, n.job_xid, n.reason);
    return true;
end
$$;


-- Record up to which name an upgrade has come; with `passed` null it begins again with its next
-- call.
--
-- Errors: JQ001 one of the others is missing.
create function forebay.record_upgrade(queue text, kind text, from_version integer, to_version integer, passed text, upgraded bigint) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    insert into forebay.subject_upgrade as u (queue, kind, from_version, to_version, after, upgraded, changed_at)
    select record_upgrade.queue, record_upgrade.kind, record_upgrade.from_version, record_upgrade.to_version, coalesce(record_upgrade.passed, ''),
           record_upgrade.upgraded, forebay._now()
    where forebay._require('upgraded', num_nulls(record_upgrade.queue, record_upgrade.kind, record_upgrade.from_version, record_upgrade.to_version,
                                                 record_upgrade.upgraded) = 0, record_upgrade.upgraded::text, 'a number, with a queue, a kind and versions')
    on conflict (queue, kind, from_version) do update
    set to_version = excluded.to_version, after = excluded.after, upgraded = u.upgraded + excluded.upgraded, changed_at = excluded.changed_at
$$;
