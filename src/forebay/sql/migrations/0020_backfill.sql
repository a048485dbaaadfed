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
language plpgsql stable
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


-- The token of a set of jobs: how many there are, and a digest of kind, options and rows; with a token, refuse any other.
--
-- Errors: JQ001 bad options, JQ040 the jobs are not those of the token.
create function forebay.backfill_token_v1(kind text, options jsonb, jobs bigint, digest numeric, token text default null)
returns text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found constant text := format(
        '%s-%s', backfill_token_v1.jobs,
        left(encode(sha256(convert_to(jsonb_build_array(
            backfill_token_v1.kind, forebay._backfill_options(backfill_token_v1.options), backfill_token_v1.digest)::text, 'UTF8')), 'hex'), 32));
begin
    if v_found <> backfill_token_v1.token then
        raise exception using errcode = 'JQ040',
            message = format('the jobs are not those of token %s any more: it is %s now', quote_literal(left(backfill_token_v1.token, 60)), v_found),
            detail = jsonb_build_object('token', backfill_token_v1.token),
            hint = 'Nothing was enqueued. Look at a new dry run; kind and options belong to the token, too.';
    end if;
    return v_found;
end
$$;


-- Enqueue a job for each of some rows; returns how many, and, if asked for it, what tells these rows from others, in any order.
--
-- A row is the arguments of its job; or, when it has a field args, that is, and its other fields are options of the job.
--
-- Parameters: key, a field that is neither; null: none.
-- Errors: as forebay.enqueue_many.
create function forebay.backfill_write_v1(
    kind text, options jsonb, key text, rows jsonb[], is_digested boolean, out jobs bigint, out digest numeric)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_names  constant text[] := array['queue', 'priority', 'delay', 'run_at', 'expires_at', 'max_attempts', 'tag',
                                      'correlation_id', 'headers', 'unique_as', 'ordering_key', 'limit_key'];
    v_kind   constant text := backfill_write_v1.kind;
    v_key    constant text := backfill_write_v1.key;
    v_options constant jsonb := forebay._backfill_options(backfill_write_v1.options);
    v_rows   jsonb[] := backfill_write_v1.rows;
    v_common constant jsonb := v_options -> 'args';
    v_priority integer;
    v_delay  interval;
    v_run_at timestamptz;
    v_expires_at timestamptz;
    v_max_attempts integer;
begin
    jobs := cardinality(v_rows);
    if is_digested then
        -- Of the text: a hash of jsonb does not know the sign of a number.
        select coalesce(sum(hashtextextended(r::text collate "C", 0)), 0) into digest from unnest(v_rows) r;
    end if;
    if jobs = 0 then
        return;
    end if;
    begin
        -- Nothing is written in here: a subtransaction for each batch would soon be more than a snapshot can list.
        v_priority := (v_options ->> 'priority')::integer;
        v_delay := make_interval(secs => (v_options ->> 'delay')::double precision);
        v_run_at := (v_options ->> 'run_at')::timestamptz;
        v_max_attempts := (v_options ->> 'max_attempts')::integer;
        v_expires_at := coalesce(
            (v_options ->> 'expires_at')::timestamptz,
            coalesce(v_run_at, forebay._now() + coalesce(v_delay, interval '0'))
            + make_interval(secs => (v_options ->> 'expires_in')::double precision));
    exception when data_exception then
        raise exception using errcode = 'JQ001', column = 'options',
            message = format('an option has the wrong type: %s', sqlerrm), hint = 'Nothing was enqueued.';
    end;
    if not v_rows[1] ? 'args' then
        if v_common is not null then
            v_rows := array(select v_common || r.row from unnest(v_rows) r (row));
        end if;
        perform forebay.enqueue_many(
            v_kind, v_rows, queue => v_options ->> 'queue', priority => v_priority, delay => v_delay, run_at => v_run_at,
            expires_at => v_expires_at, max_attempts => v_max_attempts, tag => v_options ->> 'tag',
            correlation_id => v_options ->> 'correlation_id', headers => v_options -> 'headers',
            ordering_key => v_options ->> 'ordering_key', limit_key => v_options ->> 'limit_key');
        return;
    end if;
    perform forebay.enqueue_many((
        select jsonb_agg(
            jsonb_strip_nulls(v_options - '{args,expires_in}'::text[] || jsonb_build_object('expires_at', v_expires_at))
            || coalesce((select jsonb_object_agg(f.key, f.value) from jsonb_each(r.row - 'args') f
                         where f.value <> 'null' and (f.key <> v_key or f.key = any (v_names)) is not false), '{}')
            || jsonb_build_object(
                'kind', v_kind,
                'args', case when jsonb_typeof(r.row -> 'args') = 'object' then coalesce(v_common, '{}') || (r.row -> 'args')
                             else r.row -> 'args' end)
            order by r.nr)
        from unnest(v_rows) with ordinality r (row, nr)));
end
$$;


-- How many jobs wait, now or for a time, for the group of a queue that is furthest behind: in all, and of one priority.
-- It visits each of them. Errors: JQ001 bad options.
create function forebay.backfill_waiting_v1(options jsonb, out waiting bigint, out waiting_alike bigint)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(max(g.waiting), 0)::bigint, coalesce(max(g.alike), 0)::bigint
    from (select sum(d.ready + d.deferred) as waiting,
                 sum(d.ready + d.deferred) filter (where d.priority::text = o.options ->> 'priority') as alike
          from (select forebay._backfill_options(backfill_waiting_v1.options) as options) o, forebay.depth(o.options ->> 'queue') d
          group by d.group_name) g
$$;


-- Note a backfill in chunks; returns its number.
--
-- Parameters: upto, jobs and digests have an element for each chunk.
-- Errors: JQ001 bad options, JQ040 the jobs are not those of the token.
create function forebay.backfill_note_v1(
    kind text, query text, key text, options jsonb, token text, upto text[], jobs bigint[], digests numeric[])
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id   bigint;
    v_jobs bigint := coalesce((select sum(j) from unnest(backfill_note_v1.jobs) j), 0);
begin
    perform forebay.backfill_token_v1(
        backfill_note_v1.kind, backfill_note_v1.options, v_jobs,
        coalesce((select sum(d) from unnest(backfill_note_v1.digests) d), 0), backfill_note_v1.token);
    delete from forebay.backfill b where b.made_at < forebay._now() - interval '30 days';
    insert into forebay.backfill (made_at, made_by, kind, query, options, key, is_fixed, jobs)
    values (forebay._now(), session_user, backfill_note_v1.kind, backfill_note_v1.query, backfill_note_v1.options,
            backfill_note_v1.key, backfill_note_v1.token is not null, v_jobs)
    returning backfill_id into v_id;
    insert into forebay.backfill_chunk (backfill_id, no, upto, jobs, digest)
    select v_id, u.nr, u.upto, u.jobs, u.digest
    from rows from (unnest(backfill_note_v1.upto), unnest(backfill_note_v1.jobs), unnest(backfill_note_v1.digests))
         with ordinality u (upto, jobs, digest, nr);
    return v_id;
end
$$;


-- Take the next chunk of a backfill: the parts of its query, and what was counted of it; no row when all are done.
--
-- Errors: JQ041 no such backfill, or it is another's.
-- Locks: the backfill, so that a chunk is done by one at a time.
create function forebay.backfill_take_v1(backfill_id bigint)
returns table (kind text, query text, options jsonb, key text, is_fixed boolean, no integer, behind text, upto text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_run forebay.backfill;
begin
    select b.* into v_run from forebay.backfill b where b.backfill_id = backfill_take_v1.backfill_id for update;
    if v_run.backfill_id is null then
        raise exception using errcode = 'JQ041',
            message = format('there is no backfill %s', coalesce(backfill_take_v1.backfill_id::text, 'null')),
            detail = jsonb_build_object('backfill_id', backfill_take_v1.backfill_id),
            hint = 'Those in chunks are in the table forebay.backfill, for 30 days.';
    elsif v_run.made_by <> session_user then
        -- Its query would run with the rights of whoever goes on with it.
        raise exception using errcode = 'JQ041',
            message = format('backfill %s was begun by %s', backfill_take_v1.backfill_id, v_run.made_by),
            detail = jsonb_build_object('backfill_id', backfill_take_v1.backfill_id),
            hint = 'Only who began a backfill goes on with it.';
    end if;
    return query
    select v_run.kind, v_run.query, v_run.options, v_run.key, v_run.is_fixed, c.no,
           (select p.upto from forebay.backfill_chunk p where p.backfill_id = c.backfill_id and p.no = c.no - 1),
           c.upto
    from forebay.backfill_chunk c
    where c.backfill_id = backfill_take_v1.backfill_id and c.done_at is null
    order by c.no limit 1;
end
$$;


-- Note that a chunk is done; returns how far the backfill is.
--
-- Errors: JQ040 it was begun with a token, and the chunk has other jobs than were counted; JQ041 no such chunk to be done.
create function forebay.backfill_done_v1(
    backfill_id bigint, no integer, enqueued bigint, digest numeric, out jobs_done bigint, out jobs_all bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_chunk record;
begin
    update forebay.backfill_chunk c set enqueued = backfill_done_v1.enqueued, done_at = forebay._now()
    from forebay.backfill b
    where c.backfill_id = backfill_done_v1.backfill_id and c.no = backfill_done_v1.no and c.done_at is null
      and b.backfill_id = c.backfill_id and b.made_by = session_user
    returning b.is_fixed, c.jobs, c.digest into v_chunk;
    if v_chunk.jobs is null then
        raise exception using errcode = 'JQ041',
            message = format('there is no chunk %s of backfill %s to be done', backfill_done_v1.no, backfill_done_v1.backfill_id),
            detail = jsonb_build_object('backfill_id', backfill_done_v1.backfill_id);
    elsif v_chunk.is_fixed and (v_chunk.jobs, v_chunk.digest) is distinct from (backfill_done_v1.enqueued, backfill_done_v1.digest) then
        raise exception using errcode = 'JQ040',
            message = format('chunk %s of backfill %s has other jobs than were counted: %s, not %s', backfill_done_v1.no,
                             backfill_done_v1.backfill_id, backfill_done_v1.enqueued, v_chunk.jobs),
            hint = 'The chunks before it are enqueued, and nothing of this one. Look at a new dry run of the rest.';
    end if;
    select sum(c.jobs) filter (where c.done_at is not null), sum(c.jobs) into jobs_done, jobs_all
    from forebay.backfill_chunk c where c.backfill_id = backfill_done_v1.backfill_id;
end
$$;


-- Enqueue a job for each row of a query, some thousand at a time; returns how many, and their digest if asked for it.
--
-- With the rights and the search_path of the caller. Each batch is an array, so that memory is bounded.
create function forebay.backfill_run_v1(
    kind text, query text, options jsonb, key text, is_digested boolean, out jobs bigint, out digest numeric)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_row   pg_catalog.jsonb;
    v_rows  pg_catalog.jsonb[] := '{}';
    v_bytes pg_catalog.int8 := 0;
    v_part  pg_catalog.record;
begin
    jobs := 0;
    digest := 0;
    for v_row in execute pg_catalog.format(E'select pg_catalog.to_jsonb(q.*) from (%s\n) q', query) loop
        v_rows := pg_catalog.array_append(v_rows, v_row);
        v_bytes := v_bytes operator(pg_catalog.+) pg_catalog.pg_column_size(v_row)::pg_catalog.int8;
        if pg_catalog.cardinality(v_rows) operator(pg_catalog.>=) 20000 or v_bytes operator(pg_catalog.>=) 8000000::pg_catalog.int8 then
            v_part := forebay.backfill_write_v1(kind, options, key, v_rows, is_digested);
            jobs := jobs operator(pg_catalog.+) v_part.jobs::pg_catalog.int8;
            digest := digest operator(pg_catalog.+) v_part.digest::pg_catalog.numeric;
            v_rows := '{}';
            v_bytes := 0;
        end if;
    end loop;
    v_part := forebay.backfill_write_v1(kind, options, key, v_rows, is_digested);
    jobs := jobs operator(pg_catalog.+) v_part.jobs::pg_catalog.int8;
    digest := digest operator(pg_catalog.+) v_part.digest::pg_catalog.numeric;
end
$$;


-- Count the rows of a query, and the bytes of the arguments they give. With the rights and the search_path of the caller.
create function forebay.backfill_count_v1(query text, out jobs bigint, out bytes bigint, out digest numeric)
language plpgsql volatile
as $$
#variable_conflict use_variable
begin
    execute pg_catalog.format(
        E'select pg_catalog.count(*),
                 coalesce(pg_catalog.sum(pg_catalog.octet_length(
                     coalesce(r.row operator(pg_catalog.->) \'args\'::pg_catalog.text, r.row)::pg_catalog.text)), 0)::pg_catalog.int8,
                 coalesce(pg_catalog.sum(pg_catalog.hashtextextended(r.row::pg_catalog.text collate pg_catalog."C", 0)), 0)
          from (select pg_catalog.to_jsonb(q.*) as row from (%s\n) q) r', query)
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
    v_found pg_catalog.record;
begin
    if token is not null then
        -- Before anything is written, since jobs that are rolled back leave dead rows in the log.
        v_found := forebay.backfill_count_v1(query);
        perform forebay.backfill_token_v1(kind, options, v_found.jobs, v_found.digest, token);
    end if;
    v_found := forebay.backfill_run_v1(kind, query, options, null, token is not null);
    if token is not null then
        perform forebay.backfill_token_v1(kind, options, v_found.jobs, v_found.digest, token);
    end if;
    return v_found.jobs;
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
    v_begun   pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    v_count   pg_catalog.record;
    v_reading pg_catalog.float8;
    v_some    pg_catalog.int8;
begin
    v_count := forebay.backfill_count_v1(query);
    v_reading := pg_catalog.date_part('epoch'::pg_catalog.text, pg_catalog.clock_timestamp() operator(pg_catalog.-) v_begun);
    token := forebay.backfill_token_v1(kind, options, v_count.jobs, v_count.digest);
    jobs := v_count.jobs;
    bytes := v_count.bytes;
    begin
        v_begun := pg_catalog.clock_timestamp();
        v_some := (forebay.backfill_run_v1(kind, pg_catalog.concat(E'select * from (', query, E'\n) sample limit 2000'), options, null, false)).jobs;
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
    select w.waiting, w.waiting_alike into waiting, waiting_alike from forebay.backfill_waiting_v1(options) w;
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
    v_row     pg_catalog.record;
    v_last    pg_catalog.text;
    v_count   pg_catalog.int8 := 0;
    v_digest  pg_catalog.numeric := 0;
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
                 pg_catalog.hashtextextended(pg_catalog.to_jsonb(q.*)::pg_catalog.text collate pg_catalog."C", 0) as digest
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
    return forebay.backfill_note_v1(kind, query, key, options, token, v_upto, v_jobs, v_digests);
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
    v_found pg_catalog.record;
    v_done  pg_catalog.record;
begin
    select t.* into v_chunk from forebay.backfill_take_v1(backfill_id) t;
    if v_chunk.no is null then
        return;
    end if;
    v_found := forebay.backfill_run_v1(
        v_chunk.kind,
        pg_catalog.format(
            E'select * from (%1$s\n) chunk where chunk.%2$I <= %3$L%4$s order by chunk.%2$I',
            v_chunk.query, v_chunk.key, v_chunk.upto,
            case when v_chunk.behind is not null then pg_catalog.format(' and chunk.%I > %L', v_chunk.key, v_chunk.behind) end),
        v_chunk.options, v_chunk.key, v_chunk.is_fixed);
    v_done := forebay.backfill_done_v1(backfill_id, v_chunk.no, v_found.jobs, v_found.digest);
    enqueued := v_found.jobs;
    jobs_done := v_done.jobs_done;
    jobs_all := v_done.jobs_all;
    return next;
end
$$;
