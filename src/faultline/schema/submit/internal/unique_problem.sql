-- What is wrong with `unique` of a job, for a message; null: nothing. `is_timed`: the job has a delay or a time of its own.
create or replace function faultline.unique_problem(spec json, is_timed boolean) returns text
language plpgsql immutable
as $$
declare
  unknown text;
begin
  if json_typeof(spec) is distinct from 'object' then
    return 'its unique is not a JSON object';
  end if;
  select f.name into unknown
  from json_object_keys(spec) as f (name)
  where f.name not in ('key', 'while', 'period', 'then', 'debounce', 'at_most')
  limit 1;
  return case
    when unknown is not null then 'its unique has a field ' || to_json(unknown) || ', which does not exist'
    when json_typeof(spec -> 'key') not in ('string', 'null') or length(spec ->> 'key') not between 1 and 500
      then 'the key of its unique is not text of 1 to 500 characters'
    when json_typeof(spec -> 'while') not in ('string', 'null') or spec ->> 'while' not in ('queued', 'open')
      then 'the while of its unique is not "queued", "open" or null'
    when json_typeof(spec -> 'then') not in ('string', 'null') or spec ->> 'then' not in ('keep', 'replace')
      then 'the then of its unique is not "keep" or "replace"'
    when json_typeof(spec -> 'period') not in ('number', 'null') or (spec ->> 'period')::numeric not between 0.001 and 315360000
      then 'the period of its unique is not a number of seconds above zero, of at most ten years'
    when json_typeof(spec -> 'debounce') not in ('number', 'null')
      or (spec ->> 'debounce')::numeric not between 0.001 and 315360000
      then 'the debounce of its unique is not a number of seconds above zero, of at most ten years'
    when json_typeof(spec -> 'at_most') not in ('number', 'null') or (spec ->> 'at_most')::numeric not between 0.001 and 315360000
      then 'the at_most of its unique is not a number of seconds above zero, of at most ten years'
    -- Absent, it is "queued".
    when json_typeof(spec -> 'while') = 'null' and spec ->> 'period' is null
      then 'its unique has neither while nor period, so no job would ever count as the same'
    when json_typeof(spec -> 'while') = 'null' and spec ->> 'debounce' is not null
      then 'its unique has a debounce without while: there would be no queued job to move'
    when spec ->> 'at_most' is not null and spec ->> 'debounce' is null
      then 'its unique has at_most without a debounce'
    when (spec ->> 'at_most')::numeric < (spec ->> 'debounce')::numeric
      then 'the at_most of its unique is shorter than its debounce'
    when is_timed and spec ->> 'debounce' is not null
      then 'its unique has a debounce, which is its delay; leave out delay_seconds and run_at'
  end;
end
$$;
