-- State of trimming: when its last pass began, in seconds since 1970, and up to which run_at, in microseconds since 1970,
-- deferred rows were removed. While a snapshot is held, removed rows lie in front of those to be removed next.
create sequence forebay.trim_pass_seq as bigint cache 1;
create sequence forebay.trim_position_seq as bigint cache 1;
