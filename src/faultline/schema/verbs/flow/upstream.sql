-- What became of the jobs that a job of a graph came after, in their order: name, task, state, result and error. No rows: it came
-- after none. Raises FL001 if the lease is lost.
-- Before: the caller holds the lease. It is history from then on: a later attempt reads the same states.
create or replace function faultline.upstream(job_id uuid, fencing_token bigint, owner text) returns table (
  name text,
  upstream_id uuid,
  task text,
  state text,
  result jsonb,
  error text
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  call faultline.calls;
  taken record;
begin
  select c.* into call from faultline.calls c where c.job_id = upstream.job_id and c.number = '0' and c.kind = 'after';
  if call.id is null then
    return;
  end if;
  select t.* into taken from faultline.take(upstream.job_id, upstream.fencing_token, upstream.owner, '0') t;
  if taken.status = 'stale' then
    raise exception 'stale lease: job % token % (%)', upstream.job_id, upstream.fencing_token, taken.reason
      using errcode = 'FL001', detail = json_build_object(
        'job_id', upstream.job_id, 'stale_token', upstream.fencing_token, 'current_token', taken.current_token,
        'reason', taken.reason
      )::text;
  end if;
  return query
    select
      coalesce(r.args -> 'names' ->> m.index, j.task), j.id, j.task,
      coalesce(taken.result -> 'failed' -> e.index::text ->> 'state', 'succeeded'),
      case when taken.result -> 'failed' ? e.index::text then null else j.result end,
      taken.result -> 'failed' -> e.index::text ->> 'error'
    from faultline.edges e
    join faultline.jobs j on j.id = e.job_id
    -- Its position in the graph: the root has the names.
    left join faultline.edges m on m.job_id = e.job_id
      and m.call_id in (select c.id from faultline.calls c where c.id = m.call_id and c.kind = 'children' and c.number = '0')
    left join faultline.calls o on o.id = m.call_id
    left join faultline.jobs r on r.id = o.job_id
    where e.call_id = call.id
    order by e.index;
end
$$;
