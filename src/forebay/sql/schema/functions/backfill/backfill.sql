-- Backfill: a job for each row of a query, in one statement or chunk by chunk.
--
-- The query is the caller's SQL and is read with the caller's rights, while the log is written with the owner's. So the
-- functions that run the query are not security definers; they pass arrays of values to functions that are. They also set no
-- search_path, since the names in the query are the caller's: everything else in these functions is written with its schema.
-- See docs/design/backfill.md.
-- The role that the caller has set, or its login. Unlike current_user it is the same within a security definer.
create function forebay._role_in_use() returns name
language sql stable
return coalesce(nullif(current_setting('role'), 'none'), session_user)::name;

-- grant: producer, worker

-- Enqueue a job for each row of a query; returns how many.
--
-- Parameters:
--   kind     the name of the kind
--   query    a `select`, run with the caller's rights and `search_path`. The columns of a row are
--            the arguments of its job. If there is a column `args`, a JSON object, it holds the
--            arguments, and the other columns are options of each job: `ordering_key`, `limit_key`,
--            `unique_as`, `priority`, `delay`, ...
--   options  of all jobs: `queue`, `priority` (1000), `tag` (`backfill`), `delay` and `expires_in`
--            in seconds, `run_at`, `expires_at`, {options marked but tag}; and `args`, arguments of all jobs, which a row may
--            override
--            With `"subjects": true` each row becomes a subject instead, as with
--            forebay.push_subjects(): the column `subject` is its name, and `version` is an option.
--            Subjects that exist are counted, and left as they are. The defaults of `priority` and
--            `tag` are then those of forebay.push_subjects()
--   token    from forebay.backfill_plan: enqueue exactly the jobs that it counted, or nothing. It
--            begins one backfill: a call with it that is repeated enqueues nothing and returns the
--            same number
--
-- Rows whose unique key already belongs to a job are counted, too. Put values into the query with
-- `format('... = %L', value)`, never by concatenating text.
--
-- Example:
--   select forebay.backfill(
--       'index', format('select id from document where body like %L', 'first%'),
--       '{"queue": "texts"}');
--
-- Errors: as forebay.enqueue_many, where the index counts within 20,000 jobs; JQ040 the jobs are
--   not those of the token; PostgreSQL's errors of the query. All jobs are enqueued, or none.
-- See: docs/howto/backfill.md
create function forebay.backfill(kind text, query text, options jsonb default '{}', token text default null) returns bigint
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_found pg_catalog.record;
    v_begun pg_catalog.record;
begin
    if token is not null then
        v_begun := forebay.backfill_begun_v1(kind, options, token);
        if v_begun.backfill_id is not null then
            return v_begun.jobs;
        end if;
        -- Before anything is written, because jobs that are rolled back leave dead rows in the log.
        v_found := forebay.backfill_count_v1(query);
        perform forebay.backfill_token_v1(kind, options, v_found.jobs, v_found.digest, token);
        v_begun := forebay.backfill_record_v1(kind, query, null, options, token, '{}', array[v_found.jobs], array[v_found.digest]);
        if not v_begun.is_new then
            return v_found.jobs;
        end if;
    end if;
    v_found := forebay.backfill_run_v1(kind, query, options, null, token is not null);
    if token is not null then
        perform forebay.backfill_token_v1(kind, options, v_found.jobs, v_found.digest, token);
    end if;
    return v_found.jobs;
end
$$;
