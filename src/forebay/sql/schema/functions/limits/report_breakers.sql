-- grant: worker

-- Report how attempts of jobs with limit keys ended, for the breakers that their kinds declare: count
-- failures in a row of each key, over all workers, and open and close breakers.
--
-- `p_ended` is an array of objects in the order in which the attempts ended:
--
-- Keys:
--   lease_id, claim_no, offset
--                the job, as forebay.settle_v1() names it; a job without a limit key is ignored, and
--                so is one whose batch is gone
--   failed       whether the attempt failed; false: it shows that the key works
--   ended_ago    seconds since it ended
--   claimed_ago  seconds since the job was claimed
--   error        with `failed`: what people see
--   threshold, cooldown, cooldown_max
--                with `failed`: failures in a row that open the breaker, 1 to 1000; seconds to the first
--                probe, 1 to 86400; most seconds between two, each that fails doubles them. Null: as
--                the database has them, see forebay.configure()
--
-- Columns:
--   queue      each of `p_queues` in which a key has failed since its last success, with a null
--              `limit_key`: report successes there too
--   limit_key  each key with a reported failure whose breaker is open: run no jobs of it that were
--              claimed before this call
--
-- Errors: JQ001 no array, or a bad number.
-- Transaction: any; meant to be autocommitted.
-- Locks: the rows of the breakers, in their order, until the transaction ends; and, if a breaker
--   changes, as forebay.limit_key() without remove, except for the settings lock.
-- See: docs/howto/limits.md#a-breaker-for-each-key
--
-- Inside: Invariant "open after failures in a row". All breakers are locked before the limits of the
-- first key are: a call of forebay.limit_key() that waits between two of them would close a cycle.
-- pages: 40 + 8 an attempt + 150 a breaker
create function forebay.report_breakers_v1(p_worker text, p_queues text[], p_ended jsonb)
returns table (queue text, limit_key text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_at      constant timestamptz := forebay._now();
    v_reports forebay._breaker_report[];
    r         forebay._breaker_report;
    v         record;
begin
    if jsonb_typeof(p_ended) is distinct from 'array' then
        raise exception using errcode = 'JQ001', column = 'p_ended',
            message = format('ended attempts are %s, not a JSON array', coalesce(jsonb_typeof(p_ended), 'null'));
    end if;
    v_reports := forebay._breaker_reports(p_ended, v_at);
    if exists (select from unnest(v_reports) u
               where u.failures > 0 and (u.threshold between 1 and 1000 and u.cooldown between 1 and 86400
                                         and u.cooldown_max between u.cooldown and 86400) is not true) then
        raise exception using errcode = 'JQ001', column = 'p_ended', message = 'a threshold or a cooldown is missing or out of range',
            hint = 'threshold: 1 to 1000; cooldown: 1 to 86400 s; cooldown_max: not below cooldown.';
    end if;
    if v_reports <> '{}' then
        insert into forebay.breaker (queue, key, failures, threshold, cooldown, cooldown_max)
        select u.queue, u.key, 0, u.threshold, u.cooldown, u.cooldown_max
        from unnest(v_reports) u where u.failures > 0 order by u.queue, u.key
        on conflict do nothing;
        perform from forebay.breaker b join unnest(v_reports) u on u.queue = b.queue and u.key = b.key
        order by b.queue, b.key for update of b;
        foreach r in array v_reports loop
            -- Another worker may have reported the success meanwhile.
            continue when r.failures = 0 and not exists (select from forebay.breaker b where b.queue = r.queue and b.key = r.key);
            select * into v from forebay._step_breaker(r, v_at);
            if (v.before).opened_at is null and (v.after).opened_at is not null then
                perform forebay._record_event(
                    'circuit.opened', r.queue, p_new => jsonb_build_object('limit_key', r.key) || forebay._breaker_facts(v.after),
                    p_detail => 'reported by ' || p_worker);
            elsif (v.before).opened_at is not null and (v.after).opened_at is null then
                perform forebay._record_event(
                    'circuit.closed', r.queue, p_old => jsonb_build_object('limit_key', r.key) || forebay._breaker_facts(v.before),
                    p_detail => 'reported by ' || p_worker);
            end if;
        end loop;
    end if;
    return query
    select q.queue, null from unnest(p_queues) q (queue) where exists (select from forebay.breaker b where b.queue = q.queue)
    union all
    select b.queue, b.key from unnest(v_reports) u join forebay.breaker b on b.queue = u.queue and b.key = u.key
    where u.failures > 0 and b.opened_at is not null;
end
$$;


-- What ended attempts say of each limit key, in the order of the breakers. A key that only succeeded is left out unless it has a breaker.
create function forebay._breaker_reports(p_ended jsonb, p_at timestamptz) returns forebay._breaker_report[]
language plpgsql stable
-- planner: indexed
as $$
begin
    return (
    with ended as materialized (
        select e.nr, l.queue, b.limit_keys[(e.value ->> 'offset')::integer] as key, (e.value ->> 'failed')::boolean as failed,
               p_at - make_interval(secs => greatest((e.value ->> 'ended_ago')::double precision, 0)) as ended_at,
               p_at - make_interval(secs => greatest((e.value ->> 'claimed_ago')::double precision, 0)) as claimed_at,
               e.value ->> 'error' as error, coalesce((e.value ->> 'threshold')::integer, forebay._setting_value('breaker_failures')::integer) as threshold,
               coalesce((e.value ->> 'cooldown')::double precision, forebay._setting_value('breaker_cooldown_seconds')) as cooldown,
               coalesce((e.value ->> 'cooldown_max')::double precision,
                        greatest(forebay._setting_value('breaker_cooldown_max_seconds'),
                                 coalesce((e.value ->> 'cooldown')::double precision, forebay._setting_value('breaker_cooldown_seconds')))) as cooldown_max
        from jsonb_array_elements(p_ended) with ordinality e (value, nr)
        cross join lateral (select i.lane, i.limit_keys from forebay.batch i
                            where i.lease_id = (e.value ->> 'lease_id')::bigint and i.claim_no = (e.value ->> 'claim_no')::bigint offset 0) b
        cross join lateral (select i.queue from forebay.lane i where i.lane = b.lane limit 1) l
        where b.limit_keys[(e.value ->> 'offset')::integer] is not null
          -- Endpoints have their own reports.
          and l.queue <> 'forebay.deliver'
    ), answered as (
        select i.*, max(i.nr) filter (where not i.failed) over (partition by i.queue, i.key) as answer from ended i
    ), key as (
        select i.queue, i.key, max(i.answer) as answer, count(*) filter (where i.nr > coalesce(i.answer, 0)) as failures,
               max(i.nr) filter (where i.nr > coalesce(i.answer, 0)) as failure
        from answered i group by i.queue, i.key
    )
    select coalesce(array_agg(row(
        k.queue, k.key, f.threshold, f.cooldown, f.cooldown_max, k.failures, k.answer is not null, a.ended_at, f.claimed_at, f.error
        )::forebay._breaker_report order by k.queue, k.key), '{}')
    from key k
    left join ended a on a.nr = k.answer
    left join ended f on f.nr = k.failure
    where k.failures > 0 or exists (select from forebay.breaker b where b.queue = k.queue and b.key = k.key));
end
$$;
