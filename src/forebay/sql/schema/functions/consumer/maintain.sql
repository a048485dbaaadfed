-- grant: worker, operator

-- Do one step of the maintenance that a Python worker does beside its jobs: seal full segments and
-- make new ones, expire jobs that no worker claims, empty and drop segments past their retention, fold
-- counters, delete what is not needed any more. Returns the step that comes next, or null when the
-- round is over, and where a Python worker leads maintenance, which does all this.
--
-- Where all workers are in other languages, call it in a loop, from null to null, every few minutes.
-- Schedules, alerts, and deliveries to endpoints need a Python worker.
--
-- Parameters:
--   step  what the last call returned; null: begin a round
--
-- Example:
--   select forebay.maintain();
--
-- Errors: JQ001 an unknown step, JQ012, JQ030. A lock that is not free leaves a step to the next
--   round.
-- Transaction: alone.
-- Locks: as the function of the step: forebay.seal_v1(), forebay.extend_v1(), forebay.sweep_v1(),
--   forebay.summarize_v1(), forebay.archive_v1(), forebay.retain_v1(), forebay.drop_segments_v1(),
--   forebay.close_groups(), forebay.forget_v1(), forebay.renew_counters_v1(), forebay.fold_v1(),
--   forebay.trim_v1().
-- See: docs/howto/workers-in-other-languages.md#without-a-python-worker
create function forebay.maintain(step text default null) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_steps constant text[] := array['seal', 'extend', 'promote', 'sweep', 'summarize', 'archive', 'retain', 'drop', 'close', 'forget', 'renew', 'fold']
                               || array(select 'trim_' || p from unnest(forebay._trim_parts()) p);
    v_step  constant text := coalesce(split_part(maintain.step, ' ', 1), v_steps[1]);
    v_after text := nullif(substring(maintain.step from position(' ' in maintain.step) + 1), '');
    v_nth   constant integer := array_position(v_steps, v_step);
    -- The other steps have no position.
    v_has_place constant boolean := v_step in ('sweep', 'summarize', 'retain') or starts_with(v_step, 'trim_');
    v_again boolean := false;
begin
    perform forebay._require('step', v_nth is not null and (v_has_place or v_step = coalesce(maintain.step, v_step)), maintain.step,
                             'null, or what the last call returned'),
            forebay._require_alone('forebay.maintain()');
    if maintain.step not like '% %' then
        v_after := null;
    end if;
    if forebay._leader_of(0) is not null then
        return null;
    end if;
    begin
        case v_step
            when 'seal' then perform forebay.seal_v1();
            when 'extend' then v_again := forebay.extend_v1(4) > 0;
            when 'promote' then v_again := forebay.promote_v1(5000) >= 5000;
            when 'sweep' then v_after := (select s.next from forebay.sweep_v1(null, v_after) s);
            when 'summarize' then v_after := (select s.next from forebay.summarize_v1(v_after::bigint) s);
            when 'archive' then v_again := forebay.archive_v1(16) >= 16;
            when 'retain' then v_after := (select r.next from forebay.retain_v1(v_after::bigint) r);
            when 'drop' then v_again := forebay.drop_segments_v1() > 0;
            when 'close' then v_again := forebay.close_groups() > 0;
            when 'forget' then v_again := forebay.forget_v1() > 0;
            when 'renew' then perform forebay.renew_counters_v1();
            when 'fold' then perform forebay.fold_v1();
            else v_after := (select t.next from forebay.trim_v1(substr(v_step, 6), v_after) t);
        end case;
    exception
        when lock_not_available then
            v_after := null;
            v_again := false;
        when invalid_text_representation or numeric_value_out_of_range or invalid_datetime_format or datetime_field_overflow then
            perform forebay._require('step', false, maintain.step, 'null, or what the last call returned');
    end;
    return case when v_after is not null then v_step || ' ' || v_after when v_again then v_step else v_steps[v_nth + 1] end;
end
$$;
