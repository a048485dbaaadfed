-- grant: operator, reader

-- Find jobs by what a person has at hand: an id, a subject, a correlation id, an ordering key, a
-- limit key, an endpoint, a unique key or the key of a signal that a flow waits for. Newest first, at most `most`, 1 to 100.
--
-- Columns:
--   found_as  job, subject (its newest runs, of all queues), correlation id, ordering key, limit
--             key, endpoint (its newest deliveries), unique key or signal (the flows that wait for it). A number is the id of a job if
--             there is such a job, unless `as_key` is true: then jobs and subjects are left out
--   is_last   the search was complete; false: it has looked at the newest 1,000,000 rows without a
--             summary
--
-- Errors: JQ001 `most` is out of range, or `what` is empty or too long.
-- See: docs/howto/look-back.md
-- pages: 400 + 60 a segment
create function forebay.where_is(what text, most integer default 20, as_key boolean default false)
returns table (job_id bigint, found_as text, is_last boolean)
language plpgsql stable security definer
rows 20
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    -- The columns of a job by which it is found.
    v_names constant text[] := array['correlation_id', 'ordering_key', 'limit_key', 'unique_key'];
    v_found record;
    v_which text;
    v_waiting bigint[];
begin
    if (where_is.most between 1 and 100) is not true then
        raise exception using errcode = 'JQ001', column = 'most', message = format('most %s is outside 1 to 100', coalesce(where_is.most::text, 'null'));
    elsif (length(where_is.what) between 1 and 1000) is not true then
        raise exception using errcode = 'JQ001', column = 'what', message = 'what must have 1 to 1000 characters';
    end if;
    if not where_is.as_key and where_is.what ~ E'^\\d{1,18}$' and (
            exists (select from forebay._rows_of(where_is.what::bigint)) or exists (select from forebay.deferred d where d.job_id = where_is.what::bigint)) then
        return query select where_is.what::bigint, 'job', true;
        return;
    end if;
    return query
        select r.job_id, 'subject', true
        from (select distinct s.job_id from forebay._subjects_named(where_is.what) n
              cross join lateral (select i.job_id from forebay.subject_state i where i.subject_id = n.subject_id and i.job_id is not null
                                  order by i.no desc, i.part desc limit 2 * where_is.most) s
              where not where_is.as_key) r
        order by r.job_id desc limit where_is.most;
    if found then
        return;
    end if;
    v_waiting := array(select distinct w.job_id from forebay.signal_waits(where_is.what) w order by w.job_id desc limit where_is.most);
    return query select u.job_id, 'signal', true from unnest(v_waiting) u (job_id);
    select f.job_ids, f.next is null as is_last into v_found
    from forebay._find_jobs(
        (select '(' || string_agg(format('j.%I = %L', n, where_is.what), ' or ') || ')' from unnest(v_names) n), null, '&&',
        array(select forebay._term(n, where_is.what) from unnest(v_names) n), null, null, null, where_is.most, null, 1000000, 1) f;
    foreach job_id in array v_found.job_ids[: where_is.most - cardinality(v_waiting)] loop
        continue when job_id = any (v_waiting);
        found_as := forebay._found_as(job_id, v_names, where_is.what);
        is_last := v_found.is_last;
        return next;
    end loop;
end
$$;


-- Which of some columns of a job has this value, as words.
create function forebay._found_as(p_job_id bigint, p_names text[], p_value text) returns text
language sql stable
as $$
    select case when n = 'limit_key' and l.queue = 'forebay.deliver' then 'endpoint' else replace(n, '_', ' ') end
    from (select to_jsonb(r) as row, r.lane from forebay._rows_of(p_job_id) r
          union all select to_jsonb(d), d.lane from forebay.deferred d where d.job_id = p_job_id limit 1) j
    cross join lateral (select i.queue from forebay.lane i where i.lane = j.lane limit 1) l
    cross join unnest(p_names) with ordinality u (n, nr)
    where j.row ->> n = p_value
    order by u.nr limit 1
$$;
