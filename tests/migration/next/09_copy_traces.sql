-- Copy rows that were written to the old table only. Transactions older than the last migration may still write there.
-- after all that has begun

insert into forebay.failure_trace (job_id, group_id, failed_at, traceback)
select f.job_id, f.group_id, f.failed_at, f.traceback from forebay.failure f
on conflict do nothing;
