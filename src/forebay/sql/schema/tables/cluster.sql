-- Which database this schema lives in. xids of one cluster mean nothing in another: a dump that is
-- restored elsewhere is recognised by this row and must be adopted before anything runs.
create table forebay.cluster (
    cluster_no        bigint generated always as identity,
    system_identifier bigint not null,
    database_oid      oid not null,
    recorded_at          timestamptz not null default clock_timestamp(),
    constraint cluster_pk primary key (cluster_no)
);


-- That this schema is at same cluster here is found out once for each start of the server: reading the server's control file takes longer
-- than most polls. What stands in the flag sequence is another number after a start, in a copy of the database, and for a restored table.
create sequence forebay.same_cluster_seq as bigint minvalue -9223372036854775808 cache 1;
