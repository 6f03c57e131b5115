-- An attempt writes to a stream for the first time: keep what its program does not write again, and delete the rest.
-- Before: `faultline.verb` is stream, and the caller holds the lease. After: what is kept has no gaps. What moved has the token of
-- this attempt, so that readers read it again.
--
-- A program does not run again what was before its last call on record. So of what was written in a branch that is kept which has
-- a later call on record. A step that has ended is a branch that has ended, and so is all that ran in a race that has.
create or replace function faultline.keep_written(job_id uuid, name text, token bigint) returns void
language plpgsql volatile
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  with known as materialized (
    select c.number, c.kind, c.ended_at is not null as has_ended
    from faultline.calls c
    where c.job_id = keep_written.job_id and c.kind not in ('after', 'retry') and c.doubtful is not true
  ),
  last_of as materialized (
    select array_to_string(p.path[:i.depth - 1], '.') as branch, max(p.path[i.depth]::bigint) as last
    from (select string_to_array(k.number, '.') as path from known k where k.kind <> 'patch') p
    cross join lateral generate_subscripts(p.path, 1) as i (depth)
    group by 1
  ),
  ended as materialized (
    select k.number from known k where k.has_ended and k.kind in ('step', 'atomic', 'race')
    union all
    -- See Written: a branch that has ended while others wait.
    select left(k.number, -4) from known k where k.kind = 'patch' and k.number like '%.0.0'
  ),
  judged as materialized (
    select s.*, exists (
      select from jsonb_each_text(s.reach) as r (branch, made)
      where r.branch in (select e.number from ended e)
        or r.made::numeric < (select l.last from last_of l where l.branch = r.branch)
    ) as is_kept
    from faultline.streams s
    where s.job_id = keep_written.job_id and s.name = keep_written.name
  ),
  behind as materialized (
    select j.* from judged j where j.position >= (select min(g.position) from judged g where not g.is_kept)
  ),
  gone as (
    delete from faultline.streams s
    where s.job_id = keep_written.job_id and s.name = keep_written.name and s.position >= (select min(b.position) from behind b)
  ),
  moved as (
    select
      b.*, sum(jsonb_array_length(b.chunk)) over so_far as items, sum(octet_length(b.chunk::text)) over so_far as added
    from behind b
    where b.is_kept
    window so_far as (order by b.position)
  )
  insert into faultline.streams (job_id, name, fencing_token, position, chunk, bytes, begins_at, reach, written_at)
  select
    keep_written.job_id, keep_written.name, keep_written.token,
    first.position + m.items - jsonb_array_length(m.chunk), m.chunk, first.bytes + m.added,
    first.position + (select max(l.items) from moved l), m.reach, m.written_at
  from moved m
  cross join (
    select min(b.position) as position, coalesce((select max(k.bytes) from judged k where k.position < min(b.position)), 0) as bytes
    from behind b
  ) first;
end
$$;
