-- Backfill: a job for each row of a query, in one statement or chunk by chunk.
--
-- The query is the caller's SQL and must be read with the caller's rights, while the log is written with the owner's. So
-- the functions that run it are no security definers; they hand arrays of values to those that are. They have no
-- search_path of their own either, since the query's names are the caller's: whatever stands beside the query is written
-- with its schema.
-- See docs/design/backfill.md.


-- Backfills in chunks. A chunk is a range of the key, fixed at the beginning, and is done in the transaction that
-- enqueues its jobs.
create table forebay.backfill (
    backfill_id bigint generated always as identity primary key,
    made_at     timestamptz not null,
    made_by     name not null,           -- the query is run again for nobody else
    kind        text not null,
    query       text not null,
    options     jsonb not null,
    key         text not null,           -- a column of the query
    is_fixed    boolean not null,        -- begun with a token: a chunk that has other jobs than counted is refused
    jobs        bigint not null          -- counted at the beginning
);

create table forebay.backfill_chunk (
    backfill_id bigint not null references forebay.backfill on delete cascade,
    no          integer not null,        -- from 1
    upto        text not null,           -- the last key of the chunk; it begins behind that of the chunk before
    jobs        bigint not null,         -- counted at the beginning
    digest      numeric not null,
    enqueued    bigint,
    done_at     timestamptz,
    primary key (backfill_id, no),
    check ((enqueued is null) = (done_at is null))
);

comment on table forebay.backfill is 'Backfills in chunks, and how far they are: forebay.backfill_chunk.';


-- The options of a backfill with their defaults, checked.
--
-- Errors: JQ001.
create function forebay._backfill_options(p_options jsonb) returns jsonb
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_keys constant text[] := array['args', 'queue', 'priority', 'delay', 'run_at', 'expires_at', 'expires_in', 'max_attempts',
                                    'tag', 'correlation_id', 'headers', 'ordering_key', 'limit_key'];
    v_given jsonb;
begin
    if p_options is null or jsonb_typeof(p_options) <> 'object' then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('options must be a JSON object, not %s', coalesce(jsonb_typeof(p_options), 'null'));
    elsif p_options - v_keys <> '{}' then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('unknown option %s', (select quote_literal(left(k, 40)) from jsonb_object_keys(p_options - v_keys) k limit 1)),
            hint = format('The options of all jobs are %s. What differs from job to job, such as unique_as, is a column of the query.',
                          array_to_string(v_keys, ', '));
    end if;
    v_given := coalesce((select jsonb_object_agg(o.key, o.value) from jsonb_each(p_options) o where o.value <> 'null'), '{}');
    if jsonb_typeof(coalesce(v_given -> 'args', '{}')) <> 'object' then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('option args must be a JSON object, not %s', jsonb_typeof(v_given -> 'args'));
    end if;
    return '{"queue": "default", "priority": 1000, "tag": "backfill"}'::jsonb || v_given;
end
$$;


-- The token of a set of jobs: how many there are, and a digest of kind, options and rows.
create function forebay._backfill_token(p_kind text, p_options jsonb, p_jobs bigint, p_digest numeric) returns text
language sql immutable security definer
set search_path = pg_catalog, pg_temp
as $$
    select format('%s-%s', p_jobs, 
                  left(encode(sha256(convert_to(jsonb_build_array(p_kind, p_options, p_digest)::text, 'UTF8')), 'hex'), 32))
$$;


-- Refuse a set that is not the one of a token.
--
-- Errors: JQ040.
create function forebay._backfill_require(p_token text, p_found text) returns void
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_found is distinct from p_token then
        raise exception using errcode = 'JQ040',
            message = format('the jobs are not those of token %s any more: it is %s now', quote_literal(left(p_token, 60)), p_found),
            hint = 'Nothing was enqueued. Look at a new dry run; kind and options belong to the token, too.';
    end if;
end
$$;


-- Enqueue a job for each of some rows; returns how many.
--
-- A row is the arguments of its job; or, when it has a field args, that is, and its other fields are options of the job.
create function forebay._backfill_write(p_kind text, p_options jsonb, p_key text, p_rows jsonb[]) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_names  constant text[] := array['queue', 'priority', 'delay', 'run_at', 'expires_at', 'max_attempts', 'tag',
                                      'correlation_id', 'headers', 'unique_as', 'ordering_key', 'limit_key'];
    v_common constant jsonb := p_options -> 'args';
    v_delay  double precision;
    v_run_at timestamptz;
    v_expires_at timestamptz;
begin
    begin
        v_delay := (p_options ->> 'delay')::double precision;
        v_run_at := (p_options ->> 'run_at')::timestamptz;
        v_expires_at := coalesce(
            (p_options ->> 'expires_at')::timestamptz,
            coalesce(v_run_at, forebay._now() + make_interval(secs => coalesce(v_delay, 0)))
            + make_interval(secs => (p_options ->> 'expires_in')::double precision));
        if v_common is not null and not p_rows[1] ? 'args' then
            p_rows := array(select v_common || r.row from unnest(p_rows) r (row));
        end if;
        if not p_rows[1] ? 'args' then
            return forebay.enqueue_many(
                p_kind, p_rows, queue => p_options ->> 'queue', priority => (p_options ->> 'priority')::integer,
                delay => make_interval(secs => v_delay), run_at => v_run_at, expires_at => v_expires_at,
                max_attempts => (p_options ->> 'max_attempts')::integer, tag => p_options ->> 'tag',
                correlation_id => p_options ->> 'correlation_id', headers => p_options -> 'headers',
                ordering_key => p_options ->> 'ordering_key', limit_key => p_options ->> 'limit_key');
        end if;
    exception when data_exception then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('an option has the wrong type: %s', sqlerrm), hint = 'Nothing was enqueued.';
    end;
    return cardinality(forebay.enqueue_many((
        select jsonb_agg(
            jsonb_strip_nulls(p_options - '{args,expires_in}'::text[] || jsonb_build_object('expires_at', v_expires_at))
            || coalesce((select jsonb_object_agg(f.key, f.value) from jsonb_each(r.row - 'args') f
                         where f.value <> 'null' and (f.key <> p_key or f.key = any (v_names)) is not false), '{}')
            || jsonb_build_object(
                'kind', p_kind,
                'args', case when jsonb_typeof(r.row -> 'args') = 'object' then coalesce(v_common, '{}') || (r.row -> 'args')
                             else r.row -> 'args' end)
            order by r.nr)
        from unnest(p_rows) with ordinality r (row, nr))));
end
$$;


-- How many jobs wait, now or for a time, for the group of a queue that is furthest behind: in all, and of one priority.
-- It visits each of them.
create function forebay._backfill_waiting(p_queue text, p_priority integer, out waiting bigint, out waiting_alike bigint)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(max(d.waiting), 0)::bigint, coalesce(max(d.alike), 0)::bigint
    from (select sum(d.ready + d.deferred) as waiting, coalesce(sum(d.ready + d.deferred) filter (where d.priority = p_priority), 0) as alike
          from forebay.depth(p_queue) d group by d.group_name) d
$$;


-- Note a backfill in chunks; returns its number.
create function forebay._backfill_note(
    p_kind text, p_query text, p_options jsonb, p_key text, p_is_fixed boolean,
    p_upto text[], p_jobs bigint[], p_digests numeric[])
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
begin
    delete from forebay.backfill b where b.made_at < forebay._now() - interval '30 days';
    insert into forebay.backfill (made_at, made_by, kind, query, options, key, is_fixed, jobs)
    values (forebay._now(), session_user, p_kind, p_query, p_options, p_key, p_is_fixed,
            coalesce((select sum(j) from unnest(p_jobs) j), 0))
    returning backfill_id into v_id;
    insert into forebay.backfill_chunk (backfill_id, no, upto, jobs, digest)
    select v_id, u.nr, u.upto, u.jobs, u.digest
    from rows from (unnest(p_upto), unnest(p_jobs), unnest(p_digests)) with ordinality u (upto, jobs, digest, nr);
    return v_id;
end
$$;


-- Take the next chunk of a backfill: the parts of its query, and what was counted of it; no row when all are done.
--
-- Errors: JQ041 no such backfill, or it is another's.
-- Locks: the backfill, so that a chunk is done by one at a time.
create function forebay._backfill_take(p_backfill_id bigint)
returns table (kind text, query text, options jsonb, key text, is_fixed boolean, no integer, behind text, upto text,
               jobs bigint, digest numeric)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_run forebay.backfill;
begin
    select b.* into v_run from forebay.backfill b where b.backfill_id = p_backfill_id for update;
    if v_run.backfill_id is null then
        raise exception using errcode = 'JQ041',
            message = format('there is no backfill %s', coalesce(p_backfill_id::text, 'null')),
            hint = 'Those in chunks are in the table forebay.backfill, for 30 days.';
    elsif v_run.made_by <> session_user then
        -- Its query would run with the rights of whoever goes on with it.
        raise exception using errcode = 'JQ041',
            message = format('backfill %s was begun by %s', p_backfill_id, v_run.made_by),
            hint = 'Only who began a backfill goes on with it.';
    end if;
    return query
    select v_run.kind, v_run.query, v_run.options, v_run.key, v_run.is_fixed, c.no,
           (select p.upto from forebay.backfill_chunk p where p.backfill_id = c.backfill_id and p.no = c.no - 1),
           c.upto, c.jobs, c.digest
    from forebay.backfill_chunk c
    where c.backfill_id = p_backfill_id and c.done_at is null
    order by c.no limit 1;
end
$$;


-- Note that a chunk is done; returns how far the backfill is.
create function forebay._backfill_done(
    p_backfill_id bigint, p_no integer, p_enqueued bigint, out enqueued bigint, out jobs_done bigint, out jobs_all bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update forebay.backfill_chunk c set enqueued = p_enqueued, done_at = forebay._now()
    where c.backfill_id = p_backfill_id and c.no = p_no and c.done_at is null
      and exists (select from forebay.backfill b where b.backfill_id = p_backfill_id and b.made_by = session_user);
    if not found then
        raise exception using errcode = 'JQ041', message = format('there is no chunk %s of backfill %s to be done', p_no, p_backfill_id);
    end if;
    enqueued := p_enqueued;
    select sum(c.jobs) filter (where c.done_at is not null), sum(c.jobs) into jobs_done, jobs_all
    from forebay.backfill_chunk c where c.backfill_id = p_backfill_id;
end
$$;


-- Enqueue a job for each row of a query, some thousand at a time; returns how many, and their digest if asked for.
--
-- Runs with the rights and the search_path of the caller. Each batch is an array, so that memory is bounded.
create function forebay._backfill_run(
    p_kind text, p_query text, p_options jsonb, p_key text, p_is_digested boolean, out jobs bigint, out digest numeric)
language plpgsql volatile
as $$
declare
    v_row   pg_catalog.jsonb;
    v_rows  pg_catalog.jsonb[] := '{}';
    v_bytes pg_catalog.int8 := 0;
begin
    jobs := 0;
    digest := 0;
    for v_row in execute pg_catalog.format(E'select pg_catalog.to_jsonb(q.*) from (%s\n) q', p_query) loop
        v_rows := pg_catalog.array_append(v_rows, v_row);
        v_bytes := v_bytes operator(pg_catalog.+) pg_catalog.pg_column_size(v_row)::pg_catalog.int8;
        if pg_catalog.cardinality(v_rows) operator(pg_catalog.>=) 20000 or v_bytes operator(pg_catalog.>=) 8000000::pg_catalog.int8 then
            if p_is_digested then
                digest := digest operator(pg_catalog.+) forebay._backfill_digest(v_rows);
            end if;
            jobs := jobs operator(pg_catalog.+) forebay._backfill_write(p_kind, p_options, p_key, v_rows);
            v_rows := '{}';
            v_bytes := 0;
        end if;
    end loop;
    if pg_catalog.cardinality(v_rows) operator(pg_catalog.>) 0 then
        if p_is_digested then
            digest := digest operator(pg_catalog.+) forebay._backfill_digest(v_rows);
        end if;
        jobs := jobs operator(pg_catalog.+) forebay._backfill_write(p_kind, p_options, p_key, v_rows);
    end if;
end
$$;


-- What tells one set of rows from another, in any order.
create function forebay._backfill_digest(p_rows jsonb[]) returns numeric
language sql immutable security definer
set search_path = pg_catalog, pg_temp
as $$ select coalesce(sum(jsonb_hash_extended(r, 0)), 0) from unnest(p_rows) r $$;


-- Count the rows of a query. Runs with the rights and the search_path of the caller.
create function forebay._backfill_count(p_query text, out jobs bigint, out bytes bigint, out digest numeric)
language plpgsql volatile
as $$
begin
    execute pg_catalog.format(
        E'select pg_catalog.count(*), coalesce(pg_catalog.sum(pg_catalog.octet_length(coalesce(r.row operator(pg_catalog.->) \'args\'::pg_catalog.text, r.row)::pg_catalog.text)), 0)::pg_catalog.int8,
                 coalesce(pg_catalog.sum(pg_catalog.jsonb_hash_extended(r.row, 0)), 0)
          from (select pg_catalog.to_jsonb(q.*) as row from (%s\n) q) r', p_query)
        into jobs, bytes, digest;
end
$$;


-- Enqueue a job for each row of a query, in the caller's transaction; returns how many.
--
-- Parameters:
--   kind     which handler
--   query    a SELECT, read with the caller's rights. The columns of a row are the arguments of its job; with a column args,
--            that is, and the other columns are options of the job: ordering_key, unique_as, delay and so on
--   options  of all jobs, a JSON object: queue, priority (1000), tag (backfill), delay and expires_in in seconds, run_at,
--            expires_at, max_attempts, correlation_id, headers, ordering_key, limit_key; args, arguments that all have
--   token    of forebay.backfill_plan: enqueue the jobs that it counted, or nothing
-- Errors: as forebay.enqueue_many; JQ040 the jobs are not those of the token.
create function forebay.backfill(kind text, query text, options jsonb default '{}', token text default null) returns bigint
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_options constant pg_catalog.jsonb := forebay._backfill_options(options);
    v_count   pg_catalog.record;
begin
    if token is not null then
        -- First, since jobs that are rolled back leave dead rows in the log.
        v_count := forebay._backfill_count(query);
        perform forebay._backfill_require(token, forebay._backfill_token(kind, v_options, v_count.jobs, v_count.digest));
    end if;
    v_count := forebay._backfill_run(kind, query, v_options, null, token is not null);
    if token is not null then
        perform forebay._backfill_require(token, forebay._backfill_token(kind, v_options, v_count.jobs, v_count.digest));
    end if;
    return v_count.jobs;
end
$$;


-- Say what forebay.backfill would enqueue, and enqueue nothing.
--
-- Returns the token of exactly these jobs, how many they are, the bytes of their arguments as JSON; the seconds that
-- enqueuing them would take, from the time this took and from that of up to 2,000 of them, enqueued and rolled back (null where
-- that is not possible); and how many jobs wait in the queue already, in all and of the same priority.
--
-- Parameters and errors: as forebay.backfill.
create function forebay.backfill_plan(kind text, query text, options jsonb default '{}')
returns table (token text, jobs bigint, bytes bigint, seconds double precision, waiting bigint, waiting_alike bigint)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_options constant pg_catalog.jsonb := forebay._backfill_options(options);
    v_begun   pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    v_count   pg_catalog.record;
    v_reading pg_catalog.float8;
    v_some    pg_catalog.int8;
begin
    v_count := forebay._backfill_count(query);
    v_reading := pg_catalog.date_part('epoch'::pg_catalog.text, pg_catalog.clock_timestamp() operator(pg_catalog.-) v_begun);
    token := forebay._backfill_token(kind, v_options, v_count.jobs, v_count.digest);
    jobs := v_count.jobs;
    bytes := v_count.bytes;
    begin
        v_begun := pg_catalog.clock_timestamp();
        v_some := (forebay._backfill_run(kind, pg_catalog.concat(E'select * from (', query, E'\n) sample limit 2000'), v_options, null, false)).jobs;
        seconds := pg_catalog.date_part('epoch'::pg_catalog.text, pg_catalog.clock_timestamp() operator(pg_catalog.-) v_begun);
        raise exception using errcode = 'ZF000';
    exception
        when sqlstate 'ZF000' then  -- It was there to be rolled back.
            seconds := case when v_some operator(pg_catalog.=) 0::pg_catalog.int8 then 0.0::pg_catalog.float8
                            -- Written so, operators have no precedence.
                            else v_reading operator(pg_catalog.+)
                                 (seconds operator(pg_catalog.*) (jobs::pg_catalog.float8 operator(pg_catalog./) v_some::pg_catalog.float8)) end;
        when read_only_sql_transaction or configuration_limit_exceeded then
            seconds := null;
    end;
    select w.waiting, w.waiting_alike into waiting, waiting_alike
    from forebay._backfill_waiting(v_options operator(pg_catalog.->>) 'queue'::pg_catalog.text,
                                   (v_options operator(pg_catalog.->>) 'priority'::pg_catalog.text)::pg_catalog.int4) w;
    return next;
end
$$;


-- Begin a backfill in chunks; returns its number. Nothing is enqueued yet: forebay.backfill_next does that, chunk by chunk.
--
-- The rows are read once, in the order of the key, and where each chunk ends is noted. Rows beyond the last key are not part
-- of the backfill, whenever they come.
--
-- Parameters: as forebay.backfill, and
--   key    a column of the query, without nulls; rows with the same key are in one chunk. Where it has an index, a chunk
--          costs the same however many rows there are
--   chunk  jobs of a chunk, 1 to 1,000,000
--   token  of forebay.backfill_plan: a chunk that does not have the jobs counted here is refused
-- Errors: JQ001, JQ040 the jobs are not those of the token.
create function forebay.backfill_begin(
    kind text, query text, key text, chunk integer default 50000, options jsonb default '{}', token text default null)
returns bigint
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_options constant pg_catalog.jsonb := forebay._backfill_options(options);
    v_row     pg_catalog.record;
    v_last    pg_catalog.text;
    v_count   pg_catalog.int8 := 0;
    v_digest  pg_catalog.numeric := 0;
    v_all     pg_catalog.int8 := 0;
    v_sum     pg_catalog.numeric := 0;
    v_upto    pg_catalog.text[] := '{}';
    v_jobs    pg_catalog.int8[] := '{}';
    v_digests pg_catalog.numeric[] := '{}';
begin
    if key is null or chunk is null or chunk operator(pg_catalog.<) 1 or chunk operator(pg_catalog.>) 1000000 then
        raise exception using errcode = 'JQ001', column = 'chunk',
            message = pg_catalog.format('cannot make chunks of %s jobs by key %s', coalesce(chunk::pg_catalog.text, 'null'), coalesce(pg_catalog.quote_literal(key), 'null')),
            hint = 'A chunk has 1 to 1,000,000 jobs; the key is a column of the query.';
    end if;
    for v_row in execute pg_catalog.format(
        E'select pg_catalog.to_jsonb(q.%I) operator(pg_catalog.#>>) \'{}\'::pg_catalog.text[] as key,
                 pg_catalog.jsonb_hash_extended(pg_catalog.to_jsonb(q.*), 0) as digest
          from (%s\n) q order by q.%I', key, query, key)
    loop
        if v_row.key is null then
            raise exception using errcode = 'JQ001', column = 'key',
                message = pg_catalog.format('key %s has nulls', pg_catalog.quote_literal(key)),
                hint = 'Nothing was enqueued. Take a column without nulls, such as the primary key.';
        end if;
        if v_count operator(pg_catalog.>=) chunk::pg_catalog.int8 and v_row.key operator(pg_catalog.<>) v_last then
            v_upto := pg_catalog.array_append(v_upto, v_last);
            v_jobs := pg_catalog.array_append(v_jobs, v_count);
            v_digests := pg_catalog.array_append(v_digests, v_digest);
            v_all := v_all operator(pg_catalog.+) v_count;
            v_sum := v_sum operator(pg_catalog.+) v_digest;
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
        v_all := v_all operator(pg_catalog.+) v_count;
        v_sum := v_sum operator(pg_catalog.+) v_digest;
    end if;
    if token is not null then
        perform forebay._backfill_require(token, forebay._backfill_token(kind, v_options, v_all, v_sum));
    end if;
    return forebay._backfill_note(kind, query, v_options, key, token is not null, v_upto, v_jobs, v_digests);
end
$$;


-- Enqueue the next chunk of a backfill, in the caller's transaction; no row when all are done.
--
-- Invariant "a chunk and its mark are one": docs/design/backfill.md. Call it until it returns nothing, each time in a
-- transaction of its own, and after a crash again.
--
-- Returns how many jobs this chunk has, and of how many that were counted at the beginning those done are now.
-- Errors: as forebay.backfill; JQ040 the chunk has not the jobs that were counted; JQ041 no such backfill, or another's.
-- Locks: the backfill.
create function forebay.backfill_next(backfill_id bigint)
returns table (enqueued bigint, jobs_done bigint, jobs_all bigint)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_chunk pg_catalog.record;
    v_query pg_catalog.text;
    v_count pg_catalog.record;
    v_done  pg_catalog.record;
begin
    select t.* into v_chunk from forebay._backfill_take(backfill_id) t;
    if v_chunk.no is null then
        return;
    end if;
    v_query := pg_catalog.format(
        E'select * from (%1$s\n) chunk where chunk.%2$I <= %3$L%4$s order by chunk.%2$I',
        v_chunk.query, v_chunk.key, v_chunk.upto,
        case when v_chunk.behind is not null then pg_catalog.format(' and chunk.%I > %L', v_chunk.key, v_chunk.behind) end);
    if v_chunk.is_fixed then
        v_count := forebay._backfill_count(v_query);
        perform forebay._backfill_same(backfill_id, v_chunk.no, v_count.jobs, v_count.digest);
    end if;
    v_count := forebay._backfill_run(v_chunk.kind, v_query, v_chunk.options, v_chunk.key, v_chunk.is_fixed);
    if v_chunk.is_fixed then
        perform forebay._backfill_same(backfill_id, v_chunk.no, v_count.jobs, v_count.digest);
    end if;
    v_done := forebay._backfill_done(backfill_id, v_chunk.no, v_count.jobs);
    enqueued := v_done.enqueued;
    jobs_done := v_done.jobs_done;
    jobs_all := v_done.jobs_all;
    return next;
end
$$;


-- Refuse a chunk that is not as it was counted.
--
-- Errors: JQ040.
create function forebay._backfill_same(p_backfill_id bigint, p_no integer, p_jobs bigint, p_digest numeric) returns void
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_jobs bigint;
begin
    select c.jobs into v_jobs from forebay.backfill_chunk c
    where c.backfill_id = p_backfill_id and c.no = p_no and (c.jobs, c.digest) is distinct from (p_jobs, p_digest);
    if found then
        raise exception using errcode = 'JQ040',
            message = format('chunk %s of backfill %s has other jobs than counted: %s were, %s are', p_no, p_backfill_id, v_jobs, p_jobs),
            hint = 'The chunks before it are enqueued, nothing of this one is. Look at a new dry run of the rest.';
    end if;
end
$$;

