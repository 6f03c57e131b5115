-- Compact the measurements. Tallies older than an hour are summed over the workers, those older than 25 hours over all time;
-- sums have no histograms. Samples older than 25 hours are deleted. Returns the number of deleted rows.
-- The sums over all rows of a queue stay what they are: a reader sees the rows before or after, never between.
create or replace function faultline.roll_up(max_rows integer default 10000) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
as $$
declare
  at constant timestamptz := faultline.clock();
  columns text;
  sums text;
  additions text;
  rows_gone integer;
  samples_gone integer;
begin
  perform faultline.check_most('max_rows', roll_up.max_rows);
  -- One at a time: two would wait for each other's rows.
  if not pg_try_advisory_xact_lock(hashtextextended('faultline roll_up', 0)) then
    return 0;
  end if;
  -- Every count and sum, as the table has them: a new one is summed from the day on that it is there. Histograms are arrays.
  select
    string_agg(format('%I', a.attname), ', '),
    string_agg(format('sum(o.%I)', a.attname), ', '),
    string_agg(format('%1$I = t.%1$I + excluded.%1$I', a.attname), ', ')
  into columns, sums, additions
  from pg_attribute a
  where a.attrelid = 'faultline.tallies'::regclass and a.attnum > 0 and not a.attisdropped
    and a.atttypid in ('bigint'::regtype, 'float8'::regtype);
  execute format($statement$
  with recursive tallied (name) as (
    (select queue from faultline.tallies order by queue limit 1)
    union all
    select (select t.queue from faultline.tallies t where t.queue > f.name order by t.queue limit 1)
    from tallied f
    where f.name is not null
  ),
  old as (
    delete from faultline.tallies t
    where t.ctid = any (array(
      select o.ctid from faultline.tallies o
      where o.worker <> '' and o.minute < $1 - interval '1 hour'
      limit $2
    ))
    or t.ctid = any (array(
      select o.ctid
      from tallied f
      join faultline.tallies o
        on o.queue = f.name and o.minute > '-infinity' and o.minute < $1 - interval '25 hours'
      limit $2
    ))
    returning *
  ),
  summed as (
    insert into faultline.tallies as t (queue, minute, worker, %1$s)
    select o.queue, case when o.minute < $1 - interval '25 hours' then '-infinity' else o.minute end, '', %2$s
    from old o
    group by 1, 2
    on conflict (queue, minute, worker) do update
    set %3$s
  )
  select count(*) from old
  $statement$, columns, sums, additions)
  into rows_gone using at, roll_up.max_rows;
  with recursive sampled (name) as (
    (select queue from faultline.samples order by queue limit 1)
    union all
    select (select s.queue from faultline.samples s where s.queue > f.name order by s.queue limit 1)
    from sampled f
    where f.name is not null
  )
  delete from faultline.samples s
  where s.ctid = any (array(
    select o.ctid
    from sampled f
    join faultline.samples o on o.queue = f.name and o.minute < at - interval '25 hours'
    limit roll_up.max_rows
  ));
  get diagnostics samples_gone = row_count;
  return rows_gone + samples_gone;
end
$$;
