-- Raise FL005 unless a name has 1 to `length_max` characters, and people can read and type it. `what` says whose it is.
-- With `known`, only its length counts: what was named before there was this rule can still be resumed and removed.
create or replace function faultline.check_name(
  what text, name text, length_max integer, trimmed boolean default true, known boolean default false
) returns void
language plpgsql stable
as $$
begin
  if coalesce(length(check_name.name), 0) not between 1 and check_name.length_max then
    raise exception '% must have 1 to % characters', check_name.what, check_name.length_max using errcode = 'FL005';
  end if;
  if not check_name.known and faultline.is_unreadable(check_name.name, check_name.trimmed) then
    raise exception '% must not contain control characters%',
      check_name.what, case when check_name.trimmed then ', or begin or end with white space' else '' end
      using errcode = 'FL005', hint = 'this includes characters that change the direction of text (bidi)';
  end if;
end
$$;
