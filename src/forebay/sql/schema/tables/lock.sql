-- Tables that are only locked; they never hold a row. Advisory locks need no right: any role that may connect could hold the key of
-- a claim or of a maintenance task. LOCK TABLE needs the right to write the table, and PUBLIC has none.
--
-- SHARE UPDATE EXCLUSIVE conflicts with itself, draws no transaction id and writes no WAL: it costs what an advisory lock costs.
-- Partitioned tables without partitions have no file, and neither autovacuum nor the protection against wraparound locks them.
-- Of the numbered ones a hash chooses: two lanes with one lock wait for each other's claims.
do $$
declare
    v_name text;
begin
    for v_name in
        select 'lock_' || n from unnest(array[
            'maintenance', 'promotion', 'sweep', 'retention', 'trim', 'summary', 'forgetting', 'successor', 'mirror_sample', 'routing', 'archive', 'migration', 'counters', 'alert', 'settings', 'polls', 'cancellation']) n
        union all
        select 'lock_lane_' || n from generate_series(0, 127) n
        union all
        select 'lock_worker_' || n from generate_series(0, 15) n
        union all
        select f || n from unnest(array['lock_limiter_', 'lock_keys_', 'lock_gate_']) f, generate_series(0, 63) n
    loop
        execute format('create table forebay.%s (unused integer) partition by list (unused)', v_name);
        execute format('comment on table forebay.%s is ''A lock; it holds no rows.''', v_name);
    end loop;
end
$$;
