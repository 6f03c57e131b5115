-- Raise the error for a job that has no open row: it has succeeded (FL002), or does not exist (FL004).
-- With `only_queues`, jobs of other queues do not exist.
create or replace function faultline.not_open(job_id uuid, wish text, only_queues text[] default null) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if exists (
    select from faultline.ledger f
    where f.job_id = not_open.job_id and (not_open.only_queues is null or f.queue = any (not_open.only_queues))
  ) then
    raise exception 'job % has succeeded and cannot be %', not_open.job_id, not_open.wish
      using errcode = 'FL002', hint = 'enqueue a new job to do the work again';
  end if;
  raise exception 'no job %', not_open.job_id
    using errcode = 'FL004', hint = 'it was never enqueued in this database, or it was pruned after its retention time';
end
$$;
