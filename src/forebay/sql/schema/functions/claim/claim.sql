-- Claim: the jobs that a group has not had yet, from one lane, in the order segment, xid, seq.
--
-- A window (from, to] is two snapshots: a row is in it when it is visible in `to` and not visible in
-- `from`. When a claim uses up a window, `from` becomes `to` and `to` becomes now, in the same call:
-- the batch rule of PgQ (M. Kreen, A. Helsing, Skype, 2007) with the tick inside the claim.
--
-- From which lane a worker claims, and in which order of priorities, is decided in forebay.policy.claims, not here.
-- grant: worker

-- Take at most `p_limit` jobs of one lane, in order. Jobs past their expiry and cancelled ones are
-- skipped and recorded, expired ones as dead letters. Of suspects, one job is taken.
--
-- Parameters:
--   p_lease_id, p_claim_no  the name of the batch. The caller counts `p_claim_no` from 1 and never
--                           uses a number again, even after an error
--   p_floor                 the caller's oldest unfinished claim number, or this one
--   p_group_id, p_lane      as reported by forebay.ready_v1()
--   p_limit                 1 to 10000
--
-- The answer is JSON without the outermost brackets, or null for zero jobs. Each job is an array:
-- `seq`, kind, time of enqueuing (microseconds since 1970) and args; then, if any of them is set,
-- job id, expiry (microseconds), attempts used, `max_attempts`, pauses, tag, correlation id and
-- headers; then the ordering key, if it has one. Offsets in a batch count from 1. A client decodes
-- one text ten times faster than rows.
--
-- Jobs with ordering keys come one key after another or mixed, each key's in its order. Run jobs of
-- one key one at a time, in this order, those of the lease's earlier claims first. If one of them
-- will run again, release all jobs behind it.
--
-- Errors: JQ001 a bad number, floor or limit, 54000 the answer would exceed 1 GB: claim fewer jobs,
--   JQ010 the lease is closed, JQ012, JQ014 no such group, JQ030 foreign cluster.
-- Transaction: alone. Commits asynchronously: a durable settlement makes the earlier claim durable.
-- Locks: in this order, the group's limiter (of a queue with limits on starts or with limit keys
--   only), the lock of the lane, the lock of the group's ordering keys (for these only), the lease
--   (KEY SHARE).
-- See: docs/design/engine.md
--
-- Inside: Invariants: "commit decides", "once per lease", "flat cost" (docs/design/engine.md).
-- Without outer brackets, since a text cannot exceed 1 GB: see forebay._job_json().
-- pages: 110 + 4 a job + 3 an open transaction + 25 a segment
create function forebay.claim_v1(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: hot
as $$
declare
    v_segment bigint;
    v_jobs    text;
    v_rows    forebay.log[];
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        raise exception using errcode = 'JQ001', message = format('limit %s is outside 1 to 10000', coalesce(p_limit::text, 'null'));
    end if;
    if (p_claim_no >= 1 and p_floor between 0 and p_claim_no) is not true then
        raise exception using errcode = 'JQ001',
            message = format('claim %s with floor %s: the number is at least 1, the floor at most the number',
                             coalesce(p_claim_no::text, 'null'), coalesce(p_floor::text, 'null'));
    end if;
    -- Expressions instead of PERFORM, and the test before the call: a statement costs more than either.
    if (forebay._is_alone() and pg_sequence_last_value('forebay.limiter_seq') is null) is not true then
        perform forebay._require_alone('forebay.claim_v1()');
        if exists (select from forebay.lane l
                   where l.lane = p_lane
                     and (l.sort = 'limited' or exists (select from forebay.queue_limits q where q.queue = l.queue and q.starts_set_at is not null)
                          or l.sort = 'keyed' and exists (select from forebay.key_pause p where p.queue = l.queue and p.sort = 'limit'))) then
            return forebay._claim_limited(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit);
        end if;
    end if;
    if set_config('synchronous_commit', 'off', true) is null then
        raise exception 'unreachable';
    end if;
    if not forebay._try_lock_lane(p_group_id, p_lane) then
        perform forebay._wait_for_lane(p_lease_id, p_group_id, p_lane);
    end if;
    -- Two conditions, since a condition with a query is a statement even where the query is not evaluated.
    if pg_sequence_last_value('forebay.key_seq') is not null then
        if exists (select from forebay.lane l where l.lane = p_lane and l.sort = 'keyed') then
            return forebay._claim_keyed(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit);
        end if;
    end if;
    -- include: claim_one_lane
    return v_jobs;
end
$$;
