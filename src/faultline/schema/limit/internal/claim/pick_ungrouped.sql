-- Due jobs of no group, of a queue with limits: lowest priority number first, then the longest due. Returns their ctids,
-- locked. As in `claim`, each priority is a range scan of its own. Passes over 1,000 others at most: see has_due_ungrouped.
create or replace function faultline.pick_ungrouped(queue text, due timestamptz, most integer) returns tid[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  ctids tid[] := '{}';
  level integer := -32769;
  found_level integer;
begin
  while cardinality(ctids) < pick_ungrouped.most loop
    select j.priority into found_level
    from faultline.open_jobs j
    where j.queue = pick_ungrouped.queue and j.state = 'queued'
      and j.priority > level and j.priority < case when level < 0 then 0 else 32768 end
    order by j.priority
    limit 1;
    -- Priority 0 is not searched for: see has_due_ungrouped.
    if found then
      level := found_level;
    elsif level < 0 then
      level := 0;
    else
      exit;
    end if;
    ctids := ctids || array(
      select r.ctid
      from (
        select
          r.ctid as row_id,
          r.group_key is null and (r.expires_at is null or r.expires_at > pick_ungrouped.due or r.fencing_token > 0) as may_start
        from faultline.open_jobs r
        where r.queue = pick_ungrouped.queue
          and r.state = 'queued'
          and r.priority = level
          and r.next_run_at <= pick_ungrouped.due
        order by r.next_run_at, r.id
        limit pick_ungrouped.most - cardinality(ctids) + 1000
      ) x
      join faultline.open_jobs r on r.ctid = x.row_id
      where x.may_start
        -- Checked again, since another session may have been faster. Written so that no index fits, as in pick_from_groups.
        and coalesce(r.state, '') = 'queued'
      limit pick_ungrouped.most - cardinality(ctids)
      for update of r skip locked
    );
  end loop;
  return ctids;
end
$$;
