-- Flag sequences of known lanes. Each may name a lane whose registry row is committed, so that an enqueue need not read the
-- registry. forebay._lane_stamp() computes the values; they mean nothing after a restart, in a restored database, or after lanes
-- were retired.
do $$
begin
    for i in 0..15 loop
        execute format('create sequence forebay.known_%s as bigint minvalue -9223372036854775808 cache 1', i);
    end loop;
end
$$;
