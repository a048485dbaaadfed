-- grant: operator

-- Delete dead letters that died longer ago than `age`, of one queue, one cause, or all, and count
-- them for forebay.dead_summary(); returns how many. Ordering keys that they hold are free. A
-- letter whose key waits for the job that it was redriven as stays.
--
-- Parameters:
--   age, queue, cause  as given to forebay.plan_purge_dead(), if there is a token
--   token              from forebay.plan_purge_dead(): exactly those. Newer ones are left
--
-- Errors: JQ001 a negative, too long or missing age; JQ042 other dead letters than those of the
--   token, or another session works on one of them: none was deleted.
--
-- Inside: Invariant "a token is a set": it has the time of the dry run, the last dead letter of that time, and
-- a digest of those that were counted. If fewer are deleted, for another session has locked one, the deletion is undone.
create function forebay.purge_dead(age interval, queue text default null, cause text default null, token text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_seen  constant text[] := regexp_match(token, E'^\\d{1,18}-((\\d{1,18})-(\\d{1,18}))-');
    v_found record;
    v_count bigint;
begin
    select f.* into v_found
    from forebay._purgeable(age, purge_dead.queue, purge_dead.cause, v_seen[2]::bigint, v_seen[3]::bigint) f;
    if token is not null and forebay._purge_token(age, purge_dead.queue, purge_dead.cause, v_found.jobs, v_seen[1], v_found.digest) is distinct from token then
        perform forebay._refuse_token(token, 'dead letters');
    end if;
    v_count := forebay._delete_letters(
        array(select d.dead_id from forebay.dead_letter d where d.dead_id = any (v_found.dead_ids) order by d.dead_id for update skip locked), true);
    if token is not null and v_count <> v_found.jobs then
        perform forebay._refuse_token(token, 'dead letters');
    end if;
    if v_count > 0 then
        perform forebay._record_event('dead.purge', purge_dead.queue, p_new => jsonb_strip_nulls(jsonb_build_object('age', age::text, 'cause', purge_dead.cause)), p_count => v_count);
    end if;
    return v_count;
end
$$;


-- What forebay.purge_dead() would delete: the token, the number of dead letters, how many of them were
-- redriven, and when the first and the last of them died. Changes nothing.
--
-- Errors: JQ001 a negative, too long or missing age.
create function forebay.plan_purge_dead(
    age interval, queue text default null, cause text default null, out token text, out jobs bigint, out redriven bigint,
    out oldest_at timestamptz, out newest_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_last   constant bigint := coalesce((select max(d.dead_id) from forebay.dead_letter d), 0);
    v_at     constant bigint := extract(epoch from forebay._now()) * 1e6;
    v_digest numeric;
begin
    select f.jobs, f.redriven, f.oldest_at, f.newest_at, f.digest into jobs, redriven, oldest_at, newest_at, v_digest
    from forebay._purgeable(age, plan_purge_dead.queue, plan_purge_dead.cause, v_last, v_at) f;
    token := forebay._purge_token(age, plan_purge_dead.queue, plan_purge_dead.cause, jobs, concat_ws('-', v_last, v_at), v_digest);
end
$$;


create function forebay._purge_token(p_age interval, p_queue text, p_cause text, p_jobs bigint, p_seen text, p_digest numeric) returns text
language sql stable
as $$ select forebay._token(p_jobs, p_seen, jsonb_build_array('purge dead', p_age::text, p_queue, p_cause, p_digest)) $$;


-- The dead letters up to a number, null: all, that had died longer ago than an age at a time in microseconds, null: now, and may be deleted; and
-- a digest of them.
--
-- Errors: JQ001.
create function forebay._purgeable(
    p_age interval, p_queue text, p_cause text, p_last bigint, p_at bigint, out dead_ids bigint[], out jobs bigint, out redriven bigint,
    out oldest_at timestamptz, out newest_at timestamptz, out digest numeric)
language plpgsql stable
-- planner: in order
as $$
declare
    v_before constant timestamptz := coalesce(to_timestamp(p_at / 1e6), forebay._now()) - least(greatest(p_age, interval '0'), interval '100 years');
begin
    if p_age is null or p_age < interval '0' or p_age > interval '100 years' then
        raise exception using errcode = 'JQ001', column = 'age',
            message = format('age %s is negative, longer than a hundred years or missing', coalesce(p_age::text, 'null')),
            hint = 'Give the minimum age of a dead letter, for example 30 days.';
    end if;
    select coalesce(array_agg(d.dead_id), '{}'), count(*), count(d.redriven_at), min(d.died_at), max(d.died_at),
           coalesce(sum(hashint8extended(d.dead_id, 0)), 0)
    into dead_ids, jobs, redriven, oldest_at, newest_at, digest
    from forebay.dead_letter d
    where d.died_at <= v_before and (p_last is null or d.dead_id <= p_last)
      and (p_queue is null or d.queue = p_queue) and (p_cause is null or d.cause = p_cause)
      and (not d.holds_key or d.redriven_as is null);
end
$$;
