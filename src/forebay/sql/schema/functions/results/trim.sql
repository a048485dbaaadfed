-- Delete results past their time, and progress older than a day.
create function forebay._trim_results() returns bigint
language plpgsql volatile
as $$
declare
    v_results  bigint;
    v_progress bigint;
begin
    delete from forebay.result r where r.ctid = any (array(
        select o.ctid from forebay.result o where o.kept_until < forebay._now() limit 10000));
    get diagnostics v_results = row_count;
    delete from forebay.progress p where p.ctid = any (array(
        select o.ctid from forebay.progress o where o.recorded_at < forebay._now() - interval '1 day' limit 10000));
    get diagnostics v_progress = row_count;
    return v_results + v_progress;
end
$$;
