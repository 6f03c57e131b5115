-- The nudges that a call of `resolve` looks at, up to `most`, and those that it leaves for the next one (`kept`): paused ones, and
-- those that are too many. `left_over` counts the latter. For `cursor` see `resolve`; the next one still lacks what is kept.
create or replace function faultline.read_nudges(
  cursor jsonb, most integer, out chosen bigint[], out kept bigint[], out left_over integer, out next_cursor jsonb
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  run constant text := faultline.server_run();
  -- Taken before the nudges are read: what it does not see, the next call looks for.
  seen constant pg_snapshot := pg_current_snapshot();
  lower_bound xid8 := '0';
  upper_bound xid8;
  under_way xid8[] := '{}';
  batch record;
begin
  kept := '{}';
  -- On another run of the server the numbers mean nothing: after a failover that lost commits, they are used again.
  if read_nudges.cursor ->> 'run' = run and (read_nudges.cursor ->> 'xmax')::xid8 <= pg_snapshot_xmax(seen) then
    lower_bound := (read_nudges.cursor ->> 'xmax')::xid8;
    under_way := array(select u.xid::xid8 from jsonb_array_elements_text(read_nudges.cursor -> 'open') as u (xid));
    kept := array(select u.id::bigint from jsonb_array_elements_text(read_nudges.cursor -> 'kept') as u (id));
  end if;
  with late as materialized (
    select n.id, n.xid, n.not_before
    from faultline.nudges n
    where n.xid = any (under_way) and n.id <> all (kept)
    limit most
  ),
  new as materialized (
    select n.id, n.xid, n.not_before
    from faultline.nudges n
    where n.xid >= lower_bound and n.id <> all (kept)
    order by n.xid, n.id
    limit most
  ),
  there as (
    select n.id, n.not_before from faultline.nudges n where n.id = any (kept)
    union
    select l.id, l.not_before from late l
    union
    select n.id, n.not_before from new n
  )
  select
    array_agg(t.id order by t.id) filter (where t.not_before is null or t.not_before <= at) as due,
    array_agg(t.id) filter (where t.not_before > at) as paused,
    (select count(*) from late) >= most as more_late,
    (select n.xid from new n order by n.xid, n.id offset most - 1) as last_xid
  into batch
  from there t;
  -- Not above what was seen first: a transaction that began since may commit a nudge below the last one that was read.
  upper_bound := least(batch.last_xid, pg_snapshot_xmax(seen));
  under_way := case when batch.more_late then under_way else '{}' end
    || array(select x.xid from pg_snapshot_xip(seen) as x (xid) where x.xid < upper_bound);
  chosen := coalesce(batch.due[:most], '{}');
  kept := coalesce(batch.paused, '{}') || coalesce(batch.due[most + 1:], '{}');
  left_over := coalesce(cardinality(batch.due), 0) - cardinality(chosen)
    + (batch.more_late or batch.last_xid is not null)::integer;
  next_cursor := jsonb_build_object('run', run, 'xmax', upper_bound::text, 'open', to_jsonb(under_way::text[]));
end
$$;
