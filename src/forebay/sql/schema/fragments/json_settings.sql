-- Settings of the caller that change what to_jsonb() makes of floats, intervals, byte strings and ranges. TimeZone stays the
-- caller's, since the query may use it; times in JSON have their offset.

set datestyle = 'ISO'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
