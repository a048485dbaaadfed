-- grant: producer, worker

-- Count the rows of a query, and the bytes of the arguments they produce, with the rights and the
-- search_path of the caller.
--
-- Errors: PostgreSQL's errors of the query.
create function forebay.backfill_count_v1(query text, out jobs bigint, out bytes bigint, out digest numeric)
language plpgsql volatile
-- include: json_settings
as $$
#variable_conflict use_variable
begin
    if query is null or pg_catalog.btrim(query, E' \n\t') operator(pg_catalog.=) '' then
        raise exception using errcode = 'JQ001', column = 'query', message = 'query is empty',
            hint = 'Nothing was enqueued. Give a query with a row for each job.';
    end if;
    execute pg_catalog.format(
        E'select pg_catalog.count(*),
                 coalesce(pg_catalog.sum(pg_catalog.octet_length(
                     coalesce(r.row operator(pg_catalog.->) ''args''::pg_catalog.text, r.row)::pg_catalog.text)), 0)::pg_catalog.int8,
                 coalesce(pg_catalog.sum(pg_catalog.hashtextextended(r.row::pg_catalog.text collate pg_catalog."C", 0)), 0)
          from (select pg_catalog.to_jsonb(q.*) as row from (%s\n) q) r', query)
        into jobs, bytes, digest;
end
$$;
