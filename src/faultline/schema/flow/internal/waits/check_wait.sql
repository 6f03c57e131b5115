-- Raise unless this call of a job waits for a signal of this name now.
create or replace function faultline.check_wait(job_id uuid, number text, signal text, at timestamptz) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  call record;
begin
  select c.kind, c.name, c.ended_at is not null or coalesce(c.until <= check_wait.at, false) as is_over into call
  from faultline.calls c
  where c.job_id = check_wait.job_id and c.number = check_wait.number;
  if not found then
    raise exception 'job % has no call %', check_wait.job_id, check_wait.number
      using errcode = 'FL004', hint = 'see what it waits for with: faultline waiting';
  elsif call.kind <> 'signal' or call.name <> check_wait.signal then
    raise exception 'call % of job % is % "%" and does not wait for a signal "%"',
      check_wait.number, check_wait.job_id, call.kind, call.name, check_wait.signal
      using errcode = 'FL002', hint = 'see what it waits for with: faultline waiting';
  elsif call.is_over then
    raise exception 'job % no longer waits for signal "%" at call %', check_wait.job_id, check_wait.signal, check_wait.number
      using errcode = 'FL002', hint = 'it was received, or the time was over; see what the job waits for now';
  end if;
end
$$;
