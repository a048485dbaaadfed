-- Flag sequences of known lanes: each may name one whose row in the registry is committed, so that an enqueue need not look.
-- What stands in them is made by forebay._lane_stamp() and means nothing after a restart or in a restored database.
do $$
begin
    for i in 0..15 loop
        execute format('create sequence forebay.known_%s as bigint minvalue -9223372036854775808 cache 1', i);
    end loop;
end
$$;
