-- A random name, from 1 to 2^62: for rows that another transaction will name after this one has committed.
--
-- A number from a sequence is given out again after a lost commit: the sequence returns with the rest of the server to an earlier
-- state. A client that still uses the old name would then reach the new row. The primary key of the table refuses the rest.
create function forebay._random_name() returns bigint
language sql volatile
as $$
    -- 64 of a version 4 UUID's random bits: its first 12 and its last 4 hexadecimal digits.
    select 1 + (('x' || substr(u.hex, 1, 12) || substr(u.hex, 29))::bit(64)::bigint & 4611686018427387903)
    from (select replace(gen_random_uuid()::text, '-', '') as hex) u
$$;
