-- Raise FL005 if a call stands in the history as another one than the program makes now: the program has changed.
create or replace function faultline.same_call(known faultline.calls, kind text, name text, digest text) returns void
language plpgsql immutable
as $$
begin
  if (known.kind, known.name) is distinct from (same_call.kind, same_call.name) then
    raise exception 'job %: the program has changed: call % was % "%" and is % "%" now',
      known.job_id, known.number, known.kind, known.name, same_call.kind, same_call.name
      using errcode = 'FL005', detail = 'program_changed',
        hint = 'Nothing was written. Bring the old code back, or guard the change with job.patched.';
  -- Of arguments that named the job that this one was forked from, see fork, the program looks itself.
  elsif known.digest is distinct from same_call.digest and known.digest !~ '(^|:)~(/|$)' then
    raise exception 'job %: the program has changed: call %, % "%", has other arguments now',
      known.job_id, known.number, known.kind, known.name
      using errcode = 'FL005', detail = 'program_changed',
        hint = 'Nothing was written. Give it the same arguments each time, or guard the change with job.patched.';
  end if;
end
$$;
