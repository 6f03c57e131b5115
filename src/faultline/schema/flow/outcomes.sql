-- How the jobs of a call stand, in their order: a page of them, after an index. `state` is that of each job; what has been taken
-- (see `collect_outcomes`) is told as it was taken, whatever became of the job since.
-- Needs no lease, as `history`.
create or replace function faultline.outcomes(
  call_id bigint,
  after_index integer default -1,
  max_rows integer default 1000
) returns table (
  index integer,
  job_id uuid,
  state text,
  result jsonb,
  error text
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  -- Empty where all have succeeded and are pruned with this flow, as they mostly are: then nothing is looked up in it.
  taken jsonb;
begin
  perform faultline.check_most('max_rows', outcomes.max_rows);
  select nullif(c.result, '{"failed": {}, "results": {}}') into taken
  from faultline.calls c
  where c.id = outcomes.call_id and c.outcome in ('done', 'failed');
  return query
    select
      e.index,
      e.job_id,
      case
        when t.failed is not null then t.failed ->> 'state'
        when f.job_id is not null or t.result is not null then 'succeeded'
        else coalesce(j.state, faultline.outcome_pruned(e.job_id, e.index))
      end,
      case when t.failed is null then coalesce(f.result, t.result) end,
      case when t.failed is not null then t.failed ->> 'error' when f.job_id is null then j.last_error end
    from (
      select x.index, x.job_id
      from faultline.edges x
      where x.call_id = outcomes.call_id and x.index > outcomes.after_index
      order by x.index
      limit outcomes.max_rows
    ) e
    cross join lateral (
      -- By path: what is between would be copied for each row.
      select taken #> array['failed', e.index::text] as failed, taken #> array['results', e.index::text] as result
    ) t
    -- Looked up one by one, as in `complete`.
    left join faultline.ledger f on f.job_id = any (array[e.job_id])
    -- Of those that are not in the ledger only.
    left join lateral (
      select o.state, o.last_error from faultline.open_jobs o where o.id = any (array[e.job_id]) and f.job_id is null offset 0
    ) j on true
    order by e.index;
end
$$;
