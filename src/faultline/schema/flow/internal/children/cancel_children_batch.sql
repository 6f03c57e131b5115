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
  children record;
  locked uuid[];
  cancelled uuid[];
begin
  children := faultline.next_children(
    cancel_children_batch.job_id, cancel_children_batch.call_id, cancel_children_batch.at_call, cancel_children_batch.at_index, most
  );
  edges := coalesce(cardinality(children.ids), 0);
  is_last := edges < most;
  if edges = 0 then
    return;
  end if;
  at_call := children.calls[edges];
  at_index := children.indexes[edges];
  locked := array(
    select j.id from faultline.open_jobs j where j.id = any (children.ids) for update skip locked
  );
  cancelled := faultline.cancel_children(children.calls, children.ids, locked, cancel_children_batch.undo);
  if cancel_children_batch.undo then
    perform faultline.undo_children(children.calls, children.ids, locked, cancelled);
  end if;
  -- In a new statement: those that another session has locked. One that has ended may be about to be retried.
  select u.call_id, u.index into missed_call, missed_index
  from unnest(children.calls, children.indexes, children.ids) with ordinality as u (call_id, index, job_id, position)
  cross join lateral (
    select j.call_id from faultline.open_jobs j where j.id = u.job_id offset 0
  ) o
  where o.call_id = u.call_id and u.job_id <> all (locked)
  order by u.position
  limit 1;
end
$$;
