-- Take calls out of the history of their jobs: the program will make other ones there. Before: `faultline.verb` is retry.
-- After: their numbers are free. Whoever prunes a flow finds its jobs by the edges of calls, so a call of children stays,
-- under a number of no call of the program ('0.0.7'), and its open children are swept. What a signal had brought is not
-- received again: received_by then names the attempt too.
create or replace function faultline.forget_calls(call_ids bigint[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  update faultline.signals s
  set received_by = c.fencing_token || '/' || c.number
  from faultline.calls c
  where c.id = any (call_ids) and c.kind = 'signal' and s.job_id = c.job_id and s.received_by = c.number;
  insert into faultline.sweeps (job_id, call_id, reason)
  select c.job_id, c.id, 'closed' from faultline.calls c where c.id = any (call_ids) and c.kind = 'children';
  update faultline.calls c
  set number = '0.0.' || c.id, awaited = false, doubtful = null, ended_at = coalesce(c.ended_at, faultline.clock()), outcome = 'closed'
  where c.id = any (call_ids) and c.kind = 'children';
  delete from faultline.edges e
  where e.call_id = any (array(select c.id from faultline.calls c where c.id = any (call_ids) and c.kind <> 'children'));
  delete from faultline.calls c where c.id = any (call_ids) and c.kind <> 'children';
end
$$;
