-- Read a chunk of the jobs that a call enqueues, and refuse what no call can have: see spawn. `jobs` comes back as JSON, and was
-- read closely if anything is unusual about it. `keyed`: one of them has a key of its own. `named`: one names a group.
create or replace function faultline.read_chunk(
  wanted faultline.calls,
  first_index integer,
  jobs text,
  at timestamptz,
  args_bytes_max integer,
  out document json,
  out size integer,
  out keyed boolean,
  out named boolean
)
language plpgsql stable
as $$
declare
  chunk_max constant integer := 1000;
  jobs_max constant integer := case wanted.kind when 'children' then 100000 else chunk_max end;
  -- What a client gives a job. With others the document is read more closely.
  fields constant text[] := array[
    'task', 'args', 'queue', 'priority', 'delay_seconds', 'run_at', 'max_attempts', 'lease_seconds', 'idempotency_key', 'id',
    'keep_args', 'trace', 'digest', 'expires_seconds', 'expires_at', 'group', 'unique'
  ];
  unclear boolean;
begin
  if wanted.kind is distinct from 'children' and wanted.kind is distinct from 'detached' then
    raise exception 'kind must be children or detached' using errcode = 'FL005';
  elsif wanted.total > jobs_max then
    raise exception 'job %: call %, "%", cannot have % jobs; % are the limit',
      wanted.job_id, wanted.number, wanted.name, wanted.total, jobs_max
      using errcode = 'FL007', hint = 'Nothing was enqueued. Give each child a part of the work, and let it have children of its own.';
  end if;
  begin
    -- As jsonb as well: what is only JSON cannot be compared with another submission, nor shown.
    select count(*), bool_or(jsonb_typeof(j) <> 'object' or j - fields <> '{}'),
      bool_or(j ->> 'idempotency_key' is not null or j ->> 'unique' is not null), bool_or(j ->> 'group' is not null)
    into size, unclear, keyed, named
    from jsonb_array_elements(jobs::jsonb) j;
  exception
    when data_exception or program_limit_exceeded then
      unclear := true;
  end;
  if unclear then
    -- It says which job is wrong, and why.
    document := faultline.read_jobs(jobs, at, args_bytes_max);
  else
    document := jobs::json;
  end if;
  if size > chunk_max
    or coalesce(wanted.total, -1) < 0
    or coalesce(first_index, -1) < 0
    or first_index + size > wanted.total
    or (size = 0 and wanted.total > 0)
  then
    raise exception 'job %: call %, "%": % jobs from % on are no chunk of %; a chunk has 1 to %',
      wanted.job_id, wanted.number, wanted.name, size, first_index, wanted.total, chunk_max
      using errcode = 'FL005', detail = 'Nothing of this submission was enqueued.';
  end if;
end
$$;
