-- Raise FL005 if a call may look at less than nothing. `what` is the name of the parameter. Null is no limit.
create or replace function faultline.check_most(what text, most integer) returns void
language plpgsql immutable
as $$
begin
  if most < 0 then
    raise exception '% must be a whole number from 0, not %', check_most.what, most
      using errcode = 'FL005', detail = 'Nothing was changed.';
  end if;
end
$$;
