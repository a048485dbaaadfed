-- What every enqueue reads, in one sequence, whose value is read without a query:
--   the upper 63 bits are random, drawn once for each schema. Lanes get their ids from them, see forebay._secret_hash(). Only the
--     owner of the schema can read them, and a dump contains them.
--   the lowest bit is set once a queue was sharded or has had a max_waiting, and then stays.
create sequence forebay.lane_secret as bigint minvalue -9223372036854775808 cache 1;
