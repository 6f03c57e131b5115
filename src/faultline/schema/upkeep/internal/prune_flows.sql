-- Delete flows that ended before `horizon` and of which no job is open. At most `max_rows` flows are looked at, and so many jobs are
-- deleted. `by_settings`: one that ended badly is kept as long as failed jobs. Before: `faultline.verb` is prune, and the caller plans
-- for full tables. Returns how many jobs, the highest token, and where their ledger rows were.
create or replace function faultline.prune_flows(
  horizon timestamptz, max_rows integer, by_settings boolean, out gone integer, out highest bigint, out ctids tid[]
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  flow record;
  ended_at timestamptz;
  part record;
begin
  gone := 0;
  -- One scan: to look for the next flow each time would read all that were passed over, in this transaction, again.
  for flow in
    select f.id, f.pruning
    from faultline.flows f
    where f.live_at < horizon
    order by f.live_at
    limit prune_flows.max_rows
    for update skip locked
  loop
    exit when gone >= prune_flows.max_rows;
    if not flow.pruning then
      -- When its first job ended. Now, if a job of it is open: then it is looked at again after its retention time.
      ended_at := case when faultline.is_live(flow.id) then faultline.clock() else coalesce(
        (select l.finished_at from faultline.ledger l where l.job_id = flow.id),
        -- A flow that ended badly is kept at least as long as failed jobs.
        (
          select j.finished_at + case when by_settings then make_interval(
            secs => (select greatest(s.keep_failed_seconds - s.keep_flows_seconds, 0) from faultline.settings s)
          ) else '0' end
          from faultline.open_jobs j
          where j.id = flow.id
        ),
        '-infinity'
      ) end;
      update faultline.flows f
      set live_at = ended_at, pruning = ended_at < horizon
      where f.id = flow.id;
      continue when ended_at >= horizon;
    end if;
    part := faultline.prune_flow(flow.id, prune_flows.max_rows - gone);
    gone := gone + part.gone;
    highest := greatest(highest, part.highest);
    ctids := ctids || part.ctids;
  end loop;
end
$$;
