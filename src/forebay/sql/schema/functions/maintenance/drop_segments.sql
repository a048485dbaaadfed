-- grant: worker

-- Drop the tables and functions of segments that were emptied longer ago than `p_age`, at most
-- `p_most`; returns their number. 0 also while a session that used the log is in a transaction:
-- call again.
--
-- Errors: JQ001 a bad number, JQ012, JQ030.
-- Transaction: alone.
-- Locks: the retention lock; ACCESS EXCLUSIVE on the log and on the segments, taken only if free at
--   once.
--
-- Inside: dropping a partition needs ACCESS EXCLUSIVE on the log, and an enqueue that comes
-- meanwhile waits. So the lock is taken only when it is free at once: a request that waits in the
-- queue of a lock would stop all enqueues behind it. And p_most is small: each segment takes about
-- two milliseconds and the commit. With p_age, a call that found a segment in the registry before
-- it was emptied has ended since.
--
-- Kept are the two newest sealed segments, by which claims recognize a cursor that is far behind,
-- and the newest segment of the archive of another cluster, which marks the end of that archive.
-- pages: 300 + 2000 a segment
create function forebay.drop_segments_v1(p_most integer default 1, p_age interval default '1 hour') returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
set lock_timeout = '100ms'
as $$
declare
    v_segment  bigint;
    v_function regprocedure;
    v_dropped  integer := 0;
    v_segments bigint[];
begin
    if (p_most between 1 and 1000 and p_age >= interval '0') is not true then
        raise exception using errcode = 'JQ001',
            message = format('cannot drop %s segments that are empty for %s', coalesce(p_most::text, 'null'), coalesce(p_age::text, 'null')),
            hint = 'The number is 1 to 1000, the age is not negative.';
    end if;
    perform forebay._require_alone('forebay.drop_segments_v1()');
    perform forebay._require_same_cluster();
    v_segments := array(
        select s.segment_id from forebay.segment s join forebay.seal f using (segment_id)
        where s.removed_at <= forebay._now() - p_age
          and s.segment_id < (select i.segment_id from forebay.seal i order by i.segment_id desc offset 1 limit 1)
          and not (f.xid = '0' and s.hi = forebay._archived_below())
        order by s.segment_id limit p_most);
    if v_segments = '{}' or not forebay._try_lock('retention') then
        return 0;
    end if;
    -- No standby is waited for while the log is locked.
    perform set_config('synchronous_commit', 'local', true);
    begin
        lock table only forebay.log in access exclusive mode nowait;
    exception when lock_not_available then
        return 0;
    end;
    foreach v_segment in array v_segments loop
        begin
            execute format('lock table forebay.log_%s in access exclusive mode nowait', v_segment);
        exception when lock_not_available then
            continue;
        end;
        execute format('drop table forebay.log_%s', v_segment);
        for v_function in
            select p.oid from pg_proc p
            where p.pronamespace = 'forebay'::regnamespace and p.proname ~ format('^_[a-z_]+_%s$', v_segment)
        loop
            execute format('drop function %s', v_function);
        end loop;
        delete from forebay.seal f where f.segment_id = v_segment;
        delete from forebay.exported_segment x where x.segment_id = v_segment;
        delete from forebay.segment s where s.segment_id = v_segment;
        v_dropped := v_dropped + 1;
    end loop;
    return v_dropped;
end
$$;
