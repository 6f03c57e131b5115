-- Raise FL005 unless every program can read this moment. `what` says whose it is. Null is no moment.
create or replace function faultline.check_moment(what text, moment timestamptz) returns void
language plpgsql stable
as $$
begin
  if date_part('year', timezone('UTC', check_moment.moment)) not between 1970 and 9999 then
    raise exception '% must be a moment from 1970 to 9999, not %', check_moment.what, check_moment.moment using errcode = 'FL005';
  end if;
end
$$;
