-- grant: worker

-- Claim from several lanes in one call, with one commit. Each lane with jobs gets a separate batch:
-- lane number N of the arrays, from 1, has the claim number `p_claim_no + N - 1`; numbers of lanes
-- without a batch are not used.
--
-- Parameters:
--   p_lease_id, p_claim_no  the name of the first batch; the caller reserves a number for each lane
--   p_floor                 the caller's oldest unfinished claim number, or this one
--   p_group_ids, p_lanes    as reported by forebay.ready_v1(), 1 to 100 different ones
--   p_limits                how many jobs to take of each lane, 1 to 10000. All together are
--                           bounded in bytes as one claim is
--
-- A row is a lane whose claim is finished: its number, and `jobs` as forebay.claim_v1() returns
-- them, or null if another session has the lock of the lane, so nothing was looked for. Call
-- forebay.claim_v1() for a lane without a row: this function never claims lanes of ordering keys,
-- of limit keys, of queues with limits on starts, and of suspects.
--
-- Errors: JQ001 a bad number, floor, limit or list, JQ012. A closed lease gives no rows:
--   forebay.claim_v1() raises.
-- Transaction: alone. Commits asynchronously: a durable settlement makes the earlier claim durable.
-- Locks: in this order, a gate, if the lock of the first lane is not free; that lock; those of the
--   other lanes if they are free at once; the lease (KEY SHARE).
--
-- Inside: Invariants: "commit decides", "once per lease", "flat cost" (docs/design/engine.md). It
-- does the common case only: see segment/take.sql.
-- pages: 80 + 40 a lane + 4 a job + 3 an open transaction
create function forebay.claim_lanes_v1(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_ids bigint[], p_lanes bigint[], p_limits integer[])
returns table (nr integer, jobs text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
declare
    v_count   constant integer := cardinality(p_lanes);
    v_segment bigint;
    v_locks   text[];
    v_busy    text[] := '{}';
    v_lock    text;
    v_open    integer[];
begin
    if (v_count between 1 and 100 and cardinality(p_group_ids) = v_count and cardinality(p_limits) = v_count
        and (select bool_and(l between 1 and 10000) and count(l) = v_count from unnest(p_limits) l)
        -- A lane that is listed twice would be read twice at the same cursor.
        and (select count(distinct (u.g, u.l)) from unnest(p_group_ids, p_lanes) u (g, l)) = v_count
        and p_claim_no >= 1 and p_floor between 0 and p_claim_no) is not true then
        raise exception using errcode = 'JQ001',
            message = 'lanes to claim from: 1 to 100 different ones, with a limit of 1 to 10000 each, a claim number of at least 1 and a floor of at most that';
    end if;
    if not forebay._is_alone() then
        perform forebay._require_alone('forebay.claim_lanes_v1()');
    end if;
    perform set_config('synchronous_commit', 'off', true);
    v_locks := array(select 'forebay.lock_lane_' || (hashint8(u.g # u.l) & 127)
                     from unnest(p_group_ids, p_lanes) with ordinality u (g, l, nr) order by u.nr);
    if not forebay._try_lock_lane(p_group_ids[1], p_lanes[1]) then
        perform forebay._wait_for_lane(p_lease_id, p_group_ids[1], p_lanes[1]);
    end if;
    if v_count > 1 then
        -- Not waited for, since this call has a lane's lock: so sessions with several of them cannot wait for each other in a circle.
        begin
            execute 'lock table only ' || array_to_string(v_locks[2:], ', only ') || ' in share update exclusive mode nowait';
        exception when lock_not_available then
            foreach v_lock in array v_locks[2:] loop
                begin
                    execute 'lock table only ' || v_lock || ' in share update exclusive mode nowait';
                exception when lock_not_available then
                    v_busy := v_busy || v_lock;
                end;
            end loop;
        end;
    end if;
    v_open := array(select i from generate_series(1, v_count) i where v_locks[i] <> all (v_busy) or i = 1);
    -- Later statements than the locks: their snapshots see what the last holders committed.
    if pg_sequence_last_value('forebay.key_seq') is not null or pg_sequence_last_value('forebay.limiter_seq') is not null then
        v_open := array(
            select i from unnest(v_open) i
            where not exists (
                select from forebay.lane l
                where l.lane = p_lanes[i]
                  and (l.sort <> 'plain' or exists (select from forebay.queue_limits q where q.queue = l.queue and q.starts_set_at is not null))));
    end if;
    v_segment := coalesce(
        (select case when b.snap_to is not null then b.pos_segment end from forebay.batch b
         where b.group_id = p_group_ids[1] and b.lane = p_lanes[1] order by b.no desc limit 1),
        (select s.segment_id from forebay.segment s
         where s.lo <= pg_sequence_last_value('forebay.log_seq') order by s.lo desc limit 1));
    if v_segment is not null and v_open <> '{}' then
        return query execute 'select (t.claim_no - $7 + 1)::integer, t.jobs from forebay._take_lanes_' || v_segment
                             || '($1, $2, $3, $4, $5, $6) t'
            using p_lease_id, array(select p_claim_no + i - 1 from unnest(v_open) i), p_floor, array(select p_group_ids[i] from unnest(v_open) i),
                  array(select p_lanes[i] from unnest(v_open) i), array(select p_limits[i] from unnest(v_open) i), p_claim_no;
    end if;
    return query select i, null::text from generate_series(1, v_count) i where v_locks[i] = any (v_busy) and i > 1;
end
$$;
