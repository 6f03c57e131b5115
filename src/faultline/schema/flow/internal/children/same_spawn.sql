-- As same_call, for a call that enqueues jobs: their number must be the same too.
create or replace function faultline.same_spawn(known faultline.calls, wanted faultline.calls) returns void
language plpgsql immutable
as $$
begin
  perform faultline.same_call(known, wanted.kind, wanted.name, wanted.digest);
  if known.total <> wanted.total then
    raise exception 'job %: the program has changed: call %, % "%", had % jobs and has % now',
      known.job_id, known.number, known.kind, known.name, known.total, wanted.total
      using errcode = 'FL005', detail = 'program_changed',
        hint = 'Nothing was enqueued. Give it the same items each time: read them in a step.';
  end if;
end
$$;
