-- Raise FL005 for one invalid job of a submission: which one, and why. Never returns.
-- `ordinal` is its position in the submission, `otherwise` the problem if no other is found.
create or replace function faultline.reject_job(
  jobs json,
  ordinal bigint,
  args_bytes_max integer,
  otherwise text default null,
  at timestamptz default faultline.clock()
) returns text
language plpgsql volatile
as $$
declare
  job constant json := jobs -> (ordinal::integer - 1);
  task constant text := job ->> 'task';
  problem constant text := case
    when json_typeof(job) is distinct from 'object' then 'it is not a JSON object'
    when coalesce(length(task), 0) = 0 then 'it has no task'
    when length(task) > 200 then 'the name of its task is longer than 200 characters'
    when length(job ->> 'queue') = 0 then 'the name of its queue is empty'
    when length(job ->> 'queue') > 100 then 'the name of its queue is longer than 100 characters'
    when faultline.is_unreadable(job ->> 'queue', trimmed => true)
      then 'the name of its queue contains control characters, or begins or ends with white space'
    when json_typeof(job -> 'args') not in ('object', 'null') then 'its args are not a JSON object'
    when octet_length(job ->> 'args') > args_bytes_max
      then format('its args have %s bytes, more than the limit of %s', octet_length(job ->> 'args'), args_bytes_max)
    when length(job ->> 'idempotency_key') = 0 then 'its idempotency_key is empty'
    when length(job ->> 'idempotency_key') > 500 then 'its idempotency_key is longer than 500 characters'
    when (job ->> 'priority')::numeric not between -1000 and 1000 then 'its priority is outside -1000 to 1000'
    when (job ->> 'priority')::numeric % 1 <> 0 then 'its priority is not a whole number'
    when (job ->> 'max_attempts')::numeric not between 1 and 1000 then 'its max_attempts is outside 1 to 1000'
    when (job ->> 'max_attempts')::numeric % 1 <> 0 then 'its max_attempts is not a whole number'
    when (job ->> 'lease_seconds')::numeric not between 0.1 and 86400 then 'its lease is outside 0.1 to 86400 seconds'
    when (job ->> 'delay_seconds')::numeric < 0 then 'its delay is negative'
    when (job ->> 'delay_seconds')::numeric > 315360000 then 'its delay is longer than ten years'
    when job ->> 'delay_seconds' is not null and job ->> 'run_at' is not null then 'it has both a delay and a run_at'
    when length(job ->> 'group') = 0 then 'its group is empty'
    when length(job ->> 'group') > 200 then 'its group is longer than 200 characters'
    when job ->> 'group' = '*' then 'its group is "*", which means each group'
    when faultline.is_unreadable(job ->> 'group') then 'its group contains control characters'
    when job ->> 'run_at' !~ '([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$' then 'its run_at is not a time with a time zone'
    when otherwise is not null then otherwise
    when not faultline.is_time_ordered((job ->> 'id')::uuid) then 'its id is not a UUID of version 7'
    when job ->> 'run_at' is not null and (job ->> 'run_at')::timestamptz not between '1970-01-01Z' and '9999-01-01Z'
      then 'its run_at is outside the years 1970 to 9998'
    else coalesce(
      case when json_typeof(job -> 'unique') <> 'null' then faultline.unique_problem(
        job -> 'unique', job ->> 'delay_seconds' is not null or job ->> 'run_at' is not null
      ) end,
      faultline.expiry_problem(
        (job ->> 'expires_seconds')::numeric, job ->> 'expires_at',
        coalesce((job ->> 'delay_seconds')::numeric, (job -> 'unique' ->> 'debounce')::numeric), job ->> 'run_at', at
      ),
      'one of its fields is invalid'
    )
  end;
begin
  raise exception 'job % of % (task %) is refused: %', ordinal, json_array_length(jobs), coalesce(task, 'without name'), problem
    using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
end
$$;
