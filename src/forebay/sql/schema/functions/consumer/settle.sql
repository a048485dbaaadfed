-- How jobs of forebay.take() end, or that they run again. Each function settles any number of jobs, also of several workers, and
-- returns what became of each.
-- grant: worker

-- The jobs are done. Returns a row for each token, in the order of `tokens`.
--
-- Parameters:
--   tokens      of forebay.take(), at most 1,000
--   results     null, or a JSON array with the result of each job
--   keep        how long results are kept, up to ten years; null: they are only passed to follow-ups
--   follow_ups  null, or a JSON array with what follows each job: null, or an object with `kind` and,
--               if needed, `queue`, `priority`, `delay` and `expires_in` (seconds), `max_attempts`,
--               `tag`, `correlation_id`, `headers`, `ordering_key` and `limit_key`
--   subjects    null, or a JSON array with what the run of a subject means for it: null for a
--               subject that is completed, or an object with `then` (`again`, `complete`, `drop`); for
--               `again` one of `at`, `after` (seconds), `every` (seconds) and `interval`; and, to
--               change them, `data` and `args`
--
-- Statuses:
--   settled  now, by this call
--   already  before, by a call of this worker, whatever it said
--   lost     the worker had lost the job: its lease had ended, or a crash of the server undid the
--            claim. Nothing was changed; the job runs again elsewhere, or has
--
-- Example:
--   select * from forebay.done(array['4611686018427387904-457063833600000000-1']);
--
-- Errors: JQ001 a text that is no token, or a bad value; JQ002, JQ003 bad arguments of a subject;
--   40001 in a REPEATABLE READ transaction that began before the worker lost the job.
-- Transaction: any. With your own writes in the same transaction, effect and end are one commit;
--   commit within five seconds of the call.
-- Locks: the leases (KEY SHARE).
-- See: docs/howto/workers-in-other-languages.md
--
-- Inside: Invariants "single holder", "one settlement for each token".
create function forebay.done(
    tokens text[], results jsonb default null, keep interval default '1 day', follow_ups jsonb default null, subjects jsonb default null)
returns table (token text, status text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
#variable_conflict use_column
declare
    v_keep    constant double precision := extract(epoch from done.keep);
    v_problem text;
begin
    perform forebay._check_tokens(done.tokens), forebay._check_each('results', done.results, done.tokens),
            forebay._check_each('follow_ups', done.follow_ups, done.tokens), forebay._check_each('subjects', done.subjects, done.tokens),
            forebay._require('keep', coalesce(v_keep > 0 and v_keep <= 315360000, true), done.keep::text, 'above 0 and at most ten years');
    select forebay._follow_up_problem(f.value) into v_problem
    from jsonb_array_elements(done.follow_ups) f
    where jsonb_typeof(f.value) <> 'null' and forebay._follow_up_problem(f.value) is not null limit 1;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', column = 'follow_ups', message = v_problem,
            hint = 'Nothing was settled. A follow-up has a kind, and options as at an enqueue.';
    end if;
    perform forebay._check_subject_end(s.value) from jsonb_array_elements(done.subjects) s where jsonb_typeof(s.value) <> 'null';
    return query
    select s.token, s.status
    from forebay._settle_held(done.tokens, array(
        select nullif(
                   case when t.token like '%s' then jsonb_build_object('subject', coalesce(nullif(done.subjects -> i.nr, 'null'), '{"then": "complete"}')) else '{}' end
                   || case when done.results is not null and v_keep is not null then jsonb_build_object('kept', r.kept) else '{}' end
                   || case when jsonb_typeof(done.follow_ups -> i.nr) = 'object'
                           then jsonb_build_object('follow_up', done.follow_ups -> i.nr || jsonb_build_object('returned', r.kept)) else '{}' end,
                   '{}') || '{"outcome": "done"}'
        from unnest(done.tokens) with ordinality t (token, nth)
        cross join lateral (select t.nth::integer - 1 as nr) i
        cross join lateral (select jsonb_build_object('value', coalesce(done.results -> i.nr, 'null'), 'seconds', coalesce(v_keep, 0)) as kept) r
        order by t.nth), forebay._child_ends(done.tokens, done.results)) s;
end
$$;


-- Attempts of the jobs have failed. Each job runs again later; one that has no attempt left becomes
-- a dead letter with the reason `exhausted`. Returns a row for each token, as forebay.done() does.
--
-- Parameters:
--   tokens     of forebay.take(), at most 1,000
--   error      what happened, for people; 4,096 characters are kept
--   type       the class of the error; dead letters with one kind and class have one cause
--   traceback  where it happened; 16,384 characters are kept
--   retry_at   when they run again; null: by the settings of the database that begin with `retry_`,
--              see forebay.settings()
--
-- The maximum of attempts is that of the job, else that of its queue, else that of the database. A
-- job with a cancellation request is cancelled instead.
--
-- Errors: JQ001 a text that is no token, or a bad value; 40001 as forebay.done().
-- Transaction: any; see forebay.done().
-- Locks: the leases (KEY SHARE).
-- See: docs/howto/workers-in-other-languages.md
create function forebay.failed(
    tokens text[], error text, type text default 'Error', traceback text default null, retry_at timestamptz default null)
returns table (token text, status text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
#variable_conflict use_column
declare
    v_error constant jsonb := jsonb_strip_nulls(jsonb_build_object('type', failed.type, 'message', failed.error, 'traceback', failed.traceback));
    v_after constant double precision := case when isfinite(failed.retry_at) then extract(epoch from failed.retry_at - forebay._now()) end;
begin
    perform forebay._check_tokens(failed.tokens),
            forebay._require('error', failed.error is not null, null, 'a text'), forebay._require('type', length(failed.type) > 0, failed.type, 'a name'),
            forebay._require('retry_at', coalesce(isfinite(failed.retry_at) and v_after <= 3155760000, true), failed.retry_at::text,
                             'a time within a hundred years');
    return query
    select s.token, s.status
    from forebay._settle_held(failed.tokens, array(
        select case when r.is_cancelled then '{"outcome": "cancelled"}'
                    when r.used + 1 >= r.most
                    then jsonb_build_object('outcome', 'dead', 'reason', 'exhausted', 'holds_key', r.holds_key)
                    else jsonb_build_object('outcome', 'retried', 'after', greatest(0, coalesce(
                             v_after, forebay._retry_delay(r.used + 1)))) end
               || jsonb_build_object('error', v_error || jsonb_build_object('max_attempts', r.most))
        from forebay._held_rows(failed.tokens) r order by r.nr)) s;
end
$$;


-- The jobs run again later, without using an attempt. Returns a row for each token, as
-- forebay.done() does.
--
-- Parameters:
--   tokens  of forebay.take(), at most 1,000
--   delay   0 to a hundred years
--
-- Errors: JQ001 a text that is no token, or a bad delay; 40001 as forebay.done().
-- Transaction: any; see forebay.done().
-- Locks: the leases (KEY SHARE).
-- See: docs/howto/workers-in-other-languages.md
create function forebay.snooze(tokens text[], delay interval)
returns table (token text, status text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
#variable_conflict use_column
declare
    v_after constant double precision := extract(epoch from snooze.delay);
begin
    perform forebay._check_tokens(snooze.tokens),
            forebay._require('delay', v_after between 0 and 3155760000, snooze.delay::text, '0 to a hundred years');
    return query
    select s.token, s.status
    from forebay._settle_held(snooze.tokens, array_fill(
        jsonb_build_object('outcome', 'snoozed', 'after', v_after), array[cardinality(snooze.tokens)])) s;
end
$$;


-- No retry can help: the jobs become dead letters with the reason `permanent`, and use an attempt.
-- Returns a row for each token, as forebay.done() does.
--
-- Parameters:
--   tokens  of forebay.take(), at most 1,000
--   reason  for people; 4,096 characters are kept
--   type    the class of the error
--
-- Errors: JQ001 a text that is no token, or no reason; 40001 as forebay.done().
-- Transaction: any; see forebay.done().
-- Locks: the leases (KEY SHARE).
-- See: docs/howto/workers-in-other-languages.md
create function forebay.dead(tokens text[], reason text, type text default 'Dead')
returns table (token text, status text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
#variable_conflict use_column
begin
    perform forebay._check_tokens(dead.tokens),
            forebay._require('reason', dead.reason is not null, null, 'a text'), forebay._require('type', length(dead.type) > 0, dead.type, 'a name');
    return query
    select s.token, s.status
    from forebay._settle_held(dead.tokens, array(
        select jsonb_build_object(
                   'outcome', 'dead', 'reason', 'permanent', 'holds_key', r.holds_key,
                   'error', jsonb_build_object('type', dead.type, 'message', dead.reason, 'max_attempts', r.most))
        from forebay._held_rows(dead.tokens) r order by r.nr)) s;
end
$$;


-- Give jobs back that were not started, or were interrupted: they are ready at once, and no attempt
-- is used. Returns a row for each token, as forebay.done() does. forebay.leave() gives all back.
--
-- Parameters:
--   tokens  of forebay.take(), at most 1,000
--
-- Errors: JQ001 a text that is no token; 40001 as forebay.done().
-- Transaction: any; see forebay.done().
-- Locks: the leases (KEY SHARE).
-- See: docs/howto/workers-in-other-languages.md
create function forebay.release(tokens text[])
returns table (token text, status text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
#variable_conflict use_column
begin
    perform forebay._check_tokens(release.tokens);
    return query
    select s.token, s.status
    from forebay._settle_held(release.tokens, array_fill('{"outcome": "released"}'::jsonb, array[cardinality(release.tokens)])) s;
end
$$;


-- What a token names: lease, claim and place of a job.
create function forebay._place_of(p_token text, out lease_id bigint, out claim_no bigint, out place integer)
language sql immutable
as $$
    select m.part[1]::numeric::bigint, m.part[2]::numeric::bigint, m.part[3]::integer
    from regexp_match(p_token, '^([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,5})s?$') m (part)
    where m.part[1]::numeric <= 9223372036854775807 and m.part[2]::numeric <= 9223372036854775807 and m.part[3]::integer between 1 and 10000
$$;


-- Errors: JQ001.
create function forebay._check_tokens(p_tokens text[]) returns void
language plpgsql immutable
as $$
declare
    v_wrong record;
begin
    perform forebay._require('tokens', cardinality(p_tokens) <= 1000 and coalesce(array_ndims(p_tokens), 1) = 1,
                             case when p_tokens is not null then cardinality(p_tokens) || ' tokens' end, 'a list of at most 1000 tokens');
    select t.token, p.place into v_wrong
    from unnest(p_tokens) t (token) left join lateral forebay._place_of(t.token) p on true where p.place is null limit 1;
    if found then
        perform forebay._require('tokens', false, v_wrong.token, 'a token, as take() returns it');
    end if;
end
$$;


-- Errors: JQ001 unless a parameter is null, or a JSON array with a value for each token.
create function forebay._check_each(p_parameter text, p_values jsonb, p_tokens text[]) returns void
language plpgsql immutable
as $$
begin
    perform forebay._require(p_parameter, p_values is null or jsonb_typeof(p_values) = 'array', p_values::text, 'a JSON array')
    from (select) i;
    perform forebay._require(p_parameter, p_values is null or jsonb_array_length(p_values) = cardinality(p_tokens),
                             jsonb_array_length(p_values) || ' values', format('a value for each of %s tokens', cardinality(p_tokens)));
end
$$;


-- Refuse what a run would mean for its subject, if it cannot be recorded.
--
-- Errors: JQ001, JQ002, JQ003.
create function forebay._check_subject_end(p_what jsonb) returns void
language plpgsql stable
as $$
declare
    v_known constant text[] := array['then', 'at', 'after', 'every', 'interval', 'data', 'args'];
    v_key   text;
    v_times constant integer := num_nonnulls(p_what -> 'at', p_what -> 'after', p_what -> 'every', p_what -> 'interval');
    v_due   timestamptz;
begin
    perform forebay._require('subjects', jsonb_typeof(p_what) = 'object' and p_what ->> 'then' in ('again', 'complete', 'drop')
                                         and v_times = case when p_what ->> 'then' = 'again' then 1 else 0 end, p_what::text,
                             'an object with `then`: again, complete or drop; and with again one of at, after, every and interval');
    v_key := (select k from jsonb_object_keys(p_what - v_known) k order by 1 limit 1);
    perform forebay._require('subjects', v_key is null, v_key, format('one of %s', array_to_string(v_known, ', ')));
    if v_times = 1 then
        begin
            -- Times have microseconds.
            v_due := case when (p_what ->> 'every')::double precision < 1e-6 or (p_what ->> 'after')::double precision < 0 then null
                          else forebay._next_due(p_what, forebay._now(), forebay._now()) end;
        exception when others then
            v_due := null;
        end;
        perform forebay._require('subjects', isfinite(v_due), p_what::text, 'a time of which PostgreSQL knows the next one');
    end if;
    if p_what ? 'args' then
        perform forebay._require('subjects', jsonb_typeof(p_what -> 'args') = 'object', p_what ->> 'args', 'args that are an object'),
                forebay._check_args(p_what -> 'args', null);
    end if;
    if p_what ? 'data' then
        perform forebay._check_args(p_what -> 'data', null);
    end if;
end
$$;


-- For the job of each token: attempts used, its maximum, whether its dead letter holds its ordering key, and whether its cancellation is
-- requested. Zeros for an unknown one.
create function forebay._held_rows(p_tokens text[]) returns table (nr bigint, used integer, most integer, holds_key boolean, is_cancelled boolean)
language sql volatile
as $$
    select t.nr, coalesce(r.attempt, 0), coalesce(r.max_attempts, forebay._queue_attempts(l.queue), forebay._setting_value('max_attempts'))::integer,
           r.ordering_key is not null and exists (select from forebay.kind_queue k where k.kind = r.kind and k.holds_key),
           pg_sequence_last_value('forebay.tombstone_seq') is not null
               and exists (select from forebay.tombstone c
                           where c.job_id = coalesce(r.job_id, r.seq) and c.reason = 'c' and (c.group_id is null or c.group_id = b.group_id))
    from unnest(p_tokens) with ordinality t (token, nr)
    cross join lateral forebay._place_of(t.token) p
    left join forebay.batch b on b.lease_id = p.lease_id and b.claim_no = p.claim_no
    left join lateral forebay._row(coalesce(b.lanes[p.place], b.lane), coalesce(b.xids[p.place], b.xids[1]), b.seqs[p.place]) r on true
    left join lateral (select i.queue from forebay.lane i where i.lane = b.lane limit 1) l on true
$$;


-- For each token what a gather learns of its job that is done, as forebay.settle_v1() takes it; null: none waits for it. While no handler
-- ever recorded a checkpoint it looks at nothing.
create function forebay._child_ends(p_tokens text[], p_results jsonb) returns jsonb[]
language plpgsql volatile
-- planner: indexed
as $$
begin
    if pg_sequence_last_value('forebay.flow_seq') is null then
        return null;
    end if;
    return array(
        select case when c.child is not null then jsonb_build_array(
                   jsonb_build_object('gather', c.child[2], 'nr', c.child[1], 'job_id', coalesce(r.job_id, r.seq), 'value', p_results -> (t.nr::integer - 1))) end
        from unnest(p_tokens) with ordinality t (token, nr)
        cross join lateral forebay._place_of(t.token) p
        left join forebay.batch b on b.lease_id = p.lease_id and b.claim_no = p.claim_no
        left join lateral forebay._row(coalesce(b.lanes[p.place], b.lane), coalesce(b.xids[p.place], b.xids[1]), b.seqs[p.place]) r on true
        cross join lateral (select forebay._child_in(r.headers) as child) c
        order by t.nr);
end
$$;


-- Settle jobs by their tokens: p_ended has the end of each, as forebay.settle_v1() takes it, without its place; p_children what gathers learn of it.
--
-- Invariant "one settlement for each token": the flush of a job has minus its place as its number, so the primary key lets one pass.
-- Leases in their order, so that two calls do not wait for each other in a circle.
create function forebay._settle_held(p_tokens text[], p_ended jsonb[], p_children jsonb[] default null) returns table (token text, status text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_lease  record;
    v_said   text[];
    v_status text[] := array_fill('lost'::text, array[cardinality(p_tokens)]);
begin
    for v_lease in
        select p.lease_id, array_agg(t.nr::integer order by t.nr) as nrs, array_agg(p.claim_no order by t.nr) as claims,
               array_agg(p.place order by t.nr) as places
        from unnest(p_tokens) with ordinality t (token, nr) cross join lateral forebay._place_of(t.token) p
        group by p.lease_id order by p.lease_id
    loop
        perform from forebay.lease l where l.lease_id = v_lease.lease_id and l.closed_at is null for key share;
        if found then
            v_said := array(
                select s.status from forebay.settle_v1(v_lease.lease_id, (
                    select jsonb_agg(jsonb_build_object('claim_no', u.claim_no, 'flush_no', -u.place)
                                     || case when p_children[u.nr] is not null then jsonb_build_object('children', p_children[u.nr]) else '{}' end
                                     || case when p_ended[u.nr] is null or p_ended[u.nr] = '{"outcome": "done"}'
                                             then jsonb_build_object('done', jsonb_build_array(u.place))
                                             else jsonb_build_object('ended', jsonb_build_array(
                                                      p_ended[u.nr] || jsonb_build_object('offset', u.place))) end order by u.nr)
                    from unnest(v_lease.nrs, v_lease.claims, v_lease.places) u (nr, claim_no, place))) with ordinality s
                order by s.ordinality);
        else
            v_said := array_fill('closed'::text, array[cardinality(v_lease.nrs)]);
        end if;
        for i in 1 .. cardinality(v_lease.nrs) loop
            v_status[v_lease.nrs[i]] := case
                when v_said[i] in ('settled') then 'settled'
                when v_said[i] = 'repeated' or forebay._was_settled(v_lease.lease_id, v_lease.claims[i], v_lease.places[i]) then 'already'
                else 'lost' end;
        end loop;
    end loop;
    return query select t.token, v_status[t.nr] from unnest(p_tokens) with ordinality t (token, nr) order by t.nr;
end
$$;


-- Did the worker of a lease settle a job before it lost the lease?
--
-- A revocation writes settlements too: `l` (lost) only it writes; with other codes, those that are not earlier than the end of the lease.
create function forebay._was_settled(p_lease_id bigint, p_claim_no bigint, p_place integer) returns boolean
language sql stable
as $$
    select exists (
        select from forebay.settlement s
        join forebay.lease l on l.lease_id = s.lease_id
        where s.lease_id = p_lease_id and s.claim_no = p_claim_no
          and (s.offsets is null
               or p_place::smallint = any (s.offsets)
                  and (l.closed_at is null or s.flush_no >= 0 or s.settled_at < l.closed_at
                       or coalesce(s.outcomes[array_position(s.offsets, p_place::smallint)], 'd') in ('d', 'r', 's', 'c', 'u'))))
$$;
