-- The column that has moved.
-- locks: failure

do $$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid from pg_proc p
        where p.pronamespace = 'forebay'::regnamespace and p.prosrc like '%f.traceback%'
    loop
        execute replace(
            pg_get_functiondef(v_function), 'f.traceback',
            '(select t.traceback from forebay.failure_trace t
              where (t.job_id, t.group_id, t.failed_at) = (f.job_id, f.group_id, f.failed_at))');
    end loop;
    execute replace(replace(
        pg_get_functiondef('forebay._note_failure(forebay.log, bigint, integer, text, jsonb, text)'::regprocedure),
        'message, traceback, worker)', 'message, worker)'),
        'left(p_error ->> ''message'', 4096), left(p_error ->> ''traceback'', 16384), p_worker)', 'left(p_error ->> ''message'', 4096), p_worker)');
end
$$;

alter table forebay.failure drop column traceback;
