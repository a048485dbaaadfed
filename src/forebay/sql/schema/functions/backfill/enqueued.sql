-- grant: producer, worker

-- Record in the event log that a backfill enqueued all its jobs in one statement.
create function forebay.backfill_enqueued_v1(kind text, query text, options jsonb, jobs bigint) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if jobs > 0 then
        perform forebay._record_event('backfill', forebay._backfill_options(kind, options) ->> 'queue', p_kind => kind, p_count => jobs,
                                      p_new => jsonb_build_object('query', left(query, 2000)));
    end if;
end
$$;
