-- grant: producer, worker

-- Enqueue a job for each row of a query, some thousand at a time, with the rights and the
-- search_path of the caller; returns their number, and with `is_digested` a digest of the rows. They
-- are those of chunk `no` of a backfill, or in one event.
--
-- Errors: as forebay.backfill().
--
-- Inside: each batch is an array, so that memory is bounded.
create function forebay.backfill_run_v1(
    kind text, query text, options jsonb, key text, is_digested boolean, backfill_id bigint default null, no integer default null,
    out jobs bigint, out digest numeric)
language plpgsql volatile
-- include: json_settings
as $$
#variable_conflict use_variable
declare
    v_row   pg_catalog.jsonb;
    v_rows  pg_catalog.jsonb[] := '{}';
    v_bytes pg_catalog.int8 := 0;
    v_part  pg_catalog.record;
    v_event pg_catalog.int8;
begin
    if query is null or pg_catalog.btrim(query, E' \n\t') operator(pg_catalog.=) '' then
        raise exception using errcode = 'JQ001', column = 'query', message = 'query is empty',
            hint = 'Nothing was enqueued. Give a query with a row for each job.';
    end if;
    jobs := 0;
    digest := 0;
    for v_row in execute pg_catalog.format(E'select pg_catalog.to_jsonb(q.*) from (%s\n) q', query) loop
        v_rows := pg_catalog.array_append(v_rows, v_row);
        v_bytes := v_bytes operator(pg_catalog.+) pg_catalog.pg_column_size(v_row)::pg_catalog.int8;
        if pg_catalog.cardinality(v_rows) operator(pg_catalog.>=) 20000 or v_bytes operator(pg_catalog.>=) 8000000::pg_catalog.int8 then
            v_part := forebay.backfill_write_v1(kind, options, key, v_rows, is_digested, query, v_event, backfill_id, no);
            jobs := jobs operator(pg_catalog.+) v_part.jobs::pg_catalog.int8;
            digest := digest operator(pg_catalog.+) v_part.digest::pg_catalog.numeric;
            v_event := v_part.event;
            v_rows := '{}';
            v_bytes := 0;
        end if;
    end loop;
    v_part := forebay.backfill_write_v1(kind, options, key, v_rows, is_digested, query, v_event, backfill_id, no);
    jobs := jobs operator(pg_catalog.+) v_part.jobs::pg_catalog.int8;
    digest := digest operator(pg_catalog.+) v_part.digest::pg_catalog.numeric;
end
$$;
