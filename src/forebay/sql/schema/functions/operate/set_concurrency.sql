-- grant: operator

-- Set how many jobs workers run at once; returns the number of workers. They follow with their next
-- heartbeat after the commit. Running jobs finish. It holds until a worker ends; one that starts
-- again has the concurrency that it is started with. The event log has it as `workers.set`.
--
-- Parameters:
--   concurrency  1 to 10,000; null: as the worker was started
--   worker       the name of a worker, or its beginning up to a colon: a host, or `host:pid`; null:
--                all workers with an open lease
--
-- Errors: JQ001 a bad number.
-- See: docs/howto/event-log.md
create function forebay.set_concurrency(concurrency integer, worker text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_workers text[];
begin
    if set_concurrency.concurrency not between 1 and 10000 then
        raise exception using errcode = 'JQ001', column = 'concurrency',
            message = format('concurrency is %s, not within 1 to 10000', set_concurrency.concurrency);
    end if;
    v_workers := array(select distinct l.worker from forebay.lease l
                       where l.closed_at is null
                         and (set_concurrency.worker is null or l.worker = set_concurrency.worker
                              or starts_with(l.worker, set_concurrency.worker || ':')));
    -- A name is never used again.
    delete from forebay.worker_setting s
    where s.worker = any (v_workers) and s.stop_at is null
       or not exists (select from forebay.lease l where l.worker = s.worker and l.closed_at is null);
    update forebay.worker_setting s set concurrency = set_concurrency.concurrency where s.worker = any (v_workers);
    if set_concurrency.concurrency is not null then
        insert into forebay.worker_setting (worker, concurrency)
        select w, set_concurrency.concurrency from unnest(v_workers) w
        on conflict (worker) do update set concurrency = excluded.concurrency;
    end if;
    if v_workers <> '{}' then
        perform forebay._record_event('workers.set', p_count => cardinality(v_workers), p_detail => set_concurrency.worker,
                                      p_new => jsonb_build_object('concurrency', set_concurrency.concurrency));
    end if;
    return cardinality(v_workers);
end
$$;
