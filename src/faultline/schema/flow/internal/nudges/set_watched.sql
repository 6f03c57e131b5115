-- Have the ends of these jobs told to those who wait for them, by `edges`. Before: the edges are written, and not committed.
-- Never waits: raises 55P03 if one of them is locked. It may be ending, and whoever ends it has not seen the mark.
-- Its callers plan for full tables.
create or replace function faultline.set_watched(job_ids uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  locked uuid;
begin
  with free as materialized (
    select j.ctid
    from (select distinct u.id from unnest(set_watched.job_ids) as u (id)) w
    -- Looked up one by one, as in `complete`.
    join faultline.open_jobs j on j.id = any (array[w.id])
    where j.watched is not true
    for update of j skip locked
  )
  update faultline.open_jobs j set watched = true
  from free
  where j.ctid = free.ctid;
  -- In a new statement: one that has ended meanwhile is gone.
  select j.id into locked
  from unnest(set_watched.job_ids) as u (id)
  join faultline.open_jobs j on j.id = any (array[u.id])
  where j.watched is not true
  limit 1;
  if found then
    raise exception 'job % is locked and cannot be waited for at this moment', locked
      using errcode = 'lock_not_available', hint = 'Nothing was written; send this again in a moment.';
  end if;
end
$$;
