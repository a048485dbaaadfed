-- What trimming remembers: when its last pass began, in seconds since 1970, and up to which run_at, in microseconds since
-- 1970, deferred rows were removed. While somebody holds a snapshot whatever was removed lies in front of what is to be.
create sequence forebay.trim_pass_seq as bigint cache 1;
create sequence forebay.trim_position_seq as bigint cache 1;
