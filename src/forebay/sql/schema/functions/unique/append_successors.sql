-- Append successors of jobs that a claim hands out and that an open transaction has joined (coalesce): these runs do not see what that
-- transaction wrote, so each job gets one, at its first start in any group.
--
-- The successor waits briefly for that transaction to end. If it has not ended, it gets a successor too, later
-- each time, up to ten seconds. The claim itself waits for no transaction.
--
-- Parameters: p_group_id, the group whose claim takes the rows.
-- Locks: the lock of successors; the rows of the generations, without waiting.
create function forebay._append_successors(p_rows forebay.log[], p_group_id bigint) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_keys   forebay.unique_key[];
    v_key    forebay.unique_key;
    v_row    forebay.log;
    v_free   bigint[];
    v_open   bigint;
    v_job_id bigint;
begin
    v_keys := array(
        select k.u from unnest(p_rows) r,
             lateral (select u, u.queue, u.key from forebay.unique_key u
                      where u.job_id = coalesce(r.job_id, r.seq) and u.mode = 'c'
                      offset 0) k  -- An index probe for each, whatever the planner's estimate of the table.
        where r.unique_key is not null
        order by k.queue, k.key);
    if cardinality(v_keys) = 0 then
        return;
    end if;
    lock table only forebay.lock_successor in share update exclusive mode;
    foreach v_key in array v_keys loop
        -- A key with a newer generation, or started by another group, has a successor already.
        continue when exists (select from forebay.unique_key u
                              where u.queue = v_key.queue and u.mode = 'c' and u.key = v_key.key and u.gen > v_key.gen);
        continue when forebay._key_state(v_key, p_group_id) <> 'waiting';
        v_free := array(
            select u.gen from forebay.unique_key u
            where u.queue = v_key.queue and u.mode = 'c' and u.key = v_key.key and u.gen between v_key.origin and v_key.gen
            for update skip locked);
        select min(u.gen) into v_open from forebay.unique_key u
        where u.queue = v_key.queue and u.mode = 'c' and u.key = v_key.key and u.gen between v_key.origin and v_key.gen
          and u.gen <> all (v_free);
        continue when v_open is null;
        begin
            v_job_id := forebay._make_generation(
                v_key.queue, 'c', v_key.key, v_key, true, '', v_key.lane, true, v_key.expires_at, null, null, null, v_open);
        exception when sqlstate 'JQ004' then
            continue;  -- An open transaction is making the successor.
        end;
        continue when v_job_id is null;
        insert into forebay.tombstone (job_id, reason, recorded_at)
        values (v_key.job_id, 'r', forebay._now()), (v_job_id, 'k', forebay._now());
        select r.* into v_row from unnest(p_rows) r where coalesce(r.job_id, r.seq) = v_key.job_id;
        v_row.job_id := v_job_id;
        v_row.enqueued_at := forebay._now();
        v_row.expires_at := v_key.expires_at;
        perform forebay._continue_job(
            v_row, v_key.lane, 0, 0,
            forebay._now() + make_interval(secs => least(10, 0.25 * 2 ^ least(v_key.gen - v_open, 6))));
    end loop;
end
$$;
