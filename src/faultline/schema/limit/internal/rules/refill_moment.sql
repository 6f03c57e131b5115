-- Since when a bucket refills, after a look at it. A clock that was set back by less than a second catches up; where it was
-- ahead by more, no job waits for it.
create or replace function faultline.refill_moment(was timestamptz, at timestamptz) returns timestamptz
language sql immutable parallel safe
return case when was > at and was <= at + interval '1 second' then was else at end;
