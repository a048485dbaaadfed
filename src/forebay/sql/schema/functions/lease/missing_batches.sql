-- grant: worker

-- Those of a lease's batches that the database does not know: a crash of the server undid their
-- asynchronously committed claims. Their jobs are claimed again; the worker stops its handlers of
-- them.
-- pages: 10 + 5 a job
create function forebay.missing_batches_v1(p_lease_id bigint, p_claim_nos bigint[]) returns bigint[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
    select array(select c.claim_no from unnest(p_claim_nos) c (claim_no)
                 where not exists (select from forebay.batch b
                                   where b.lease_id = p_lease_id and b.claim_no = c.claim_no))
$$;
