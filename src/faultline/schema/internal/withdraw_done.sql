-- Take back jobs that were just inserted under an id that the ledger knows, and mark them as not new.
-- Inserted first and looked up after: the other way round, a job that finishes between look and insert would run again.
create or replace function faultline.withdraw_done(ids uuid[], news boolean[]) returns boolean[]
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
  where f.job_id = any (withdraw_done.ids);
  if finished is null then
    return news;
  end if;
  perform faultline.as_verb('enqueue');
  delete from faultline.open_jobs j where j.id = any (finished);
  perform faultline.as_verb('');
  return (
    select array_agg(u.new and u.id <> all (finished) order by u.place)
    from unnest(ids, news) with ordinality as u (id, new, place)
  );
end
$$;
