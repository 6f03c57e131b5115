-- Which of these declarations are not in force and could be now: there is no such schedule, or it is declared otherwise by code
-- that no living worker has. A worker asks now and then and declares these again. Writes nothing.
create or replace function faultline.stale_schedules(names text[], digests text[]) returns setof text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select u.name
    from unnest(stale_schedules.names, stale_schedules.digests) as u (name, digest)
    left join faultline.schedules s on s.name = u.name
    where s.digest is distinct from u.digest and (s.digest is null or not faultline.live_digest(s.digest));
end
$$;
