-- Take the lock of lane p_lane of group p_group_id for lease p_lease_id. If it is not free, pass a gate first: one of 16 for the lanes of a
-- class. So at most 16 wait for the lock, and a sixteenth of the others for each gate. A session that has waited for a second looks for a
-- deadlock, at a cost that grows with the cube of the sessions that wait for the same lock, and stops all other locks meanwhile.

if not forebay._try_lock_lane(p_group_id, p_lane) then
    execute 'lock table only forebay.lock_gate_' || (((hashint8(p_group_id # p_lane) & 3) << 4) | (p_lease_id & 15)) || ' in share update exclusive mode';
    execute 'lock table only forebay.lock_lane_' || (hashint8(p_group_id # p_lane) & 127) || ' in share update exclusive mode';
end if;
