-- Have a BRIN index forget how old the rows were that stood in these places. It keeps the oldest time that a range of pages ever had:
-- when new rows fill the range, every prune would still read it, and in the end the whole table. Vacuum summarizes the range again. A
-- running vacuum holds the lock that this needs. Then this does not wait: prune only reads that range more often.
create or replace function faultline.desummarize_pages(index regclass, ctids tid[]) returns void
language plpgsql volatile
as $$
declare
  patience constant text := current_setting('lock_timeout');
begin
  perform set_config('lock_timeout', '1ms', true);
  -- A range has 32 pages.
  perform brin_desummarize_range(desummarize_pages.index, r.first_page)
  from (
    select distinct (p.ctid::text::point)[0]::bigint / 32 * 32 as first_page from unnest(desummarize_pages.ctids) as p (ctid)
  ) r;
  perform set_config('lock_timeout', patience, true);
exception when lock_not_available then
  null;
end
$$;
