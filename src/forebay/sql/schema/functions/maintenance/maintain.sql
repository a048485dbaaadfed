-- grant: worker

-- Do what the leader of maintenance does in each pass: promote due jobs as forebay.promote_v1(),
-- take or renew duties as forebay.lead_v1(), and read what else is due. Returns one row.
--
-- Parameters:
--   p_limit             at most this many jobs, see forebay.promote_v1()
--   p_holder, p_duties, p_seconds
--                       see forebay.lead_v1()
--   p_observed_seconds  for how long the caller has seen the server's clock run evenly; null: not
--                       at all
--   p_sleep_millis      for how long the caller sleeps if nothing is due earlier; enqueues of jobs
--                       that are due earlier notify it meanwhile. Null: notifications do not reach
--                       the caller
--
-- Columns:
--   promoted      jobs that became claimable
--   held          the duties that `p_holder` leads now
--   server_time   the clock of the server
--   sleep_millis  until the next job is due, 0 if one is, at most `p_sleep_millis`, or a day for
--                 null
--   has_lost      a lease may have to be revoked, by forebay.revoke_lost_v1()
--   has_full      a segment waits for forebay.seal_v1()
--   activity      a number that grows when jobs are added, taken, settled or moved. PostgreSQL's
--                 statistics are a part of it: it may be ten seconds late, and with `track_counts`
--                 off it grows only when jobs are added
--
-- Errors: JQ001 a bad limit, holder or time, JQ012, JQ030.
-- Transaction: alone. A leadership takes effect at once, also if the transaction rolls back.
-- Locks: as forebay.promote_v1().
--
-- Inside: Invariant "announced in time": while the caller sleeps, a transaction that adds a job
-- that is due earlier notifies it, where transactions may notify. A transaction that read the flag
-- before it was set is late by at most the sleep.
-- pages: 60 + 7 an open lease + 30 a job + 100 a subject + 2 an open transaction
create function forebay.maintain_v1(
    p_limit integer, p_holder integer, p_duties bigint[], p_seconds double precision, p_observed_seconds double precision,
    p_sleep_millis integer)
returns table (promoted integer, held bigint[], server_time timestamptz, sleep_millis integer, has_lost boolean, has_full boolean,
               activity bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
declare
    v_position forebay.promotion;
    v_at       timestamptz;
    v_next     timestamptz;
    v_last     bigint;
begin
    promoted := forebay.promote_v1(p_limit);
    held := forebay.lead_v1(p_holder, p_duties, p_seconds);
    server_time := clock_timestamp();
    v_at := forebay._now();
    select p.run_at, p.deferred_id into v_position.run_at, v_position.deferred_id from forebay.promotion p order by p.no desc limit 1;
    select d.run_at into v_next from forebay.deferred d
    where (d.run_at, d.deferred_id) > (coalesce(v_position.run_at, '-infinity'), coalesce(v_position.deferred_id, 0))
    order by d.run_at, d.deferred_id limit 1;
    sleep_millis := greatest(0, least(coalesce(p_sleep_millis, 86400000), ceil(extract(epoch from v_next - v_at) * 1000)));
    if p_sleep_millis > 0 and sleep_millis > 100 and 0 = any (held) then
        perform forebay._advance_flag('forebay.promoter_seq', (extract(epoch from server_time) * 1000)::bigint + sleep_millis + 30, 250);
    end if;
    has_lost := p_observed_seconds > 0 and exists (select from forebay._silent_leases(v_at, p_observed_seconds));
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    activity := v_last + coalesce(pg_sequence_last_value('forebay.deferred_seq'), 0) + pg_stat_get_tuples_inserted('forebay.batch'::regclass)
        + pg_stat_get_tuples_inserted('forebay.settlement'::regclass) + pg_stat_get_tuples_inserted('forebay.counter_change'::regclass);
    has_full := exists (
        select from forebay.segment s
        where s.hi <= v_last and s.segment_id > coalesce((select max(f.segment_id) from forebay.seal f), -1));
    return next;
end
$$;
