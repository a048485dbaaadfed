-- The first rows of a new schema: its database, the grants, and segments, so that the first enqueue can write.
insert into forebay.cluster (system_identifier, database_oid)
select i.system_identifier, i.database_oid from forebay._identity() i;

select forebay._grant();

select forebay.extend_v1();
