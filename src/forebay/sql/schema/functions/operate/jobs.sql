-- grant: operator, reader

-- The newest jobs, newest first, one row for each group of the job's queue. An enqueue, a retry or
-- a redrive brings a job to the top. The search is bounded (2,000 jobs, 1,000,000 numbers), so it
-- may miss jobs in a rare state.
--
-- Parameters:
--   only_queue, only_kind, only_state
--           null: any
--   most    1 to 1000 rows
--   before  the `place` of the previous page's last row
--   filter  that of forebay.change_jobs() without `ids` and `state`; ended jobs match too
--
-- Errors: JQ001 a bad `most` or state.
--
-- Inside: newest by the number of a job's latest row. It walks back over the log, some thousand
-- numbers at a time.
-- pages: 500 + 400 a job
create function forebay.jobs(
    only_queue text default null, only_kind text default null, only_state text default null,
    most integer default 50, before bigint default null, filter jsonb default null)
returns table (job_id bigint, group_name text, state text, queue text, priority integer, attempt integer, enqueued_at timestamptz,
               run_at timestamptz, expires_at timestamptz, {job types}, cancel_requested boolean,
               worker text, claimed_at timestamptz, ended_at timestamptz, redriven_from bigint, redriven_as bigint,
               redriven_from_dead_id bigint, dead_id bigint, unique_key text, place bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_step  constant bigint := 5000;
    v_last  constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    v_hi    bigint := least(v_last + 1, case when jobs.before < 0 then 0 else jobs.before end);
    v_lo    bigint;
    v_end   bigint := v_hi - 1000000;
    v_lanes bigint[];
    v_filter  constant jsonb := case when jobs.filter is not null then forebay._checked_filter(jobs.filter) end;
    v_seen  bigint[] := '{}';
    v_left  integer := jobs.most;
    v_examined integer := 0;
    v_found record;
    v_count bigint;
begin
    if jobs.most is null or jobs.most not between 1 and 1000 then
        raise exception using errcode = 'JQ001', column = 'most',
            message = format('most %s is outside 1 to 1000', coalesce(jobs.most::text, 'null'));
    elsif jobs.only_state not in ('scheduled', 'ready', 'claimed', 'running', 'retrying', 'done', 'cancelled', 'expired', 'dead') then
        raise exception using errcode = 'JQ001', column = 'state',
            message = format('unknown state %s', quote_literal(left(jobs.only_state, 40))),
            hint = 'States are scheduled, ready, claimed, running, retrying, done, cancelled, expired and dead.';
    end if;
    if v_filter ?| array['ids', 'state'] then
        raise exception using errcode = 'JQ001', column = 'filter', message = 'the filter of a list has no ids and no state',
            hint = 'Use only_state, or forebay.job() for single jobs.';
    elsif jobs.only_queue is not null or v_filter ? 'queue' then
        v_lanes := array(select distinct l.lane from forebay.lane l
                         where (jobs.only_queue is null or l.queue = jobs.only_queue)
                           and (v_filter ->> 'queue' is null or l.queue = v_filter ->> 'queue'));
    end if;

    while v_hi > greatest(v_end, 1) loop
        v_lo := greatest(v_hi - v_step, 1);
        for v_found in execute forebay._rows_between_sql(v_lo, v_hi, forebay._filter_sql(v_filter))
            using v_lo, v_hi, jobs.only_kind, v_lanes
        loop
            continue when v_found.job_id = any (v_seen);
            v_seen := v_seen || v_found.job_id;
            v_examined := v_examined + 1;
            return query select j.*, v_found.place from forebay.job(v_found.job_id) j
                where jobs.only_state is null or j.state = jobs.only_state;
            get diagnostics v_count = row_count;
            v_left := v_left - v_count;
            if v_left <= 0 or v_examined >= 2000 then
                return;
            end if;
        end loop;
        v_hi := v_lo;
    end loop;
end
$$;


-- A query for the rows of the log and of the deferred jobs with numbers from $1 to below $2, of kind $3 and in
-- lanes $4 where these are not null, which meet a condition on j, highest number first. It names the segments of that range only.
create function forebay._rows_between_sql(p_lo bigint, p_hi bigint, p_condition text) returns text
language sql stable
as $$
    select coalesce(string_agg(format(
               'select coalesce(j.job_id, j.seq) as job_id, j.seq as place from forebay.log_%s j
                where j.seq >= $1 and j.seq < $2 and j.kind <> '''' and ($3 is null or j.kind = $3) and ($4 is null or j.lane = any ($4)) and %s
                union all ', s.segment_id, p_condition), ''), '')
        || format('select j.job_id, j.job_id as place from forebay.deferred j
            where j.kind <> '''' and j.job_id >= $1 and j.job_id < $2 and ($3 is null or j.kind = $3) and ($4 is null or j.lane = any ($4)) and %s
            order by place desc', p_condition)
    from forebay.segment s
    where s.lo < p_hi and s.hi > p_lo and s.removed_at is null and forebay._has_table(s.segment_id)
$$;
