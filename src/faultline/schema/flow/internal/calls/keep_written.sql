-- An attempt writes to a stream for the first time: keep what its program does not write again, and delete the rest.
-- Before: `faultline.verb` is stream, and the caller holds the lease. After: what is kept has no gaps. What moved has the token of
-- this attempt, so that readers read it again.
--
-- A program does not run again what stands before its last call on record. So an item is kept in these cases:
--   a branch around it has a later call on record;
--   a branch or a race around it has ended;
--   the step that wrote it has ended in the same attempt; a step that ran again wrote anew.
create or replace function faultline.keep_written(job_id uuid, name text, token bigint) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with known as materialized (
    select c.number, c.kind, c.fencing_token, c.ended_at is not null as has_ended, c.doubtful is true as is_doubtful
    from faultline.calls c
    where c.job_id = keep_written.job_id and c.kind not in ('after', 'retry')
  ),
  last_of as materialized (
    select array_to_string(p.path[:i.depth - 1], '.') as branch, max(p.path[i.depth]::bigint) as last
    -- The program may not make a doubtful one again.
    from (select string_to_array(k.number, '.') as path from known k where not k.is_doubtful) p
    cross join lateral generate_subscripts(p.path, 1) as i (depth)
    group by 1
  ),
  ended as materialized (
    select k.number, case when k.kind = 'race' then 0 else k.fencing_token end as since
    from known k
    where k.has_ended and k.kind in ('step', 'atomic', 'race')
    union all
    -- See Written: a branch that has ended while others wait.
    select left(k.number, -4), 0 from known k where k.kind = 'patch' and k.number like '%.0.0'
  ),
  final as materialized (
    select s.position, bool_or(coalesce(r.made::numeric < l.last, false) or coalesce(s.fencing_token >= e.since, false)) as is_kept
    from faultline.streams s
    cross join lateral jsonb_each_text(s.reach) as r (branch, made)
    left join last_of l on l.branch = r.branch
    left join ended e on e.number = r.branch
    where s.job_id = keep_written.job_id and s.name = keep_written.name
    group by s.position
  ),
  behind as materialized (
    select s.position, s.chunk, s.reach, s.written_at, f.is_kept, jsonb_array_length(s.chunk) as items
    from faultline.streams s
    join final f on f.position = s.position
    where s.job_id = keep_written.job_id and s.name = keep_written.name
      and s.position >= (select min(g.position) from final g where not g.is_kept)
  ),
  gone as (
    delete from faultline.streams s
    where s.job_id = keep_written.job_id and s.name = keep_written.name and s.position >= (select min(b.position) from behind b)
  ),
  moved as (
    select b.*, sum(b.items) over so_far as so_many, sum(octet_length(b.chunk::text)) over so_far as added
    from behind b
    where b.is_kept
    window so_far as (order by b.position)
  ),
  first as (
    select b.position, coalesce((
      select max(s.bytes)
      from faultline.streams s
      where s.job_id = keep_written.job_id and s.name = keep_written.name and s.position < b.position
    ), 0) as bytes
    from (select min(b.position) as position from behind b) b
  )
  insert into faultline.streams (job_id, name, fencing_token, position, chunk, bytes, begins_at, reach, written_at)
  select
    keep_written.job_id, keep_written.name, keep_written.token, f.position + m.so_many - m.items, m.chunk, f.bytes + m.added,
    f.position + (select max(l.so_many) from moved l), m.reach, m.written_at
  from moved m
  cross join first f;
end
$$;
