-- grant: producer, worker

-- Record that a chunk is done; returns the progress of the backfill.
--
-- Errors: JQ040 it has other jobs than were counted, JQ041 no such open chunk.
create function forebay.backfill_done_v1(
    backfill_id bigint, no integer, digest numeric, out jobs_done bigint, out jobs_all bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_chunk record;
begin
    update forebay.backfill_chunk c set enqueued = coalesce(c.enqueued, 0), done_at = forebay._now()
    from forebay.backfill b
    where c.backfill_id = backfill_done_v1.backfill_id and c.no = backfill_done_v1.no and c.done_at is null
      and b.backfill_id = c.backfill_id and b.made_by = session_user and b.made_as = forebay._role_in_use()
    returning b.is_fixed, c.jobs, c.digest, c.enqueued into v_chunk;
    if v_chunk.jobs is null then
        raise exception using errcode = 'JQ041',
            message = format('backfill %s has no open chunk %s', backfill_done_v1.backfill_id, backfill_done_v1.no),
            detail = jsonb_build_object('backfill_id', backfill_done_v1.backfill_id);
    elsif v_chunk.is_fixed and (v_chunk.jobs, v_chunk.digest) is distinct from (v_chunk.enqueued, backfill_done_v1.digest) then
        raise exception using errcode = 'JQ040',
            message = format('chunk %s of backfill %s has other jobs than were counted: %s, not %s', backfill_done_v1.no,
                             backfill_done_v1.backfill_id, v_chunk.enqueued, v_chunk.jobs),
            hint = 'Earlier chunks are enqueued; nothing of this one is. Do a new dry run of the rest.';
    end if;
    select sum(c.jobs) filter (where c.done_at is not null), sum(c.jobs) into jobs_done, jobs_all
    from forebay.backfill_chunk c where c.backfill_id = backfill_done_v1.backfill_id;
    if not exists (select from forebay.backfill_chunk c where c.backfill_id = backfill_done_v1.backfill_id and c.done_at is null) then
        perform forebay._record_event('backfill.end', forebay._backfill_options(b.kind, b.options) ->> 'queue', p_kind => b.kind,
                                      p_subject_id => b.backfill_id, p_count => (
                                          select sum(c.enqueued) from forebay.backfill_chunk c where c.backfill_id = b.backfill_id)::bigint)
        from forebay.backfill b where b.backfill_id = backfill_done_v1.backfill_id;
    end if;
end
$$;
