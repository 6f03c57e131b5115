-- After a failover that lost commits, or a restored backup: void every lease, and raise the floor of new tokens.
-- Before: live workers may hold tokens of the lost history. After: running jobs are queued again, every new token is
-- above the floor, and external systems that compare tokens see only greater ones.
-- Returns the floor, how many tokens were raised to it, and how many jobs were requeued.
--
-- Every other session waits while this runs, and while it waits for its lock. So it gives up after 0.4 s (55P03),
-- unless the caller has set a lock_timeout; `faultline recover` tries again. It reads and changes running jobs only: a
-- queued job keeps its token, and `claim` takes the greater of that and the floor.
--
-- The default floor is the time in microseconds since 1970. It is above every token of this history and of a lost one,
-- without reading any job: a claim adds one to its job's token, and no job is claimed a million times a second. It
-- stays below 2^53, the limit of exact JSON numbers, until the year 2255. If the floor is already above that time (set
-- by a caller, or by a clock that was ahead), the time is doubled until it is greater. The last floor plus a constant
-- would be wrong: a backup that is restored and recovered twice would use the same tokens twice.
-- The jobs that were running may run on until their workers are refused, or until the leases end by the workers' own
-- clocks. Their permits are free here, and leases that were granted in a lost history are not known at all. So nothing is
-- claimed from a queue with limits for the longest lease that is running here, and for 30 s at least: see claim_limited.
--
-- The journal records who did it, and why (see signature): with the floor, and with every job that was requeued.
create or replace function faultline.recover(
  floor bigint default null,
  by text default null,
  reason text default null
) returns table (
  lifted_to bigint,
  lifted bigint,
  requeued bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature(recover.by, recover.reason);
  chosen bigint;
  microseconds bigint;
  held_for interval;
  unique_ids uuid[];
  patience constant text := current_setting('lock_timeout');
begin
  perform faultline.require_synchronous_commit();
  if recover.floor not between 0 and 4000000000000000000 then
    raise exception 'the floor must be between 0 and 4e18, so that tokens can still grow' using errcode = 'FL005';
  end if;
  -- A claim that has read the old floor holds the table's lock until it commits, so its lease is voided below. A later
  -- claim waits for this lock and reads the new floor. This mode also excludes sessions with row locks: we could
  -- deadlock with them.
  if patience = '0' then
    perform set_config('lock_timeout', '400ms', true);
  end if;
  lock table faultline.open_jobs in exclusive mode;
  held_for := make_interval(
    secs => greatest(
      30,
      (select max(r.lease_seconds) from faultline.open_jobs r where r.state = 'running' and r.lease_expires_at <= 'infinity')
    )
  );
  microseconds := extract(epoch from faultline.clock()) * 1000000;
  update faultline.settings s
  set token_floor = greatest(
    s.token_floor,
    coalesce(
      recover.floor,
      (select min(microseconds << k) from generate_series(0, 12) k where microseconds << k > s.token_floor),
      s.token_floor + 1000000000000
    )
  ),
  recovered_at = greatest(faultline.clock(), s.recovered_at),
  limits_held_until = faultline.clock() + held_for,
  limits_held_for = held_for
  returning s.token_floor into chosen;
  perform set_config('lock_timeout', patience, true);
  perform faultline.advance_sequences();
  insert into faultline.journal (at, event, detail)
  values (
    faultline.clock(), 'setting_changed', jsonb_build_object('setting', 'token_floor', 'value', chosen) || signed
  );
  with before as materialized (
    select j.ctid, j.fencing_token, j.lease_owner from faultline.open_jobs j
    where j.state = 'running' and j.lease_expires_at <= 'infinity'
    order by j.id
    for update
  ),
  changed as (
    update faultline.open_jobs j
    set fencing_token = greatest(j.fencing_token, chosen),
        state = 'queued',
        attempt = j.attempt - 1::smallint,
        started = false,
        lease_owner = null,
        lease_expires_at = null
    from before
    where j.ctid = before.ctid
    returning j.id, j.fencing_token, before.fencing_token as token_was, before.lease_owner, j.unique_key
  ),
  recorded as (
    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
    select
      faultline.clock(), c.id, 'recovered', c.fencing_token, c.lease_owner,
      jsonb_build_object('was', 'running', 'token_was', c.token_was) || signed
    from changed c
    order by c.id
  )
  select chosen, count(*) filter (where c.token_was < chosen), count(*), array_agg(c.id) filter (where c.unique_key is not null)
  into lifted_to, lifted, requeued, unique_ids
  from changed c;
  if unique_ids is not null then
    perform faultline.supersede(unique_ids);
  end if;
  return next;
end
$$;
