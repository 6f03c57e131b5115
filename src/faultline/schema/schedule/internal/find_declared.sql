-- Lock the schedule that a declaration is about: by its name, by its name before, or by its name after, since a rollback finds what the
-- newer code has renamed. Not one that the same code declares, as `names` and the digests `mine` say: there the old name was given to
-- another schedule. See has_moved. Returns null where there is none.
create or replace function faultline.find_declared(name text, was text, names text[], mine text[]) returns faultline.schedules
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  found_row faultline.schedules;
begin
  select s.* into found_row
  from faultline.schedules s
  where s.name = find_declared.name
    or (
      (s.name = find_declared.was or s.was = find_declared.name and faultline.has_moved(find_declared.name, names))
      and not coalesce(s.digest = any (mine), false)
      and not exists (select from faultline.schedules o where o.name = find_declared.name)
    )
  order by s.id
  limit 1
  for update;
  return found_row;
end
$$;
