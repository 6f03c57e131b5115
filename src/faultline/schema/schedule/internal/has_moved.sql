-- Whether the schedule that had this name has another one now, by code that is not the caller's, which declares `names`: one that
-- is not among these; or one that is, and whose schedule has moved on likewise, to a name that is not. So older code, which
-- starts again after several schedules have passed their names on to one another, finds each of them.
create or replace function faultline.has_moved(name text, names text[]) returns boolean
language sql stable
as $$
  with recursive later as (
    select s.name from faultline.schedules s where s.was = has_moved.name
    union
    select s.name
    from later l
    join faultline.schedules s on s.was = l.name
    where l.name = any (has_moved.names)
  )
  select exists (select from later l where l.name <> all (has_moved.names));
$$;
