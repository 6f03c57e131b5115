-- The cluster and the database, for what is stored by transaction numbers. Kept by the session: to ask reads a file.
create or replace function faultline.cluster() returns text
language plpgsql volatile
as $$
declare
  known text := current_setting('faultline.cluster', true);
begin
  if coalesce(known, '') = '' then
    select c.system_identifier || ' ' || d.oid into known
    from pg_control_system() c cross join pg_database d
    where d.datname = current_database();
    perform set_config('faultline.cluster', known, false);
  end if;
  return known;
end
$$;
