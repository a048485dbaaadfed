-- grant: producer, worker

-- Enqueue a job for each of some rows; returns their number and, with `is_digested`, a digest of
-- the rows that ignores their order. A row holds the arguments of its job. If it has a field
-- `args`, that field has the arguments, and the other fields are options. `key` is a field that is
-- neither argument nor option; null: none. The jobs are counted in the event of the backfill, which
-- the first call writes and returns, or in chunk `no` of a backfill.
--
-- Errors: as forebay.enqueue_many().
create function forebay.backfill_write_v1(
    kind text, options jsonb, key text, rows jsonb[], is_digested boolean, query text, inout event bigint default null,
    backfill_id bigint default null, no integer default null, out jobs bigint, out digest numeric)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_names  constant text[] := array['queue', 'priority', 'delay', 'run_at', 'expires_at', 'unique_as', {options keys}];
    v_kind   constant text := backfill_write_v1.kind;
    v_key    constant text := backfill_write_v1.key;
    v_options constant jsonb := forebay._backfill_options(backfill_write_v1.kind, backfill_write_v1.options);
    v_rows   jsonb[] := backfill_write_v1.rows;
    v_common constant jsonb := v_options -> 'args';
    v_job    forebay._job_input;
    v_delay  interval;
    v_expires_at timestamptz;
begin
    jobs := cardinality(v_rows);
    if is_digested then
        -- Of the text: a hash of jsonb ignores the sign of a number.
        select coalesce(sum(hashtextextended(r::text collate "C", 0)), 0) into digest from unnest(v_rows) r;
    end if;
    if jobs = 0 then
        return;
    elsif backfill_id is not null then
        update forebay.backfill_chunk c set enqueued = coalesce(c.enqueued, 0) + backfill_write_v1.jobs
        from forebay.backfill b
        where c.backfill_id = backfill_write_v1.backfill_id and c.no = backfill_write_v1.no and c.done_at is null
          and b.backfill_id = c.backfill_id and b.made_by = session_user and b.made_as = forebay._role_in_use();
    elsif not forebay._count_in_event(
            event, v_kind, v_options ->> 'queue', left(backfill_write_v1.query, 2000), backfill_write_v1.jobs) then
        event := forebay._record_event('backfill', v_options ->> 'queue', p_kind => v_kind, p_count => backfill_write_v1.jobs,
                                       p_new => jsonb_build_object('stated_query', left(backfill_write_v1.query, 2000)));
    end if;
    if v_options ? 'subjects' then
        perform forebay._push_rows(v_kind, v_options, v_key, v_rows);
        return;
    end if;
    begin
        -- This loop writes nothing: a subtransaction for each batch would soon exceed what a snapshot can list.
        v_job := jsonb_populate_record(null::forebay._job_input, v_options);
        v_delay := make_interval(secs => case when v_job.delay < 0 then 0 else v_job.delay end);
        v_expires_at := coalesce(
            v_job.expires_at,
            greatest(forebay._now(), v_job.run_at, forebay._now() + v_delay)
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
            v_kind, v_rows, queue => v_job.queue, priority => v_job.priority, delay => v_delay, run_at => v_job.run_at,
            expires_at => v_expires_at, {options passed of v_job});
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

-- Count jobs in the event of a backfill. False if the event is not of this user, kind, queue and query: the caller writes one.
create function forebay._count_in_event(p_event_id bigint, p_kind text, p_queue text, p_query text, p_jobs bigint)
returns boolean
language plpgsql volatile
-- planner: indexed
as $$
begin
    update forebay.event e set count = e.count + p_jobs
    where e.event_id = p_event_id and e.role = session_user and e.act = 'backfill' and e.kind = p_kind and e.queue = p_queue
      and e.new ->> 'stated_query' = p_query;
    return found;
end;
$$;


-- Create a subject for each of some rows of a backfill; those that exist are left as they are.
create function forebay._push_rows(p_kind text, p_options jsonb, p_key text, p_rows jsonb[]) returns void
language plpgsql volatile
as $$
declare
    v_names  constant text[] := array['subject', 'queue', 'priority', 'delay', 'run_at', 'expires_at', 'version', {options keys}];
    v_common constant jsonb := coalesce(p_options -> 'args', '{}');
    v_all    constant jsonb := p_options - '{args,subjects}'::text[] || jsonb_build_object('kind', p_kind);
    v_has_args constant boolean := p_rows[1] ? 'args';
    v_bad    bigint;
begin
    select min(r.nr) - 1 into v_bad from unnest(p_rows) with ordinality r (row, nr) where r.row ->> 'subject' is null;
    if v_bad is not null then
        raise exception using errcode = 'JQ001', message = format('subject %s: has no name', v_bad), detail = jsonb_build_object('index', v_bad),
            hint = 'Nothing was enqueued. Give the query a column subject without nulls: with the same names, the same backfill makes nothing twice.';
    end if;
    perform forebay.push_subjects((
        select jsonb_agg(
            v_all
            || case when v_has_args
                    then coalesce((select jsonb_object_agg(f.key, f.value) from jsonb_each(r.row - 'args') f
                                   where f.value <> 'null' and (f.key <> p_key or f.key = any (v_names)) is not false), '{}')
                    else jsonb_build_object('subject', r.row -> 'subject') end
            || jsonb_build_object('args', case when not v_has_args then v_common || (r.row - 'subject')
                                               when jsonb_typeof(r.row -> 'args') = 'object' then v_common || (r.row -> 'args')
                                               else r.row -> 'args' end)
            order by r.nr)
        from unnest(p_rows) with ordinality r (row, nr)));
end
$$;
