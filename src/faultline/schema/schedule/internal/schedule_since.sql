-- From when on the ticks of a new schedule count: from now, and a single moment in any case. Whether that is caught up if it is
-- over, `catch_up` says.
create or replace function faultline.schedule_since(spec json, now timestamptz) returns timestamptz
language sql stable
as $$
  select least(schedule_since.now, (spec ->> 'at')::timestamptz - interval '1 microsecond');
$$;
