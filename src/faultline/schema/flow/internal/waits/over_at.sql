-- The moment at which a call was over, or null: it is not. A sleep and a timeout at their time, a signal when it was sent, jobs
-- when the last of them had ended; with the policy `fast`, when the first of them had failed. A step when its end was recorded.
create or replace function faultline.over_at(call faultline.calls, at timestamptz) returns timestamptz
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  timeout constant timestamptz := case when call.until <= over_at.at then call.until end;
  -- Not in the query that uses it: there it would be looked for once for each row of the table.
  kept bigint;
  ended timestamptz;
  failed timestamptz;
begin
  if call.kind = 'signal' then
    kept := faultline.kept_signal(call.job_id, call.name, call.number, call.fresh, call.begun_at);
    return least(timeout, (select s.sent_at from faultline.signals s where s.id = kept));
  elsif call.kind in ('children', 'watch') then
    -- A job that was pruned has ended at some time before.
    select
      case when bool_and(o.state is null or o.state not in ('queued', 'running')) and call.spawned >= call.total
        then coalesce(max(coalesce(f.finished_at, o.finished_at)), call.begun_at)
      end,
      case when call.policy = 'fast' then min(o.finished_at) end
    into ended, failed
    from faultline.edges e
    -- Looked up one by one, as in `complete`.
    left join faultline.ledger f on f.job_id = any (array[e.job_id])
    left join lateral (
      select j.state, j.finished_at from faultline.open_jobs j where j.id = any (array[e.job_id]) and f.job_id is null offset 0
    ) o on true
    where e.call_id = call.id;
    return least(timeout, case when call.total = 0 then call.begun_at else ended end, failed);
  elsif call.kind in ('step', 'atomic') then
    return coalesce(call.ended_at, over_at.at);
  end if;
  return timeout;
end
$$;
