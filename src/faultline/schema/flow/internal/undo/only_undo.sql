-- A saga of this job has failed, so the job does nothing more but undo. Before: the caller has locked its row.
-- After: its open children are closed, and will be cancelled: an undo must not run beside what it undoes. They are undone, and so
-- are those that were cancelled when the job had ended. With
-- `more_attempts` it has as many again as it had: a worker that dies in the last one must not leave the rest as it is.
create or replace function faultline.only_undo(job_id uuid, more_attempts boolean) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
begin
  update faultline.open_jobs j
  set max_attempts = least(1000, j.attempt + j.max_attempts)
  where j.id = only_undo.job_id and only_undo.more_attempts;
  update faultline.calls c
  set ended_at = at,
      ended_moment = nextval(pg_get_serial_sequence('faultline.calls', 'id')),
      outcome = 'closed',
      awaited = false
  where c.job_id = only_undo.job_id and c.kind = 'children' and c.ended_at is null;
  if exists (select from faultline.calls c where c.job_id = only_undo.job_id and c.kind = 'children') then
    insert into faultline.sweeps (job_id, reason) values (only_undo.job_id, 'undo');
    perform faultline.wake_resolvers();
  end if;
end
$$;
