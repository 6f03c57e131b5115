-- End the wait of a race that was over first, at `moment`. A signal that came after the time was over is not received.
create or replace function faultline.end_wait(inout call faultline.calls, fencing_token bigint, moment timestamptz, at timestamptz)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- See over_at.
  kept bigint;
begin
  call.outcome := 'done';
  if call.kind = 'signal' then
    kept := faultline.kept_signal(call.job_id, call.name, call.number, call.fresh, call.begun_at);
    update faultline.signals s
    set received_by = call.number, received_at = at
    where s.id = kept
      -- Not one that came after the time was over.
      and s.sent_at = moment
    returning s.payload into call.result;
    call.outcome := case when found then 'done' else 'timeout' end;
  end if;
  update faultline.calls c
  set fencing_token = end_wait.fencing_token, awaited = false, ended_at = at, outcome = call.outcome, result = call.result
  where c.id = call.id;
end
$$;
