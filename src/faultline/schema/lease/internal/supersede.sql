-- Cancel those of these jobs whose unique keys name another queued job. Before: the caller has just queued them again.
-- After: cancelled, with `superseded` in the journal. Otherwise each failed attempt of a job, in whose place another was enqueued
-- while it ran, would add one to those that wait under the same key.
-- The other job starts later than they did, so it does what was asked of them: if it is due no later than they are, and, as
-- they do, no longer expires. Its row is locked, so that it is not cancelled meanwhile. One that others wait for stays: they
-- wait for it and not for the other. So does one of a flow, which would lose what it has done.
-- Claims may have passed over the other, as one that had expired: its group and workers look again.
create or replace function faultline.supersede(job_ids uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  renewed uuid[];
begin
  with other as materialized (
    select j.id, o.id as other
    from unnest(supersede.job_ids) as u (id)
    cross join lateral (
      select j.id, j.task, j.state, j.queue, j.unique_key, j.flow_id, j.call_id, j.watched, j.next_run_at
      from faultline.open_jobs j
      where j.id = u.id
      offset 0
    ) j
    cross join lateral (
      select k.job_id from faultline.unique_keys k where k.queue = j.queue and k.key = j.unique_key and k.task = j.task offset 0
    ) k
    cross join lateral (
      select o.id, o.fencing_token, o.flow_id, o.expires_at, coalesce(o.group_at, o.next_run_at) as due
      from faultline.open_jobs o
      -- Said so that no index of queued jobs fits, as in insert_unique_jobs.
      where o.id = k.job_id and o.id <> j.id and coalesce(o.state, '') = 'queued'
      for update skip locked
    ) o
    where j.state = 'queued'
      and j.flow_id is null
      and j.call_id is null
      and j.watched is not true
      and o.due <= greatest(j.next_run_at, faultline.clock())
      and faultline.will_run_from_start(o.id, o.fencing_token, o.flow_id, o.expires_at, faultline.clock())
  ),
  relied_on as (
    update faultline.open_jobs o
    set expires_at = null
    from other t
    where o.id = any (array[t.other]) and o.expires_at is not null
    returning o.id
  ),
  ended as (
    update faultline.open_jobs j
    set state = 'cancelled',
        finished_at = faultline.clock(),
        last_error = concat_ws(e'\n', 'superseded by job ' || o.other, j.last_error)
    from other o
    where j.id = any (array[o.id])
    returning j.id, j.fencing_token, o.other
  ),
  recorded as (
    insert into faultline.journal (at, job_id, event, fencing_token, detail)
    select faultline.clock(), e.id, 'superseded', e.fencing_token, jsonb_build_object('was', 'queued', 'by_job', e.other)
    from ended e
    order by e.id
  )
  select array_agg(r.id) into renewed from relied_on r;
  if renewed is not null then
    perform faultline.insert_arrival_events(renewed);
    perform faultline.wake_for(renewed);
  end if;
end
$$;
