-- The first rows of a new schema: its secret, its database, the grants, and segments, so that the first enqueue can write.

-- gen_random_uuid() draws from a cryptographic source: 122 bits, of which the first and the last 32 have no fixed ones.
select setval('forebay.lane_secret', ('x' || left(u.id, 8) || right(u.id, 8))::bit(64)::bigint & -2)
from (select gen_random_uuid()::text as id offset 0) u;

-- No lane was retired yet.
select setval('forebay.lane_horizon', 1);

insert into forebay.cluster (system_identifier, database_oid)
select i.system_identifier, i.database_oid from forebay._identity() i;

insert into forebay.event_type (name, description, created_at)
values ('forebay.endpoint_failing', 'An endpoint fails and will be disabled: endpoint, percent of the time until then, since, error.', forebay._now());

select forebay._grant();

select forebay.extend_v1();
