-- A claim ends with the job that brings the texts of its jobs to this size, in bytes: a worker holds two claims, and while a claim
-- is written and read, the worker is not served from another lane.
create function forebay._claim_bytes() returns integer
language sql immutable
as $$ select 2097152 $$;


-- The size of a job as text, in bytes, without its short fields. Of stored arguments beyond a quarter of a megabyte it is an
-- estimate, at least one megabyte. The stored size alone says little: it can be that of a compressed value, or of a number with
-- thousands of zeros.
create function forebay._job_bytes(p_args jsonb, p_headers jsonb) returns integer
language sql stable
as $$
    select case when pg_column_size(p_args) > 262144 then greatest(1048576, pg_column_size(p_args)) else octet_length(p_args::text) end
           + case when p_headers is null then 0 else octet_length(p_headers::text) end
$$;
