-- forebay.claim_v1() for a dispatch lane, or for a lane whose queue has limits on starts: jobs of one lane, as many as the limiter
-- lets through.
--
-- Invariants "no more at once" and "no more per second" (docs/design/limits.md): all claims of the group that pass here run one
-- after another, and the limiter's row and the batch are one commit.
-- Locks, in order: the limiter, then as any claim. It waits for the lock of the first lane only. Without waiting it takes those of
-- further lanes, or passes over these: forebay.sweep_v1() has several such locks, and waits for more.
create function forebay._claim_limited(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
returns text
language plpgsql volatile
as $$
declare
    v      forebay._limiter_view;
    v_lane record;
    v_try  record;
    v_jobs text;
    v_took record;
    v_gone bigint[] := '{}';
    v_has_lock boolean := false;
begin
    perform set_config('synchronous_commit', 'off', true), forebay._lock_limiter(p_group_id);
    -- Later statements than the lock: they see what its last holder committed.
    select l.queue, l.sort, g.group_id, g.paused_at into v_lane
    from forebay.lane l left join forebay.queue_group g on g.group_id = p_group_id
    where l.lane = p_lane limit 1;
    if v_lane.group_id is null then
        -- include: no_such_group
    elsif v_lane.paused_at is not null then
        return null;
    end if;
    v := forebay._read_limiter(p_group_id, v_lane.queue);

    for v_try in
        select l.* from forebay._choose_keys(v, p_lane, p_limit) l where v_lane.sort in ('limited', 'dispatch')
        union all
        select p_lane, 0, null, least(p_limit, v.free_slots)::integer where v_lane.sort in ('plain', 'keyed') and v.free_slots > 0
        limit 200
    loop
        if v_has_lock then
            continue when not forebay._try_lock_lane(p_group_id, v_try.lane);
        else
            perform forebay._lock_lane(p_group_id, v_try.lane);
            v_has_lock := true;
        end if;
        v_jobs := forebay._claim_one(p_lease_id, p_claim_no, p_floor, p_group_id, v_try.lane, v_try.most, v_lane.sort = 'keyed');
        if v_jobs = '' then
            return null;  -- Paused meanwhile: the lane was not read, so it may not be empty.
        end if;
        select b.lease_id = p_lease_id and b.claim_no = p_claim_no as is_ours, cardinality(b.seqs) as size, b.snap_to is null as is_empty
        into v_took
        from forebay.batch b where b.group_id = p_group_id and b.lane = v_try.lane order by b.no desc limit 1;
        if v_lane.sort in ('limited', 'dispatch') and v_took.is_empty is not false then
            v_gone := v_gone || v_try.lane;
        end if;
        exit when v_jobs is not null;
    end loop;
    if v_jobs is not null or v_gone <> '{}' or v.is_changed then
        perform forebay._record_limiter(v, p_group_id, v_gone, p_lease_id, p_claim_no, v_try.key,
                                   case when v_jobs is not null then v_took.size else 0 end);
    end if;
    return v_jobs;
end
$$;


-- The claim of one lane behind a limiter, whose lock is held: as in forebay.claim_v1(); an empty text when it read nothing, see forebay._take().
create function forebay._claim_one(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer, p_keyed boolean)
returns text
language plpgsql volatile
as $$
declare
    v_segment bigint;
    v_jobs    text;
    v_rows    forebay.log[];
begin
    if p_keyed then
        return forebay._claim_keyed(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit);
    end if;
    -- include: claim_one_lane
    if v_jobs is null and v_rows is null then
        return '';
    end if;
    return v_jobs;
end
$$;
