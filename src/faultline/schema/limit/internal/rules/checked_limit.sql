-- The fields of a limit as they are stored. Raises FL005 for what makes no sense, and says what. A field that is null says
-- "no limit", and is kept: it wins over one that is declared. A rate is stored with its seconds and its burst.
create or replace function faultline.checked_limit(fields jsonb, whose text, for_queue boolean) returns jsonb
language plpgsql stable
as $$
declare
  problem text;
  rate double precision;
begin
  if jsonb_typeof(fields) is distinct from 'object' then
    raise exception 'the limit of % must be a JSON object', whose using errcode = 'FL005';
  end if;
  select case
    when f.key not in ('concurrency', 'rate', 'per', 'burst', 'weight', 'ordered') then format('no limit has a field "%s"', f.key)
    when jsonb_typeof(f.value) = 'null' then null
    when for_queue and f.key in ('weight', 'ordered') then format('"%s" is for groups, not for a queue', f.key)
    when f.key = 'ordered' then case when jsonb_typeof(f.value) <> 'boolean' then '"ordered" must be true or false' end
    when jsonb_typeof(f.value) <> 'number' then format('"%s" must be a number', f.key)
    when f.key = 'concurrency' and (
      f.value::numeric not between 1 and 1000000 or f.value::numeric % 1 <> 0
    ) then '"concurrency" must be a whole number from 1 to 1000000; to stop a queue, pause it'
    when f.key = 'burst' and f.value::numeric not between 1 and 1000000000 then '"burst" must be from 1 to 1000000000'
    when f.key = 'rate' and f.value::numeric not between 0.001 and 1000000000
      then '"rate" must be from 0.001 to 1000000000; give "per" for one job in a longer time'
    when f.key = 'per' and f.value::numeric not between 0.000001 and 31536000
      then '"per" must be greater than 0, and at most 31536000 seconds'
    when f.key = 'weight' and f.value::numeric not between 0.001 and 1000 then '"weight" must be from 0.001 to 1000'
  end into problem
  from jsonb_each(fields) f
  order by 1 nulls last
  limit 1;
  problem := coalesce(problem, case
    when (fields ? 'per' or fields ? 'burst') and not fields ? 'rate' then '"per" and "burst" belong to a "rate"'
    when (fields ->> 'ordered')::boolean and (fields ->> 'concurrency')::numeric > 1
      then 'a group that keeps its order runs one job at a time: leave "concurrency" out'
  end);
  if problem is not null then
    raise exception 'the limit of % is refused: %', whose, problem using errcode = 'FL005', detail = 'Nothing was changed.';
  end if;
  -- As a whole number, however it was written.
  if fields ->> 'concurrency' is not null then
    fields := fields || jsonb_build_object('concurrency', (fields ->> 'concurrency')::numeric::integer);
  end if;
  if fields ? 'rate' then
    rate := (fields ->> 'rate')::double precision;
    fields := fields || jsonb_build_object(
      'per', case when rate is not null then coalesce((fields ->> 'per')::double precision, 1) end,
      'burst', case when rate is not null then coalesce((fields ->> 'burst')::double precision, greatest(1, ceil(rate))) end
    );
  end if;
  return fields;
end
$$;
