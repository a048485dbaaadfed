-- What was written to the old place only. Who began before the last migration may still be writing there.
-- after all that has begun

insert into forebay.failure_trace (job_id, group_id, failed_at, traceback)
select f.job_id, f.group_id, f.failed_at, f.traceback from forebay.failure f
on conflict do nothing;
