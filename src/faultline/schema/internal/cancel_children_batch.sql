-- Cancel the open children of this job, or of this one of its calls, among the next `max_edges` after a position. A child whose
-- saga has failed is left alone: it only undoes, and ends by itself.
-- With `undo`, those that have begun sagas are queued again to undo them: nobody will go on with them. So are those that an
-- earlier sweep has cancelled.
-- Returns where the bite ended, how many edges it read, whether it was the last, and the first child that was locked.
create or replace function faultline.cancel_children_batch(
  job_id uuid,
  call_id bigint,
  inout at_call bigint,
  inout at_index integer,
  max_edges integer,
  undo boolean,
  out edges integer,
  out is_last boolean,
  out missed_call bigint,
  out missed_index integer
)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  most constant integer := greatest(cancel_children_batch.max_edges, 1);
  calls bigint[];
  indexes integer[];
  ids uuid[];
  locked uuid[];
  running uuid[];
  watched uuid[];
  parents uuid[];
  swept uuid[];
begin
  select array_agg(b.call_id), array_agg(b.index), array_agg(b.job_id) into calls, indexes, ids
  from (
    select n.call_id, n.index, n.job_id
    from (
      -- By the job only: with the id in the inner query, the planner may read all calls from there on.
      select c.id
      from (select c.id from faultline.calls c where c.job_id = cancel_children_batch.job_id offset 0) c
      where c.id >= cancel_children_batch.at_call
        and (cancel_children_batch.call_id is null or c.id = cancel_children_batch.call_id)
      order by c.id
    ) c
    cross join lateral (
      select e.call_id, e.index, e.job_id
      from faultline.edges e
      where e.call_id = c.id
        and e.index > case when c.id = cancel_children_batch.at_call then cancel_children_batch.at_index else -1 end
      order by e.index
      limit most
    ) n
    order by n.call_id, n.index
    limit most
  ) b;
  edges := coalesce(cardinality(ids), 0);
  is_last := edges < most;
  if edges = 0 then
    return;
  end if;
  at_call := calls[edges];
  at_index := indexes[edges];
  locked := array(
    select j.id from faultline.open_jobs j where j.id = any (ids) for update skip locked
  );
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
    select e.id, case when cancel_children_batch.undo then 'undo' end
    from ended e
    where exists (select from faultline.calls c where c.job_id = any (array[e.id]) and c.kind = 'children')
  )
  select
    array_agg(e.id) filter (where e.was = 'running'), array_agg(e.id) filter (where e.watched),
    array_agg(e.id)
  into running, watched, parents
  from ended e;
  if watched is not null then
    perform faultline.nudge_waiters(null, watched, true);
  end if;
  if running is not null and coalesce(current_setting('faultline.notify', true), '') <> 'off' then
    perform pg_notify('faultline', json_build_object('cancelled', r.id)::text) from unnest(running) as r (id);
  end if;
  if cancel_children_batch.undo then
    -- Also those that an earlier sweep has cancelled, before there was anything to undo.
    swept := array(
      select j.id
      from unnest(calls, ids) as u (call_id, job_id)
      join faultline.open_jobs j on j.id = any (array[u.job_id])
      where j.id = any (locked) and j.id <> all (coalesce(parents, '{}')) and j.call_id = u.call_id
        and j.state = 'cancelled' and j.last_error = faultline.swept_error()
    );
    insert into faultline.sweeps (job_id, reason)
    select s.id, 'undo'
    from unnest(swept) as s (id)
    where exists (select from faultline.calls c where c.job_id = any (array[s.id]) and c.kind = 'children');
    parents := parents || swept;
    perform faultline.begin_undo(p.id, '{"reason": "parent"}') from unnest(parents) as p (id);
  end if;
  -- In a new statement: those that another session has locked. One that has ended may be about to be retried.
  select u.call_id, u.index into missed_call, missed_index
  from unnest(calls, indexes, ids) with ordinality as u (call_id, index, job_id, position)
  cross join lateral (
    select j.call_id from faultline.open_jobs j where j.id = u.job_id offset 0
  ) o
  where o.call_id = u.call_id and u.job_id <> all (locked)
  order by u.position
  limit 1;
end
$$;
