-- Those of these queues that have limits. A worker holds nothing ahead in them.
create or replace function faultline.limited(queues text[]) returns setof text
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select q.name from faultline.queues q where q.name = any (limited.queues) and q.limited order by q.name;
$$;
