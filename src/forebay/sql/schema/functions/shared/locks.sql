-- Locks until the end of the transaction; see tables/lock.sql and the table "Locks" in docs/design/engine.md. What a lock protects
-- must be read by a later statement: that one sees what the last holder committed.

-- Take the lock of that name, or return false when another session has it.
create function forebay._try_lock(p_name text) returns boolean
language plpgsql volatile
as $$
begin
    execute format('lock table only forebay.lock_%s in share update exclusive mode nowait', p_name);
    return true;
exception when lock_not_available then
    return false;
end
$$;


-- Take the lock of a group's lane; see also fragments/lock_lane.sql.
create function forebay._lock_lane(p_group_id bigint, p_lane bigint) returns void
language plpgsql volatile
as $$
begin
    -- include: lock_lane
end
$$;


-- Take the lock of a group's lane, or return false when another session has it.
create function forebay._try_lock_lane(p_group_id bigint, p_lane bigint) returns boolean
language sql volatile
as $$ select forebay._try_lock('lane_' || (hashint8(p_group_id # p_lane) & 127)) $$;


-- Take the lock of a group's lane, which another session has, for a claim of a lease. The claim passes a gate first: one of 16 for the lanes of
-- a class. So at most 16 wait for the lock, and a sixteenth of the others for each gate. A session that has waited for a second looks for a
-- deadlock, at a cost that grows with the cube of the sessions that wait for the same lock, and stops all other locks meanwhile.
create function forebay._wait_for_lane(p_lease_id bigint, p_group_id bigint, p_lane bigint) returns void
language plpgsql volatile
as $$
begin
    execute 'lock table only forebay.lock_gate_' || (((hashint8(p_group_id # p_lane) & 3) << 4) | (p_lease_id & 15)) || ' in share update exclusive mode';
    -- include: lock_lane
end
$$;


-- May a settlement lock and read what claims decided? Not in the transaction of a handler, which may be open for seconds, and not where
-- later statements would not see what the lock's last holder committed.
--
-- Parameters: p_flush_no, see forebay.settle_v1().
create function forebay._may_look(p_flush_no integer) returns boolean
language sql stable
as $$
    select p_flush_no > 0 and current_setting('transaction_isolation') = 'read committed'
           and statement_timestamp() - transaction_timestamp() <= interval '3 seconds'
$$;


-- Take the lock of a group's limiter: alone to decide about limits, shared to read what was decided.
create function forebay._lock_limiter(p_group_id bigint, p_shared boolean) returns void
language plpgsql volatile
as $$
begin
    execute format('lock table only forebay.lock_limiter_%s in %s mode', hashint8(p_group_id) & 63,
                   case when p_shared then 'row exclusive' else 'share row exclusive' end);
end
$$;


-- Take the lock of a group's ordering keys: alone to decide about them, shared to read what was decided.
create function forebay._lock_keys(p_group_id bigint, p_shared boolean) returns void
language plpgsql volatile
as $$
begin
    execute format('lock table only forebay.lock_keys_%s in %s mode', hashint8(p_group_id) & 63,
                   case when p_shared then 'row exclusive' else 'share row exclusive' end);
end
$$;


-- Take the lock of the routers: shared to expand events, alone to activate a subscription.
create function forebay._lock_routing(p_shared boolean) returns void
language plpgsql volatile
as $$
begin
    if p_shared then
        lock table only forebay.lock_routing in row exclusive mode;
    else
        lock table only forebay.lock_routing in share row exclusive mode;
    end if;
end
$$;


-- Take the lock of all calls that change settings of queues, before every other lock: so these calls cannot wait for each other in a circle.
create function forebay._lock_settings() returns void
language plpgsql volatile
as $$
begin
    lock table only forebay.lock_settings in share update exclusive mode;
end
$$;
