create function forebay._setting_value(p_name text) returns bigint
language sql stable
as $$ select s.value from forebay.setting s where s.name = p_name $$;
