-- Record an act of an operator, in the transaction of the act; returns the number of the event.
--
-- Invariant "no act without its event": both commit, or neither. The caller records no act that changes nothing.
create function forebay._record_event(
    p_act text, p_queue text default null, p_group text default null, p_kind text default null, p_subject_id bigint default null,
    p_old jsonb default null, p_new jsonb default null, p_count bigint default null, p_detail text default null)
returns bigint
language sql volatile
as $$
    select forebay._announce_act(p_act, p_queue, p_group) where pg_sequence_last_value('forebay.notices_seq') is not null;
    insert into forebay.event (at, role, actor, act, queue, group_name, kind, subject_id, old, new, count, detail)
    values (forebay._now(), session_user, left(nullif(current_setting('forebay.actor', true), ''), 200), p_act, p_queue, p_group, p_kind,
            p_subject_id, p_old, p_new, p_count, left(p_detail, 1000))
    returning event_id
$$;
