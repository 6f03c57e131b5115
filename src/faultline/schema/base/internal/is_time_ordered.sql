-- Whether an id is a UUID of version 7, which begins with its time. Random ones would lie all over the ranges by which tables of
-- jobs may be partitioned.
create or replace function faultline.is_time_ordered(id uuid) returns boolean
language sql immutable parallel safe
return get_byte(uuid_send(id), 6) >> 4 = 7;
