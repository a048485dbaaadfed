-- grant: worker

-- Empty the oldest segment that retention allows: `emptied` is its number, or null. A call looks at
-- no more than twenty segments that must stay; `next` is `p_after` of the call that continues, or
-- null when all were looked at.
--
-- A segment may be emptied if it was sealed longer ago than `retention_days`, or lies beyond
-- `retention_bytes` in total; never with an unsettled job. Then it waits for each export that has
-- not written it, for the hours of the export at most; see forebay.create_export(). The empty table
-- stays until forebay.drop_segments_v1() drops it.
--
-- Errors: JQ030, 55P03 another session reads the segment, try again.
-- Transaction: any; meant to be autocommitted.
-- Locks: the retention lock, ACCESS EXCLUSIVE on one leaf.
--
-- Inside: TRUNCATE of the leaf under a short lock_timeout: it waits only for sessions that touched
-- this very leaf, and no session waits for it.
-- pages: 1100 + 100 a lane + 4 an uncounted job
create function forebay.retain_v1(p_after bigint default null, out emptied bigint, out next bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
set lock_timeout = '100ms'
as $$
declare
    v_segment record;
    v_total   numeric;
    v_days    bigint := forebay._setting_value('retention_days');
    v_bytes   bigint := forebay._setting_value('retention_bytes');
    v_kept    integer := 0;
    v_queues  text[];
    v_waits   boolean;
begin
    perform forebay._require_same_cluster();
    if not forebay._try_lock('retention') then
        return;
    end if;
    -- A segment that waits for an export is as good as emptied: no other one goes in its place.
    select sum(pg_total_relation_size(format('forebay.log_%s', s.segment_id)::regclass)) into v_total
    from forebay.segment s
    where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
      and (s.due_at is null or s.segment_id > coalesce(p_after, -1));
    for v_segment in
        select s.segment_id, f.sealed_at, f.xid from forebay.segment s join forebay.seal f using (segment_id)
        where s.removed_at is null and s.segment_id > coalesce(p_after, -1)
        order by s.segment_id
    loop
        continue when v_segment.sealed_at > forebay._now() - make_interval(days => v_days::integer) and v_total <= v_bytes;
        v_waits := forebay._segment_held_by(v_segment.segment_id) is not null;
        if not v_waits and forebay._waits_for_export(v_segment.segment_id) then
            v_waits := true;
            v_total := v_total - pg_total_relation_size(format('forebay.log_%s', v_segment.segment_id)::regclass);
        end if;
        if v_waits then
            v_kept := v_kept + 1;
            if v_kept >= 20 then
                next := v_segment.segment_id;
                return;
            end if;
            continue;
        end if;
        -- A count of waiting jobs from before the seal visits the segment. Invariant "counters agree".
        v_queues := array(
            select distinct c.queue
            from (select distinct on (i.queue, i.group_id) i.queue, i.oldest from forebay.counter_waiting i
                  order by i.queue, i.group_id, i.oldest desc, i.no desc) c
            where c.oldest < v_segment.xid);
        if v_queues <> '{}' then
            perform forebay.renew_counters_v1(1, v_queues);
        end if;
        -- So does a fold of the counters from before.
        perform forebay._empty_counters(v_segment.segment_id);
        execute format('truncate forebay.log_%s', v_segment.segment_id);
        update forebay.segment s set removed_at = forebay._now(), due_at = null where s.segment_id = v_segment.segment_id;
        emptied := v_segment.segment_id;
        next := emptied;
        return;
    end loop;
end
$$;


-- Must a segment that could be emptied wait for an export? Its waiting begins with the first such call. If the time of an export is
-- over, the export has missed the segment: that is recorded, with the emptying that follows.
create function forebay._waits_for_export(p_segment_id bigint) returns boolean
language plpgsql volatile
as $$
declare
    v_now    constant timestamptz := forebay._now();
    v_due_at timestamptz;
    v_names  constant text[] := array(
        select e.name from forebay.export e
        where not exists (select from forebay.exported_segment x where x.name = e.name and x.segment_id = p_segment_id) order by 1);
begin
    if v_names = '{}' then
        return false;
    end if;
    update forebay.segment s set due_at = v_now where s.segment_id = p_segment_id and s.due_at is null;
    select s.due_at into v_due_at from forebay.segment s where s.segment_id = p_segment_id;
    if exists (select from forebay.export e where e.name = any (v_names) and v_due_at + make_interval(hours => e.hold_hours) > v_now) then
        return true;
    end if;
    update forebay.export e set missed = e.missed + 1, missed_at = v_now where e.name = any (v_names);
    perform forebay._record_event('exports.missed', p_count => 1, p_detail => n,
                                  p_new => jsonb_build_object('segment', p_segment_id, 'due_at', v_due_at)) from unnest(v_names) n;
    return false;
end
$$;
