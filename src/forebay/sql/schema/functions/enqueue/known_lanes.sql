-- The flag sequence that may name a lane.
create function forebay._lane_flag(p_lane bigint) returns regclass
language sql stable
as $$
    select (array[
        'forebay.known_0', 'forebay.known_1', 'forebay.known_2', 'forebay.known_3', 'forebay.known_4', 'forebay.known_5', 'forebay.known_6', 'forebay.known_7',
        'forebay.known_8', 'forebay.known_9', 'forebay.known_10', 'forebay.known_11', 'forebay.known_12', 'forebay.known_13', 'forebay.known_14', 'forebay.known_15']::regclass[])[((p_lane >> 1) & 15) + 1]
$$;


-- The value in the flag sequence of a known lane: it differs for each lane, each start of the server, each file of the registry
-- and each retirement of lanes (p_horizon). So a flag sequence that was dumped later than the registry, or outlived it, names no lane.
create function forebay._lane_stamp(p_lane bigint, p_horizon bigint) returns bigint
language sql stable
as $$
    select p_lane # hashfloat8extended(date_part('epoch', pg_postmaster_start_time()), pg_relation_filenode('forebay.lane')::bigint # p_horizon)
$$;


-- Is the lane's row in the registry committed and in use, according to its flag sequence?
--
-- Invariant "known is committed": a flag sequence names a lane only after its row was committed. Read and set outside transactions.
-- The call draws the transaction id before it reads: see forebay.forget_v1().
create function forebay._is_known(p_lane bigint) returns boolean
language sql volatile
as $$
    select case when pg_current_xact_id() is not null
                then pg_sequence_last_value(forebay._lane_flag(p_lane))
                     = forebay._lane_stamp(p_lane, pg_sequence_last_value('forebay.lane_horizon')) end
$$;
