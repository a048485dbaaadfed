-- Types of places in the log that the tables of counters need.

-- Transaction ids from low, up to and without high.
create type forebay._xid_range as (low xid8, high xid8);

-- A lane and a group, with the group's cursor there, for reading what the cursor has not passed. nr names it in results.
create type forebay._cursor as (
    nr bigint, lane bigint, start pg_snapshot, snap_from pg_snapshot, snap_to pg_snapshot, lo bigint, hi bigint, pos_xid xid8,
    pos_seq bigint);
