-- Write what these suspended jobs wait for into their histories: see suspend. The waits of a job and its token stand at its
-- position. Before: the caller has locked their rows.
create or replace function faultline.keep_waits(
  ids uuid[], positions bigint[], tokens bigint[], waits jsonb, at timestamptz
) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  perform faultline.check_name('the name of a call', w.name, 200, trimmed => false)
  from unnest(keep_waits.ids, keep_waits.positions) as i (id, position)
  cross join lateral jsonb_to_recordset(keep_waits.waits -> (i.position::integer - 1)) as w (name text)
  where coalesce(length(w.name), 0) not between 1 and 200 or faultline.is_unreadable(w.name);
  insert into faultline.calls (
    job_id, number, kind, name, digest, fencing_token, begun_at, awaited, together, until, policy, fresh
  )
  select
    i.id, w.number, w.kind, w.name, w.digest, keep_waits.tokens[i.position], at, true, w.together,
    coalesce(w.until, at + make_interval(secs => w.seconds)), w.policy, w.fresh
  from unnest(keep_waits.ids, keep_waits.positions) as i (id, position)
  cross join lateral jsonb_to_recordset(keep_waits.waits -> (i.position::integer - 1)) as w (
    number text, kind text, name text, digest text, seconds float8, until timestamptz, policy text, fresh boolean,
    together boolean
  )
  on conflict (job_id, number) do nothing;
  -- What was awaited before and is not now; what is awaited now and was known; the time of one that has none yet.
  update faultline.calls c
  set awaited = k.awaited, together = k.together, until = coalesce(k.again, k.until)
  from (
    select
      o.ctid, w.number is not null as awaited, w.together,
      -- A budget gives another moment each time.
      case when o.number = '0.0.0' then w.until end as again,
      coalesce(o.until, w.until, at + make_interval(secs => w.seconds)) as until
    from unnest(keep_waits.ids, keep_waits.positions) as i (id, position)
    -- Job by job: the planner may take the table for empty, and read all of it first.
    cross join lateral (
      select o.ctid, o.number, o.awaited, o.until from faultline.calls o where o.job_id = i.id and o.ended_at is null offset 0
    ) o
    left join lateral (
      select n.* from jsonb_to_recordset(keep_waits.waits -> (i.position::integer - 1)) as n (
        number text, seconds float8, until timestamptz, together boolean
      )
      where n.number = o.number
    ) w on true
    where o.awaited or w.number is not null
  ) k
  where c.ctid = k.ctid
    and (c.awaited, c.together, c.until) is distinct from (k.awaited, k.together, coalesce(k.again, k.until));
end
$$;
