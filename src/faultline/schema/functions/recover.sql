-- After a failover that lost commits, or a restored backup: void every lease and lift every open token above a floor.
-- Before: open jobs may carry tokens that a living worker was granted in the lost history. After: every open token is at
-- least the floor, running jobs are queued again, and systems outside that compare tokens see only greater ones.
-- Without a floor, one far above anything the database remembers is chosen. Answers with the floor and what was changed.
create or replace function faultline.recover(floor bigint default null) returns table (
  lifted_to bigint,
  lifted bigint,
  requeued bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  chosen bigint;
begin
  perform faultline.durable();
  if recover.floor not between 0 and 4000000000000000000 then
    raise exception 'the floor must lie between 0 and 4e18, so that tokens can still grow' using errcode = 'FL005';
  end if;
  -- Nobody claims meanwhile: a token granted between the look at the highest one and the lift could lie below the floor.
  -- The mode keeps row locks out too: who holds one would otherwise wait for us while we wait for him.
  lock table faultline.open_jobs in exclusive mode;
  chosen := coalesce(
    recover.floor,
    (select coalesce(max(j.fencing_token), 0) + 1000000 from faultline.open_jobs j)
  );
  -- A job that was lost and is sent again by its id starts above it too: its old token may be known outside.
  update faultline.settings s set token_floor = chosen where s.token_floor < chosen;
  return query
    with before as materialized (
      select j.id, j.state, j.fencing_token, j.lease_owner from faultline.open_jobs j
      where j.fencing_token < chosen or j.state = 'running'
      order by j.id
      for update
    ),
    changed as (
      update faultline.open_jobs j
      set fencing_token = greatest(j.fencing_token, chosen),
          state = case before.state when 'running' then 'queued' else before.state end,
          attempt = case before.state when 'running' then j.attempt - 1::smallint else j.attempt end,
          started = j.started and before.state <> 'running',
          lease_owner = null,
          lease_expires_at = null
      from before
      where j.id = before.id
      returning j.id, j.fencing_token, before.state as was, before.fencing_token as token_was, before.lease_owner
    ),
    recorded as (
      insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
      select
        faultline.clock(), c.id, 'recovered', c.fencing_token, c.lease_owner,
        jsonb_build_object('was', c.was, 'token_was', c.token_was)
      from changed c
      order by c.id
    )
    select chosen, count(*) filter (where c.token_was < chosen), count(*) filter (where c.was = 'running') from changed c;
end
$$;
