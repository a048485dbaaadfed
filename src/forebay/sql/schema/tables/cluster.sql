-- The database this schema belongs to. xids of one cluster have no meaning in another: this row identifies a dump that was
-- restored elsewhere, which must be adopted before anything runs.
create table forebay.cluster (
    cluster_no        bigint generated always as identity,
    system_identifier bigint not null,
    database_oid      oid not null,
    recorded_at          timestamptz not null default clock_timestamp(),
    constraint cluster_pk primary key (cluster_no)
);


-- Whether the schema belongs to this cluster is checked once for each start of the server, because reading the server's control
-- file takes longer than most polls. The value of the flag sequence differs after a restart, in a copy of the database and for a
-- restored table.
create sequence forebay.same_cluster_seq as bigint minvalue -9223372036854775808 cache 1;
