-- As same_call, for a call that enqueues jobs: their number must be the same too.
create or replace function faultline.same_spawn(known faultline.calls, kind text, name text, digest text, total integer)
returns void
language plpgsql immutable
as $$
begin
  perform faultline.same_call(known, same_spawn.kind, same_spawn.name, same_spawn.digest);
  if known.total <> same_spawn.total then
    raise exception 'job %: the program has changed: call %, % "%", had % jobs and has % now',
      known.job_id, known.number, known.kind, known.name, known.total, same_spawn.total
      using errcode = 'FL005', detail = 'program_changed',
        hint = 'Nothing was enqueued. Give it the same items each time: read them in a step.';
  end if;
end
$$;
