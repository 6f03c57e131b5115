-- Read the text of a submission. Returns the same text as json. What makes no sense raises FL005 and says which job is
-- wrong, and why: no JSON, a number or an escape that PostgreSQL cannot store, a field that no job has, a value of another type.
-- Nothing is written here, so the blocks with handlers take no transaction ids.
create or replace function faultline.read_jobs(jobs text, at timestamptz, args_bytes_max integer) returns json
language plpgsql volatile
as $$
declare
  -- What a new job may be given, and what becomes of it something else.
  fields constant text[] := array(
    select f.name from json_object_keys(to_json(json_populate_record(null::faultline.new_jobs, '{}'))) as f (name)
    where f.name not in ('created_at', 'next_run_at', 'group_key', 'in_group', 'group_at', 'unique_key')
  ) || array['delay_seconds', 'run_at', 'expires_seconds', 'digest', 'group', 'unique'];
  texts constant text[] := array[
    'id', 'task', 'queue', 'group', 'idempotency_key', 'digest', 'trace', 'run_at', 'expires_at'
  ];
  document json;
  job record;
  wrong json;
  problem text;
  detail text;
begin
  begin
    document := read_jobs.jobs::json;
    if json_typeof(document) is distinct from 'array' then
      raise exception 'jobs must be a JSON array of objects' using errcode = 'FL005';
    end if;
    select j.ordinal, k.name into job
    from json_array_elements(document) with ordinality as j (value, ordinal)
    left join json_each(case json_typeof(j.value) when 'object' then j.value else '{}' end) as k (name, value) on true
    where json_typeof(j.value) <> 'object' or k.name <> all (fields)
      -- As text, 5 and 5.0 would be two names, and a list one that nobody has given.
      or k.name = any (texts) and json_typeof(k.value) not in ('string', 'null')
    order by j.ordinal
    limit 1;
    if found then
      perform faultline.reject_job(
        document, job.ordinal, read_jobs.args_bytes_max, case
          when job.name = any (texts) then format('its %s is not text', job.name)
          else 'no job has a field ' || to_json(job.name)
        end
      );
    end if;
    -- As jsonb as well: what is only JSON cannot be compared with another submission, nor shown.
    perform document::jsonb, count(p.task), max(p.next_run_at)
    from faultline.parse_new_jobs(document, read_jobs.at, read_jobs.args_bytes_max) p;
    return document;
  exception
    when data_exception or program_limit_exceeded then
      get stacked diagnostics detail = pg_exception_detail;
      problem := 'the jobs are refused: ' || concat_ws('. ', sqlerrm, nullif(detail, ''));
  end;
  for job in select j.value, j.ordinal from json_array_elements(document) with ordinality as j (value, ordinal) loop
    begin
      perform job.value::jsonb, count(p.task), max(p.next_run_at)
      from faultline.parse_new_jobs(json_build_array(job.value), read_jobs.at, read_jobs.args_bytes_max) p;
    exception
      when data_exception or program_limit_exceeded then
        get stacked diagnostics detail = pg_exception_detail;
        problem := concat_ws('. ', sqlerrm, nullif(detail, ''));
        wrong := job.value;
        exit;
    end;
  end loop;
  if wrong is not null then
    problem := format(
      'job %s of %s is refused: %s', job.ordinal, json_array_length(document), concat(faultline.unreadable_field(wrong), problem)
    );
  end if;
  raise exception '%', problem using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
end
$$;
