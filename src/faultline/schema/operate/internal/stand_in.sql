-- Enqueue a new job in the place of each of these jobs of a graph, which have succeeded. Returns the ids of the new ones.
-- Before: `faultline.verb` is retry, and the jobs that they come after start over. After: suspended until those have ended;
-- the root of the graph, and jobs that came after the old ones, wait for the new ones. The old ones stay as they are, once
-- in the ledger: they belong to the flow, under a call of its root that is over, and are pruned with it.
create or replace function faultline.stand_in(job_ids uuid[]) returns uuid[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  -- Not those for which an earlier retry has made one: they belong to the flow under a call that is over.
  olds constant uuid[] := array(
    select o.id
    from unnest(stand_in.job_ids) as o (id)
    where exists (
      select from faultline.edges e
      join faultline.calls c on c.id = e.call_id and c.kind = 'children' and c.number = '0'
      where e.job_id = o.id
    )
    order by o.id
  );
  news constant uuid[] := array(select faultline.new_id(1) from unnest(olds));
  root record;
begin
  if cardinality(olds) = 0 then
    return '{}';
  end if;
  insert into faultline.open_jobs (
    id, task, args, queue, priority, next_run_at, max_attempts, lease_seconds, keep_args, created_at, group_key, flow_id, call_id, watched, suspended
  )
  select
    n.new, f.task, f.args, f.queue, f.priority, '9999-01-01Z', f.max_attempts,
    -- The ledger does not know the lease of a job, as for a fork of it.
    30, true, at, f.group_key, f.flow_id, m.call_id,
    case when exists (
      select from faultline.edges e join faultline.calls c on c.id = e.call_id where e.job_id = n.old and c.kind = 'after'
    ) then true end,
    true
  from unnest(olds, news) as n (old, new)
  join faultline.ledger f on f.job_id = any (array[n.old])
  cross join lateral (
    select e.call_id from faultline.edges e
    join faultline.calls c on c.id = e.call_id and c.kind = 'children' and c.number = '0'
    where e.job_id = n.old
    limit 1
  ) m;
  with comes as (
    insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, awaited, policy, total, spawned)
    select n.new, '0', 'after', c.name, 0, at, true, c.policy, c.total, c.spawned
    from unnest(olds, news) as n (old, new)
    join faultline.calls c on c.job_id = n.old and c.kind = 'after'
    returning id, job_id
  )
  insert into faultline.edges (call_id, index, job_id)
  select k.id, e.index, coalesce(u.new, e.job_id)
  from comes k
  join unnest(olds, news) as n (old, new) on n.new = k.job_id
  join faultline.calls c on c.job_id = n.old and c.kind = 'after'
  join faultline.edges e on e.call_id = c.id
  left join unnest(olds, news) as u (old, new) on u.old = e.job_id;
  -- The old ones belong to a call that is over; the root, and open jobs that came after them, get the new ones.
  for root in
    select distinct c.job_id, c.id
    from faultline.edges e join faultline.calls c on c.id = e.call_id and c.kind = 'children' and c.number = '0'
    where e.job_id = any (olds)
  loop
    with call as (
      insert into faultline.calls (id, job_id, number, kind, name, fencing_token, begun_at, ended_at, outcome)
      overriding system value
      -- Under a number that no other retry of this moment takes.
      select n.id, root.job_id, '0.0.' || n.id, 'children', 'replaced', 0, at, at, 'closed'
      from nextval(pg_get_serial_sequence('faultline.calls', 'id')) as n (id)
      returning id
    )
    insert into faultline.edges (call_id, index, job_id)
    select k.id, row_number() over (order by e.index) - 1, e.job_id
    from call k cross join faultline.edges e
    where e.call_id = root.id and e.job_id = any (olds);
  end loop;
  with moved as (
    delete from faultline.edges e
    using faultline.calls c
    where e.job_id = any (olds) and c.id = e.call_id
      and (
        c.kind = 'children' and c.number = '0'
        or c.kind = 'after' and exists (select from faultline.open_jobs j where j.id = c.job_id)
      )
    returning e.call_id, e.index, e.job_id
  )
  insert into faultline.edges (call_id, index, job_id)
  select m.call_id, m.index, n.new from moved m join unnest(olds, news) as n (old, new) on n.old = m.job_id;
  insert into faultline.journal (at, job_id, event, fencing_token, detail)
  select at, j.id, 'forked', j.token, jsonb_build_object(j.way, j.other, 'reason', 'a job that it comes after was retried')
  from unnest(olds, news) as n (old, new)
  join faultline.ledger f on f.job_id = any (array[n.old])
  cross join lateral (values (n.old, f.fencing_token, 'into', n.new), (n.new, 0, 'from', n.old)) as j (id, token, way, other);
  return news;
end
$$;
