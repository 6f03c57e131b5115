-- Tell the guards which verb is writing; an empty name when it has written. A failed verb takes this back with all else.
-- A SET clause on the function would be simpler, but only superusers may give one a setting of our own.
create or replace function faultline.as_verb(name text) returns void
language plpgsql volatile
as $$
begin
  perform set_config('faultline.verb', as_verb.name, true);
end
$$;
