-- Have these children undo their sagas: those that were cancelled now, and those that an earlier sweep has cancelled, before there was
-- anything to undo.
create or replace function faultline.undo_children(calls bigint[], ids uuid[], locked uuid[], cancelled uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  swept uuid[];
begin
  swept := array(
    select j.id
    from unnest(calls, ids) as u (call_id, job_id)
    join faultline.open_jobs j on j.id = any (array[u.job_id])
    where j.id = any (locked) and j.id <> all (coalesce(cancelled, '{}')) and j.call_id = u.call_id
      and j.state = 'cancelled' and j.last_error = faultline.swept_error()
  );
  insert into faultline.sweeps (job_id, reason)
  select s.id, 'undo'
  from unnest(swept) as s (id)
  where exists (select from faultline.calls c where c.job_id = any (array[s.id]) and c.kind = 'children');
  perform faultline.begin_undo(p.id, '{"reason": "parent"}') from unnest(cancelled || swept) as p (id);
end
$$;
