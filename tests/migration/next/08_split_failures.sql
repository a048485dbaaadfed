-- A column that moves to a table of its own: written to both, and copied.

create table forebay.failure_trace (
    job_id    bigint not null,
    group_id  bigint not null,
    failed_at timestamptz not null,
    traceback text,
    primary key (job_id, group_id, failed_at)
);

do $$
begin
    execute replace(
        pg_get_functiondef('forebay._note_failure(forebay.log, bigint, integer, text, jsonb, text)'::regprocedure),
        'insert into forebay.failure (',
        'insert into forebay.failure_trace (job_id, group_id, failed_at, traceback)
         values (coalesce(p_row.job_id, p_row.seq), p_group_id, forebay._now(), left(p_error ->> ''traceback'', 16384));
         insert into forebay.failure (');
end
$$;

insert into forebay.failure_trace (job_id, group_id, failed_at, traceback)
select f.job_id, f.group_id, f.failed_at, f.traceback from forebay.failure f
on conflict do nothing;
