-- The fields of a limit that a person sets, with what they leave out of its rate: the time is that of the rate in force, so that
-- 100 in place of 600 a minute is 100 a minute, and not 100 a second. The burst in force stays, and goes down with a lower rate in
-- proportion: a person who slows a queue down does not want more to start at once.
-- Without a rate in force, and for fields that are refused anyway, nothing is added.
create or replace function faultline.keep_rate(fields jsonb, in_force jsonb) returns jsonb
language plpgsql immutable
as $$
declare
  kept jsonb := fields;
begin
  if jsonb_typeof(fields) is distinct from 'object' or jsonb_typeof(fields -> 'rate') is distinct from 'number'
    or coalesce(jsonb_typeof(fields -> 'per'), 'number') <> 'number' or jsonb_typeof(in_force -> 'rate') is distinct from 'number'
    or (fields ->> 'rate')::numeric not between 0.001 and 1000000000
    or (fields ->> 'per')::numeric not between 0.000001 and 31536000
  then
    return fields;
  end if;
  if not fields ? 'per' then
    kept := kept || jsonb_build_object('per', in_force -> 'per');
  end if;
  if not fields ? 'burst' then
    -- By numbers that are exact: 60 for 600 a minute are 10 for 100, and not 11.
    kept := kept || jsonb_build_object('burst', greatest(
      least(
        (in_force ->> 'burst')::numeric,
        ceil(
          (in_force ->> 'burst')::numeric * (kept ->> 'rate')::numeric * (in_force ->> 'per')::numeric
          / ((kept ->> 'per')::numeric * (in_force ->> 'rate')::numeric)
        )
      ),
      1
    ));
  end if;
  return kept;
end
$$;
