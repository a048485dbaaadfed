-- For a claim.

raise exception using errcode = 'JQ014',
    message = format('group %s not found', p_group_id),
    hint = 'Open the group with forebay.open_group() first.';
