-- Raise FL002 if this job cannot start over with its parent: its saga was undone, and it would fail at once. Raise 55P03 while it is
-- being undone: it ends as it had ended, and so would its parent. Before: the caller has locked its row.
create or replace function faultline.refuse_reopening(job_id uuid) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  saga constant text := faultline.undone_saga(refuse_reopening.job_id);
  parent record;
begin
  if saga is null and not (
    (select j.state from faultline.open_jobs j where j.id = refuse_reopening.job_id) in ('queued', 'running')
    and exists (
      select from faultline.calls c where c.job_id = refuse_reopening.job_id and c.kind = 'saga' and c.outcome = 'failed'
    )
  ) then
    return;
  end if;
  select c.job_id, c.number into parent
  from faultline.open_jobs j
  join faultline.calls c on c.id = j.call_id
  where j.id = refuse_reopening.job_id;
  if saga is null then
    raise exception 'job % cannot be retried yet: its child % is being undone', parent.job_id, refuse_reopening.job_id
      using errcode = '55P03', hint = 'try again when that has ended';
  end if;
  raise exception 'job % cannot be retried: the saga of its child %, call %, was undone', parent.job_id, refuse_reopening.job_id, saga
    using errcode = 'FL002', hint = case parent.number
      when '0' then 'enqueue the graph again' else format('fork it before call %s: it calls its children anew', parent.number)
    end;
end
$$;
