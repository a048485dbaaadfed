-- Take the lock of lane p_lane of group p_group_id. Claims of one group and lane run one after another.

execute 'lock table only forebay.lock_lane_' || (hashint8(p_group_id # p_lane) & 127) || ' in share update exclusive mode';
