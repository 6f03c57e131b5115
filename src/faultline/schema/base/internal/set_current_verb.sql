-- Name the verb that writes now, for the guards; '' when it has finished. A rollback undoes this too.
-- A SET clause on the verb would be simpler, but only a superuser may set a custom parameter there.
create or replace function faultline.set_current_verb(name text) returns void
language plpgsql volatile
as $$
begin
  perform set_config('faultline.verb', set_current_verb.name, true);
end
$$;
