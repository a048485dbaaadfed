-- grant: producer, worker

-- Begin a backfill in chunks; returns its number. The function reads the query once, in the order
-- of the key, and records where each chunk ends. It enqueues nothing: forebay.backfill_next() does,
-- chunk by chunk. Rows with a key beyond the last one are never part of the backfill.
--
-- Parameters:
--   key    a column of the query, without nulls. Rows with the same key are in one chunk. Index
--          this column: otherwise each chunk reads the whole table
--   chunk  jobs per chunk, 1 to 1,000,000
--   token  from forebay.backfill_plan(): enqueue exactly the counted jobs; a chunk with other jobs
--          is refused, too. A call with it that is repeated returns the same number
--
-- The other parameters are those of forebay.backfill().
--
-- Errors: JQ001 a bad option, key or chunk, JQ040 the jobs are not those of the token.
create function forebay.backfill_begin(
    kind text, query text, key text, chunk integer default 50000, options jsonb default '{}', token text default null)
returns bigint
language plpgsql volatile
-- include: json_settings
as $$
#variable_conflict use_variable
declare
    v_row     pg_catalog.record;
    v_last    pg_catalog.text;
    v_count   pg_catalog.int8 := 0;
    v_digest  pg_catalog.numeric := 0;
    v_upto    pg_catalog.text[] := '{}';
    v_jobs    pg_catalog.int8[] := '{}';
    v_digests pg_catalog.numeric[] := '{}';
    v_begun   pg_catalog.int8;
begin
    if key is null or chunk is null or chunk operator(pg_catalog.<) 1 or chunk operator(pg_catalog.>) 1000000 then
        raise exception using errcode = 'JQ001', column = 'chunk',
            message = pg_catalog.format('cannot make chunks of %s jobs by key %s', coalesce(chunk::pg_catalog.text, 'null'), coalesce(pg_catalog.quote_literal(key), 'null')),
            hint = 'A chunk has 1 to 1,000,000 jobs; the key is a column of the query.';
    end if;
    if query is null or pg_catalog.btrim(query, E' \n\t') operator(pg_catalog.=) '' then
        raise exception using errcode = 'JQ001', column = 'query', message = 'query is empty',
            hint = 'Nothing was enqueued. Give a query with a row for each job.';
    end if;
    if kind is null then
        raise exception using errcode = 'JQ001', column = 'kind', message = 'kind is null', hint = 'Nothing was enqueued. Give the kind of the jobs.';
    end if;
    if token is not null then
        v_begun := (forebay.backfill_begun_v1(kind, options, token)).backfill_id;
        if v_begun is not null then
            return v_begun;
        end if;
    end if;
    for v_row in execute pg_catalog.format(
        E'select pg_catalog.to_jsonb(q.%I) operator(pg_catalog.#>>) ''{}''::pg_catalog.text[] as key,
                 pg_catalog.hashtextextended(pg_catalog.to_jsonb(q.*)::pg_catalog.text collate pg_catalog."C", 0) as digest
          from (%s\n) q order by q.%I', key, query, key)
    loop
        if v_row.key is null then
            raise exception using errcode = 'JQ001', column = 'key',
                message = pg_catalog.format('key %s has nulls', pg_catalog.quote_literal(key)),
                hint = 'Nothing was enqueued. Use a column without nulls, such as the primary key.';
        end if;
        if v_count operator(pg_catalog.>=) chunk::pg_catalog.int8 and v_row.key operator(pg_catalog.<>) v_last then
            v_upto := pg_catalog.array_append(v_upto, v_last);
            v_jobs := pg_catalog.array_append(v_jobs, v_count);
            v_digests := pg_catalog.array_append(v_digests, v_digest);
            v_count := 0;
            v_digest := 0;
        end if;
        v_last := v_row.key;
        v_count := v_count operator(pg_catalog.+) 1::pg_catalog.int8;
        v_digest := v_digest operator(pg_catalog.+) v_row.digest::pg_catalog.numeric;
    end loop;
    if v_count operator(pg_catalog.>) 0::pg_catalog.int8 then
        v_upto := pg_catalog.array_append(v_upto, v_last);
        v_jobs := pg_catalog.array_append(v_jobs, v_count);
        v_digests := pg_catalog.array_append(v_digests, v_digest);
    end if;
    return (forebay.backfill_record_v1(kind, query, key, options, token, v_upto, v_jobs, v_digests)).backfill_id;
end
$$;
