-- grant: producer, worker

-- Record a backfill; returns its number, and whether it is new: with a token that was used before it
-- is the backfill that was begun then. `upto`, `jobs` and `digests` have an element for each chunk;
-- without a `key` and `upto` it is one statement. The query and the number of jobs are what the
-- caller states, and stand in the event `backfill.begin` under names that say so. The record is deleted when another backfill begins
-- 30 days later.
--
-- Errors: JQ001 bad options, JQ040 another token.
create function forebay.backfill_record_v1(
    kind text, query text, key text, options jsonb, token text, upto text[], jobs bigint[], digests numeric[],
    out backfill_id bigint, out is_new boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_jobs bigint := coalesce((select sum(j) from unnest(backfill_record_v1.jobs) j), 0);
begin
    perform forebay.backfill_token_v1(
        backfill_record_v1.kind, backfill_record_v1.options, v_jobs,
        coalesce((select sum(d) from unnest(backfill_record_v1.digests) d), 0), backfill_record_v1.token);
    delete from forebay.backfill b where b.made_at < forebay._now() - interval '30 days';
    insert into forebay.backfill (backfill_id, made_at, made_by, made_as, kind, query, options, key, is_fixed, jobs, token)
    values (forebay._random_name(), forebay._now(), session_user, forebay._role_in_use(), backfill_record_v1.kind,
            backfill_record_v1.query, forebay._backfill_options(backfill_record_v1.kind, backfill_record_v1.options), backfill_record_v1.key,
            backfill_record_v1.token is not null, v_jobs, backfill_record_v1.token)
    -- Another session that begins with this token is waited for.
    on conflict on constraint backfill_token_key do nothing
    returning backfill.backfill_id into backfill_record_v1.backfill_id;
    is_new := found;
    if not is_new then
        backfill_id := (forebay.backfill_begun_v1(backfill_record_v1.kind, backfill_record_v1.options, backfill_record_v1.token)).backfill_id;
        return;
    end if;
    insert into forebay.backfill_chunk (backfill_id, no, upto, jobs, digest)
    select backfill_record_v1.backfill_id, u.nr, u.upto, u.jobs, u.digest
    from rows from (unnest(backfill_record_v1.upto), unnest(backfill_record_v1.jobs), unnest(backfill_record_v1.digests))
         with ordinality u (upto, jobs, digest, nr)
    where u.upto is not null;
    if backfill_record_v1.key is null then
        return;
    end if;
    perform forebay._record_event(
        'backfill.begin', forebay._backfill_options(backfill_record_v1.kind, backfill_record_v1.options) ->> 'queue', p_kind => backfill_record_v1.kind, p_subject_id => backfill_record_v1.backfill_id,
        p_new => jsonb_build_object(
            'options', backfill_record_v1.options, 'stated_query', left(backfill_record_v1.query, 2000), 'stated_jobs', v_jobs,
            'chunks', (select count(*) from forebay.backfill_chunk c where c.backfill_id = backfill_record_v1.backfill_id)));
end
$$;
