-- Read a stream of a job: up to `max_rows` chunks behind the one with this token and position, and the state of the job.
-- Always at least one row if the job exists, so that a reader learns from one look whether more can come. A chunk with a
-- greater token than the one before it, and a position that is not behind it, replaces all from that position on.
create or replace function faultline.chunks(
  job_id uuid,
  name text,
  after_token bigint default -1,
  after_position integer default -1,
  max_rows integer default 100
) returns table (
  state text,
  queue text,
  fencing_token bigint,
  "position" integer,
  chunk jsonb
)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
as $$
  select j.state, j.queue, s.fencing_token, s.position, s.chunk
  from (select j.state, j.queue from faultline.jobs j where j.id = $1) j
  left join lateral (
    select s.fencing_token, s.position, s.chunk
    from faultline.streams s
    where s.job_id = $1 and s.name = $2 and (s.fencing_token, s.position) > ($3, $4)
    order by s.fencing_token, s.position
    limit least(greatest($5, 1), 1000)
  ) s on true
  order by s.fencing_token, s.position;
$$;
