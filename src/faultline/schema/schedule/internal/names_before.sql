-- The names that a schedule had before, as its declaration says: `was` is one, or several. The first is the one that it goes by: the
-- one that it is known to have had, or else the first that is in force. So code names all of them, and each environment finds its own,
-- however many renames it has seen.
create or replace function faultline.names_before(declaration json) returns text[]
language sql stable
as $$
  select array_agg(w.name order by coalesce(own.was = w.name, false) desc, own.id is null and s.id is not null desc, w.position)
  from json_array_elements_text(
    case json_typeof(names_before.declaration -> 'was')
      when 'array' then names_before.declaration -> 'was'
      else json_build_array(names_before.declaration -> 'was')
    end
  ) with ordinality as w (name, position)
  left join faultline.schedules own on own.name = names_before.declaration ->> 'name'
  left join faultline.schedules s on s.name = w.name;
$$;
