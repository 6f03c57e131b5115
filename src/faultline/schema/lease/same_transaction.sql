-- Raise FL006 unless this is the transaction in which `fence` was called; otherwise return true.
-- If a task commits inside the job's transaction, the row's lock is released and later writes are not fenced. A client
-- cannot find every commit in SQL text, so the database checks before the job is completed in that transaction.
create or replace function faultline.same_transaction(fenced_in xid8) returns boolean
language plpgsql volatile
as $$
begin
  if pg_current_xact_id_if_assigned() is distinct from same_transaction.fenced_in then
    raise exception 'the task ended the job''s transaction itself; later writes are not fenced'
      using errcode = 'FL006',
            detail = json_build_object(
              'fenced_in', same_transaction.fenced_in::text, 'now_in', pg_current_xact_id_if_assigned()::text
            )::text,
            hint = 'let job.transaction() commit or roll back; savepoints are allowed';
  end if;
  return true;
end
$$;
