-- grant: operator, reader

-- Search the whole log, ended jobs too, newest first, at a bounded cost. A call reads at most
-- `budget` rows and asks for the states of at most `states` jobs; blocks without a match are skipped by their
-- summaries and cost nothing. The first call looks at the newest 50,000 scheduled jobs, too. Each
-- job is found once, by its first row. Call again with `before` = `next` until `next` is null: a
-- call may find nothing and not be the last.
--
-- Parameters:
--   filter      as that of forebay.change_jobs(), without `state`; or `{"all": true}`
--   only_state  as in forebay.job(), in any group
--   contains    a text in the arguments or in an error, in upper or lower case
--   most        1 to 1000 jobs
--   before      only jobs whose first row has a lower number
--   budget      1000 to 10,000,000 rows
--   states      1 to 10,000 jobs whose state is looked up, about a millisecond for each
--
-- Columns:
--   job_ids    newest first
--   next       null: nothing is left
--   looked_at  rows that were read
--   remaining  rows that are left, at most
--
-- Errors: JQ001 a bad filter, state, text or number.
-- See: docs/howto/look-back.md#search-jobs
create function forebay.search_jobs(
    filter jsonb default '{"all": true}', only_state text default null, contains text default null, most integer default 50,
    before bigint default null, budget integer default 200000, states integer default 1000,
    out job_ids bigint[], out next bigint, out looked_at bigint, out remaining bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_filter constant jsonb := forebay._checked_filter(search_jobs.filter);
begin
    if (search_jobs.most between 1 and 1000) is not true then
        raise exception using errcode = 'JQ001', column = 'most', message = format('most %s is outside 1 to 1000', coalesce(search_jobs.most::text, 'null'));
    elsif (search_jobs.budget between 1000 and 10000000) is not true then
        raise exception using errcode = 'JQ001', column = 'budget',
            message = format('budget %s is outside 1000 to 10000000', coalesce(search_jobs.budget::text, 'null'));
    elsif (search_jobs.states between 1 and 10000) is not true then
        raise exception using errcode = 'JQ001', column = 'states',
            message = format('states %s is outside 1 to 10000', coalesce(search_jobs.states::text, 'null'));
    elsif search_jobs.contains = '' or length(search_jobs.contains) > 1000 then
        raise exception using errcode = 'JQ001', column = 'contains', message = 'contains must have 1 to 1000 characters';
    elsif v_filter ? 'state' then
        raise exception using errcode = 'JQ001', column = 'filter', message = 'the filter of a search has no state', hint = 'Use only_state.';
    end if;
    perform forebay._check_state(search_jobs.only_state);
    select f.job_ids, f.next, f.looked_at, f.remaining into job_ids, next, looked_at, remaining
    from forebay._find_jobs(
        forebay._first_rows_filter_sql(v_filter) || forebay._contains_sql(search_jobs.contains), v_filter ->> 'queue', '@>',
        forebay._terms_of(v_filter), (v_filter ->> 'enqueued_after')::timestamptz, (v_filter ->> 'enqueued_before')::timestamptz,
        search_jobs.only_state, search_jobs.most, search_jobs.before, search_jobs.budget, search_jobs.states) f;
end
$$;


-- Refuse what is not a state of a job; null passes.
--
-- Errors: JQ001.
create function forebay._check_state(p_state text) returns void
language plpgsql immutable
as $$
begin
    if p_state not in ('scheduled', 'ready', 'claimed', 'running', 'retrying', 'done', 'cancelled', 'expired', 'dead') then
        raise exception using errcode = 'JQ001', column = 'state', message = format('unknown state %s', quote_literal(left(p_state, 40))),
            hint = 'States are scheduled, ready, claimed, running, retrying, done, cancelled, expired and dead.';
    end if;
end
$$;


-- The conditions of a checked filter on a row j of the log or of deferred, as SQL. Queue and state are not among them.
create function forebay._first_rows_filter_sql(p_filter jsonb) returns text
language sql stable
as $$
    select forebay._filter_sql(p_filter - 'ids')
        || case when p_filter ? 'ids'
                then format(' and coalesce(j.job_id, j.seq) = any (%L::bigint[])', translate(p_filter ->> 'ids', '[]', '{}')) else '' end
$$;


-- The condition that arguments or an error of a row j contain a text, as SQL.
create function forebay._contains_sql(p_text text) returns text
language sql stable
as $$
    select case when p_text is null then '' else format(
        ' and (position(lower(%1$L) in lower(j.args::text)) > 0
               or exists (select from forebay.failure f where f.job_id = coalesce(j.job_id, j.seq)
                          and position(lower(%1$L) in lower(concat_ws('': '', f.error_type, f.message))) > 0))', p_text) end
$$;


-- What each match of a filter has: one hash for each of its texts.
create function forebay._terms_of(p_filter jsonb) returns integer[]
language sql immutable
as $$
    select array(select forebay._term(f.key, f.value) from jsonb_each_text(p_filter) f
                 where f.key in ('kind', 'tag', 'correlation_id', 'ordering_key', 'limit_key', 'unique_key', 'subject') order by 1)
$$;


-- The jobs whose first rows j meet a condition, newest first. See forebay.search_jobs().
--
-- Parameters: p_operator, how the terms of a block must relate to p_terms if there are any: @> all, && one of them.
create function forebay._find_jobs(
    p_condition text, p_queue text, p_operator text, p_terms integer[], p_since timestamptz, p_until timestamptz, p_state text,
    p_most integer, p_before bigint, p_budget bigint, p_states integer,
    out job_ids bigint[], out next bigint, out looked_at bigint, out remaining bigint)
language plpgsql stable
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_last     constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    v_hi       bigint := least(v_last + 1, p_before);
    v_position constant bigint := forebay._archived_up_to();
    v_lanes    constant bigint[] := array(select distinct l.lane from forebay.lane l where p_queue is null or l.queue = p_queue);
    v_public   constant bigint[] := array(select distinct l.lane from forebay.lane l where l.audience = 0 and (p_queue is null or l.queue = p_queue));
    v_lo       bigint;
    v_examined integer := 0;
    v_is_over  boolean := false;
    v_block    record;
    v_job      record;
    v_promoted forebay.promotion;
begin
    job_ids := '{}';
    looked_at := 0;
    if p_before is null then
        select p.* into v_promoted from forebay.promotion p order by p.no desc limit 1;
        for v_job in execute format(
            'select j.job_id from (select i.*, i.job_id as seq from forebay.deferred i where i.kind <> '''' order by i.job_id desc limit 50000) j
             where j.lane = any ($1) and %s
               and not ($2 is not null and pg_visible_in_snapshot(j.xid, $2) and (j.run_at, j.deferred_id) <= ($3, $4))
             limit $5', p_condition)
            using v_public, v_promoted.snap, v_promoted.run_at, v_promoted.deferred_id, p_most
        loop
            if p_state is null or exists (select from forebay.job(v_job.job_id) s where s.state = p_state) then
                job_ids := job_ids || v_job.job_id;
            end if;
        end loop;
    end if;
    -- What is not summarized, in pieces, and the blocks that may match.
    v_hi := greatest(v_hi, 1);
    for v_block in
        select p.lo, p.hi, p.hi - p.lo as rows
        from (select greatest(g.lo, v_position) as lo, least(g.lo + 4096, v_hi) as hi from generate_series(v_hi - 4096, v_position - 4095, -4096) g (lo)) p
        where p.hi > p.lo
        union all
        select b.lo, least(b.hi, v_hi), least(b.row_count, v_hi - b.lo) from forebay._blocks_with(p_operator, p_terms, 1, v_hi, p_since, p_until) b
        order by lo desc
    loop
        v_lo := v_block.lo;
        v_is_over := looked_at >= p_budget;
        exit when v_is_over;
        for v_job in execute forebay._first_rows_sql(v_block.lo, v_block.hi, p_condition) using v_block.lo, v_block.hi, v_lanes, v_public loop
            v_examined := v_examined + (p_state is not null)::integer;
            if p_state is null or exists (select from forebay.job(v_job.job_id) s where s.state = p_state) then
                job_ids := job_ids || v_job.job_id;
            end if;
            v_is_over := cardinality(job_ids) >= p_most or v_examined >= p_states;
            if v_is_over then
                v_lo := v_job.seq;
                exit;
            end if;
        end loop;
        looked_at := looked_at + least(v_block.rows, v_block.hi - v_lo);
        v_hi := v_lo;
        exit when v_is_over;
    end loop;
    if not v_is_over then
        v_hi := 1;  -- Nothing is left.
    end if;
    remaining := greatest(v_hi - v_position, 0)
        + coalesce((select sum(b.row_count) from forebay.archive_block b where b.lo < v_hi), 0);
    next := case when remaining > 0 then v_hi end;
end
$$;


-- A query for the first rows with numbers from $1 to below $2 that meet a condition on j, highest number first: those in lanes $3
-- whose number is their job's id, and those in public lanes $4. It names the segments of that range only.
create function forebay._first_rows_sql(p_lo bigint, p_hi bigint, p_condition text) returns text
language sql stable
as $$
    select coalesce(string_agg(format(
               'select coalesce(j.job_id, j.seq) as job_id, j.seq, j.lane, j.enqueued_at,
                       coalesce(j.headers ? ''forebay-redacted'', false) as is_redacted
                from forebay.log_%s j
                where j.seq >= $1 and j.seq < $2 and j.kind <> '''' and j.lane = any ($3) and (j.job_id is null or j.lane = any ($4)) and %s',
               s.segment_id, p_condition), ' union all '),
           'select 0::bigint as job_id, 0::bigint as seq, 0::bigint as lane, now() as enqueued_at, false as is_redacted where false') || ' order by seq desc'
    from forebay.segment s
    where s.lo < p_hi and s.hi > p_lo and s.removed_at is null and forebay._has_table(s.segment_id)
$$;


-- The blocks that have numbers from p_lo to below p_hi, and may have rows that were enqueued from p_since to before p_until and have terms: @> all, && one of
-- them; no terms: any.
create function forebay._blocks_with(p_operator text, p_terms integer[], p_lo bigint, p_hi bigint, p_since timestamptz, p_until timestamptz)
returns table (lo bigint, hi bigint, row_count integer, first_at timestamptz)
language plpgsql stable
-- planner: indexed
as $$
begin
    -- Terms first, and alone: a plan that begins with the numbers would read the terms of all blocks.
    return query execute format(
        'with b as materialized (
             select i.lo, i.hi, i.row_count, i.segment_id, i.first_at, i.last_at from forebay.archive_block i where i.row_count > 0 and %s)
         select b.lo, b.hi, b.row_count, b.first_at from b join forebay.segment s using (segment_id)
         where b.hi > $2 and b.lo < $3 and s.removed_at is null and coalesce(b.last_at >= $4, true) and coalesce(b.first_at < $5, true)',
        case when p_terms = '{}' then 'i.lo < $3' else format('i.terms %s $1', p_operator) end)
        using p_terms, p_lo, p_hi, p_since, p_until;
end
$$;
