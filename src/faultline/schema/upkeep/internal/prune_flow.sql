-- Delete up to `max_jobs` jobs of a flow, the deepest first and its root last. Before: `faultline.verb` is prune, the
-- caller has locked the flow's row, no job of the flow is open, and the caller plans for full tables. Returns how many are
-- gone, whether that was all, the highest token, and where the ledger rows were.
-- A job that the flow only waited for is not deleted: it has a retention time of its own.
create or replace function faultline.prune_flow(
  flow_id uuid, max_jobs integer, out gone integer, out is_gone boolean, out highest bigint, out ctids tid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  parent uuid := prune_flow.flow_id;
  depth integer := 0;
  bite record;
  forgotten record;
begin
  gone := 0;
  is_gone := false;
  highest := 0;
  ctids := '{}';
  loop
    if gone >= prune_flow.max_jobs then
      return;
    end if;
    -- The next children of this job: those without children of their own, and the first one that has some.
    select
      array_agg(b.call_id) filter (where b.is_leaf) as calls,
      array_agg(b.index) filter (where b.is_leaf) as indexes,
      array_agg(b.job_id) filter (where b.is_leaf and b.is_member) as ids,
      (array_agg(b.job_id) filter (where not b.is_leaf))[1] as next_parent
    into bite
    from (
      select
        e.call_id, e.index, e.job_id, m.is_member,
        -- Deeper than any program goes: a circle, as only foreign SQL makes it.
        depth > 1000 or not m.is_member or (
          select d.id
          from faultline.calls d
          cross join lateral (select from faultline.edges x where x.call_id = d.id limit 1) x
          where d.job_id = e.job_id and d.kind = 'children'
          limit 1
        ) is null as is_leaf
      from (
        select e.call_id, e.index, e.job_id
        from faultline.calls c
        cross join lateral (
          select e.call_id, e.index, e.job_id from faultline.edges e where e.call_id = c.id
          order by e.index limit prune_flow.max_jobs - gone
        ) e
        where c.job_id = parent and c.kind = 'children'
        limit prune_flow.max_jobs - gone
      ) e
      -- Each looked up by itself: for `exists`, the planner may read all jobs and keep a table of them.
      cross join lateral (
        select prune_flow.flow_id in (
          (select j.flow_id from faultline.open_jobs j where j.id = e.job_id limit 1),
          (select f.flow_id from faultline.ledger f where f.job_id = e.job_id limit 1)
        ) is true as is_member
      ) m
    ) b;
    if bite.calls is not null then
      forgotten := faultline.forget_jobs(coalesce(bite.ids, '{}'));
      delete from faultline.edges e
      where e.ctid = any (array(
        select x.ctid
        from unnest(bite.calls, bite.indexes) as u (call_id, index)
        cross join lateral (
          select x.ctid from faultline.edges x where x.call_id = u.call_id and x.index = u.index offset 0
        ) x
      ));
      gone := gone + cardinality(bite.calls);
    elsif bite.next_parent is not null then
      parent := bite.next_parent;
      depth := depth + 1;
      continue;
    elsif parent = prune_flow.flow_id then
      forgotten := faultline.forget_jobs(array[parent]);
      delete from faultline.flows f where f.id = parent;
      gone := gone + 1;
      is_gone := true;
    else
      -- All children of a child are gone: it is a leaf now.
      parent := prune_flow.flow_id;
      depth := 0;
      continue;
    end if;
    highest := greatest(highest, forgotten.highest);
    ctids := ctids || coalesce(forgotten.ctids, '{}');
    if is_gone then
      return;
    end if;
  end loop;
end
$$;
