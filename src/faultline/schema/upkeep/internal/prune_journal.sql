-- Delete entries of the journal from before `horizon`. Before: the caller plans for full tables. Returns how many, and where they were.
create or replace function faultline.prune_journal(horizon timestamptz, max_rows integer, out gone integer, out ctids tid[])
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with old as (
    delete from faultline.journal n
    where n.ctid = any (array(
      select o.ctid from faultline.journal o where o.at < horizon limit prune_journal.max_rows for update skip locked
    ))
    returning n.ctid
  )
  select count(*), array_agg(o.ctid) into gone, ctids from old o;
end
$$;
