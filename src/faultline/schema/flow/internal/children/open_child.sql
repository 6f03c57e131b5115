-- The greatest index, up to `from_index` and above `above`, at which a job of this call is open. Null: there is none.
-- Downwards: the last job to be enqueued is nearly always the last to end.
create or replace function faultline.open_child(call_id bigint, from_index integer, above integer default -1) returns integer
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
#variable_conflict use_column
begin
  return (
    select e.index
    from faultline.edges e
    -- By id only: with the state in the inner query, the planner may scan all queued jobs.
    cross join lateral (select j.state from faultline.open_jobs j where j.id = e.job_id offset 0) o
    where e.call_id = open_child.call_id
      and e.index <= open_child.from_index
      and e.index > open_child.above
      and o.state in ('queued', 'running')
    order by e.index desc
    limit 1
  );
end
$$;
