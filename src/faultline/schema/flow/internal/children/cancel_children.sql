-- Cancel those of these locked children that are open, and have theirs swept. Those who wait for them are nudged, and the workers
-- of those that run are notified. Returns which were cancelled, or null.
create or replace function faultline.cancel_children(
  calls bigint[], ids uuid[], locked uuid[], undo boolean, out cancelled uuid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  running uuid[];
  watched uuid[];
begin
  with live as materialized (
    select j.id, j.ctid, j.state, j.fencing_token, j.lease_owner, j.claimed_at, j.lease_expires_at, j.renewals, j.watched
    from unnest(calls, ids) as u (call_id, job_id)
    join faultline.open_jobs j on j.id = any (array[u.job_id])
    where j.id = any (locked) and j.state in ('queued', 'running') and j.call_id = u.call_id
      and not exists (
        select from faultline.calls c where c.job_id = any (array[j.id]) and c.kind = 'saga' and c.outcome = 'failed'
      )
  ),
  ended as (
    update faultline.open_jobs j
    set state = 'cancelled',
        finished_at = faultline.clock(),
        lease_owner = null,
        lease_expires_at = null,
        suspended = null,
        last_error = faultline.swept_error()
    from live l
    where j.id = any (array[l.id])
    returning l.id, l.state as was, l.fencing_token, l.lease_owner, l.claimed_at, l.lease_expires_at, l.renewals, l.watched
  ),
  recorded as (
    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
    select
      faultline.clock(), e.id, 'cancelled', e.fencing_token, e.lease_owner,
      jsonb_build_object('was', e.was, 'reason', 'parent') || case e.was
        when 'running' then faultline.lease_details(e.claimed_at, e.lease_expires_at, e.renewals) else '{}'
      end
    from ended e
    order by e.id
  ),
  below as (
    insert into faultline.sweeps (job_id, reason)
    select e.id, case when cancel_children.undo then 'undo' end
    from ended e
    where exists (select from faultline.calls c where c.job_id = any (array[e.id]) and c.kind = 'children')
  )
  select
    array_agg(e.id) filter (where e.was = 'running'), array_agg(e.id) filter (where e.watched),
    array_agg(e.id)
  into running, watched, cancelled
  from ended e;
  if watched is not null then
    perform faultline.nudge_waiters(null, watched, true);
  end if;
  if running is not null and coalesce(current_setting('faultline.notify', true), '') <> 'off' then
    perform pg_notify('faultline', json_build_object('cancelled', r.id)::text) from unnest(running) as r (id);
  end if;
end
$$;
