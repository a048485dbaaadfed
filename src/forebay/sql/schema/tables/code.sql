-- The one-letter codes, by the column that holds them. A letter may mean something else in another column: `c` is an outcome,
-- a reason to skip a job, a request to cancel a job, and a uniqueness mode.
--
-- The outcomes d, c and x are final. With r, l, s, u and h, for jobs that were started or could have been, the job continues in a
-- new row. With k it has no new row: it was requeued behind one of these, or behind y, because of its ordering key. y is final for
-- the job, not for its key.
create view forebay.code (column_name, code, meaning) as values
    ('settlement.outcomes', 'd'::"char", 'done'),
    ('settlement.outcomes', 'c', 'cancelled'),
    ('settlement.outcomes', 'x', 'dead'),
    ('settlement.outcomes', 'y', 'dead, and holds its ordering key'),
    ('settlement.outcomes', 'r', 'retried'),
    ('settlement.outcomes', 'l', 'lost'),
    ('settlement.outcomes', 's', 'snoozed'),
    ('settlement.outcomes', 'u', 'unknown'),
    ('settlement.outcomes', 'h', 'released'),
    ('settlement.outcomes', 'k', 'requeued'),
    ('batch.skipped_as', 'c', 'cancelled'),
    ('batch.skipped_as', 'e', 'expired'),
    ('batch.skipped_as', 'm', 'moved'),
    ('tombstone.reason', 'c', 'cancel'),
    ('tombstone.reason', 'e', 'expired'),
    ('tombstone.reason', 'r', 'replaced'),
    ('tombstone.reason', 'm', 'moved to a newer row'),
    ('tombstone.reason', 'k', 'unique key: check it before the start'),
    ('unique_key.mode', 'o', 'once'),
    ('unique_key.mode', 'i', 'idempotent'),
    ('unique_key.mode', 'c', 'coalesce'),
    ('unique_key.mode', 'r', 'replace'),
    ('unique_key.mode', 'd', 'debounce'),
    ('unique_key.mode', 't', 'throttle'),
    ('subject_state.state', 's', 'scheduled'),
    ('subject_state.state', 'i', 'a run was issued'),
    ('subject_state.state', 'c', 'completed'),
    ('subject_state.state', 'x', 'dead'),
    ('subject_state.state', 'k', 'killed'),
    ('subject_state.state', 'g', 'dropped'),
    ('subject_count.state', 'a', 'scheduled, or with a run'),
    ('subject_count.state', 'c', 'completed'),
    ('subject_count.state', 'x', 'dead'),
    ('subject_count.state', 'k', 'killed'),
    ('counter_change.states', 's', 'scheduled: promoted or moved'),
    ('counter_change.states', 'r', 'retrying: promoted or moved'),
    ('counter_change.states', 'w', 'ready: moved, or ended before a claim'),
    ('counter_change.states', 'a', 'the same, with an ordering key'),
    ('counter_change.why', 'e', 'expired'),
    ('counter_change.why', 'm', 'moved to a newer row');

comment on view forebay.code is 'Meanings of the one-letter codes in the columns of other tables.';
