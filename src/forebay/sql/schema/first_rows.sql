-- What a new schema begins with: the database it lives in, grants, and segments, so that the first enqueue can write.
insert into forebay.cluster (system_identifier, database_oid)
select i.system_identifier, i.database_oid from forebay._identity() i;

select forebay._grant();

select forebay.extend_v1();
