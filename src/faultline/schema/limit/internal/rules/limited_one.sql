-- What a limit is about, in words. Raises FL005 for a name that no group can have.
create or replace function faultline.limited_one(queue text, group_key text) returns text
language plpgsql stable
as $$
begin
  if group_key is null or length(group_key) > 200 or faultline.is_unreadable(group_key) then
    raise exception 'a group of queue % must have up to 200 characters, and no control characters', queue using errcode = 'FL005';
  end if;
  return case group_key
    when '' then format('queue "%s"', queue)
    when '*' then format('each group of queue "%s"', queue)
    else format('group "%s" of queue "%s"', group_key, queue)
  end;
end
$$;
