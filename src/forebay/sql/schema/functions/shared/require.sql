-- Refuse the value of a parameter unless it is right: JQ001 names the parameter, shows the value and says what is wanted. Returns true, so
-- that an expression may ask.
create function forebay._require(p_parameter text, p_is_right boolean, p_value text, p_wanted text) returns boolean
language plpgsql immutable
as $$
begin
    if p_is_right is not true then
        raise exception using errcode = 'JQ001', column = p_parameter,
            message = format('%s is %s, not %s', p_parameter, coalesce(quote_literal(left(p_value, 100)), 'null'), p_wanted),
            hint = format('Nothing was changed. Give %s.', p_wanted);
    end if;
    return true;
end
$$;
