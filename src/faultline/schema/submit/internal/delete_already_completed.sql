-- Delete just inserted jobs whose id is in the ledger, and mark them as not new.
-- The insert comes first: if the ledger were read first, a job that completes before the insert would run again.
create or replace function faultline.delete_already_completed(ids uuid[], news boolean[]) returns boolean[]
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  finished uuid[];
begin
  select array_agg(f.job_id) into finished
  from faultline.ledger f
  where f.job_id = any (delete_already_completed.ids);
  if finished is null then
    return news;
  end if;
  perform faultline.set_current_verb('enqueue');
  delete from faultline.open_jobs j where j.id = any (finished);
  perform faultline.set_current_verb('');
  return (
    select array_agg(u.new and u.id <> all (finished) order by u.position)
    from unnest(ids, news) with ordinality as u (id, new, position)
  );
end
$$;
