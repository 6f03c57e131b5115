-- What limits say, and how they change.

-- How many jobs may run at once under a limit. Null: any number. A group that keeps its order runs one.
create or replace function faultline.cap_of(fields jsonb) returns integer
language sql immutable parallel safe
return case when (fields ->> 'ordered')::boolean then 1 else (fields ->> 'concurrency')::integer end;

-- How many jobs a limit lets start per second. Null: any number.
create or replace function faultline.rate_of(fields jsonb) returns double precision
language sql immutable parallel safe
return (fields ->> 'rate')::double precision / (fields ->> 'per')::double precision;

-- The weight of a group: one of weight 2 gets twice as much as one of weight 1.
create or replace function faultline.weight_of(fields jsonb) returns double precision
language sql immutable parallel safe
return coalesce((fields ->> 'weight')::double precision, 1);

-- What one group may do: as each, but for its own fields. Claims call it for each group that they look at, so it is a query that
-- PostgreSQL puts into theirs, and `each_group` is what each_group_limits has read.
create or replace function faultline.limits_of_group(
  queue text, group_key text, each_group faultline.group_limits
) returns table (cap integer, rate double precision, burst double precision, weight double precision)
language sql stable
as $$
  select
    case when o.fields is null then (each_group).cap else coalesce(faultline.cap_of(o.fields), 2147483647) end,
    case when o.fields is null then (each_group).rate else faultline.rate_of(o.fields) end,
    case when o.fields is null then (each_group).burst else (o.fields ->> 'burst')::double precision end,
    case when o.fields is null then (each_group).weight else faultline.weight_of(o.fields) end
  from (select) as one
  left join lateral (
    select (each_group).fields || l.effective as fields
    from faultline.limits l
    where (each_group).have_own and l.queue = limits_of_group.queue and l.group_key = limits_of_group.group_key
    limit 1
  ) o on true
  offset 0
$$;

-- What one group may do: its own fields, and those of each group where it has none. PL/pgSQL, so that no plan of an empty table
-- is kept: PostgreSQL 18 keeps those of functions in SQL.
create or replace function faultline.group_limit(queue text, group_key text) returns jsonb
language plpgsql stable parallel safe
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  return coalesce((
    select l.effective from faultline.limits l where l.queue = group_limit.queue and l.group_key = '*'
  ), '{}') || coalesce((
    select l.effective from faultline.limits l where l.queue = group_limit.queue and l.group_key = group_limit.group_key
  ), '{}');
end
$$;

-- What each group of a queue may do, read from its fields once: see limits_of_group.
create or replace function faultline.each_group_limits(queue text) returns faultline.group_limits
language plpgsql stable
as $$
#variable_conflict use_column
declare
  fields constant jsonb := coalesce(
    (select l.effective from faultline.limits l where l.queue = each_group_limits.queue and l.group_key = '*'), '{}'
  );
begin
  return row(
    fields, coalesce(faultline.cap_of(fields), 2147483647), faultline.rate_of(fields),
    (fields ->> 'burst')::double precision, faultline.weight_of(fields),
    exists (select from faultline.limits l where l.queue = each_group_limits.queue and l.group_key not in ('', '*'))
  )::faultline.group_limits;
end
$$;

-- What a limit is about, in words. Raises FL005 for a name that no group can have.
create or replace function faultline.limited_one(queue text, group_key text) returns text
language plpgsql stable
as $$
begin
  if group_key is null or length(group_key) > 200 or faultline.is_unreadable(group_key) then
    raise exception 'a group of queue % must have up to 200 characters, and no control characters', queue using errcode = 'FL005';
  end if;
  return case group_key
    when '' then format('queue "%s"', queue)
    when '*' then format('each group of queue "%s"', queue)
    else format('group "%s" of queue "%s"', group_key, queue)
  end;
end
$$;

-- The fields of a limit as they are stored. Raises FL005 for what makes no sense, and says what. A field that is null says
-- "no limit", and is kept: it wins over one that is declared. A rate is stored with its seconds and its burst.
create or replace function faultline.checked_limit(fields jsonb, whose text, for_queue boolean) returns jsonb
language plpgsql stable
as $$
declare
  problem text;
  rate double precision;
begin
  if jsonb_typeof(fields) is distinct from 'object' then
    raise exception 'the limit of % must be a JSON object', whose using errcode = 'FL005';
  end if;
  select case
    when f.key not in ('concurrency', 'rate', 'per', 'burst', 'weight', 'ordered') then format('no limit has a field "%s"', f.key)
    when jsonb_typeof(f.value) = 'null' then null
    when for_queue and f.key in ('weight', 'ordered') then format('"%s" is for groups, not for a queue', f.key)
    when f.key = 'ordered' then case when jsonb_typeof(f.value) <> 'boolean' then '"ordered" must be true or false' end
    when jsonb_typeof(f.value) <> 'number' then format('"%s" must be a number', f.key)
    when f.key = 'concurrency' and (
      f.value::numeric not between 1 and 1000000 or f.value::numeric % 1 <> 0
    ) then '"concurrency" must be a whole number from 1 to 1000000; to stop a queue, pause it'
    when f.key = 'burst' and f.value::numeric not between 1 and 1000000000 then '"burst" must be from 1 to 1000000000'
    when f.key = 'rate' and f.value::numeric not between 0.001 and 1000000000
      then '"rate" must be from 0.001 to 1000000000; give "per" for one job in a longer time'
    when f.key = 'per' and f.value::numeric not between 0.000001 and 31536000
      then '"per" must be greater than 0, and at most 31536000 seconds'
    when f.key = 'weight' and f.value::numeric not between 0.001 and 1000 then '"weight" must be from 0.001 to 1000'
  end into problem
  from jsonb_each(fields) f
  order by 1 nulls last
  limit 1;
  problem := coalesce(problem, case
    when (fields ? 'per' or fields ? 'burst') and not fields ? 'rate' then '"per" and "burst" belong to a "rate"'
    when (fields ->> 'ordered')::boolean and (fields ->> 'concurrency')::numeric > 1
      then 'a group that keeps its order runs one job at a time: leave "concurrency" out'
  end);
  if problem is not null then
    raise exception 'the limit of % is refused: %', whose, problem using errcode = 'FL005', detail = 'Nothing was changed.';
  end if;
  -- As a whole number, however it was written.
  if fields ->> 'concurrency' is not null then
    fields := fields || jsonb_build_object('concurrency', (fields ->> 'concurrency')::numeric::integer);
  end if;
  if fields ? 'rate' then
    rate := (fields ->> 'rate')::double precision;
    fields := fields || jsonb_build_object(
      'per', case when rate is not null then coalesce((fields ->> 'per')::double precision, 1) end,
      'burst', case when rate is not null then coalesce((fields ->> 'burst')::double precision, greatest(1, ceil(rate))) end
    );
  end if;
  return fields;
end
$$;

-- Store one limit, declared or set by a person, and let groups that waited under the old one look again.
-- Before: the caller has called limit_queue. Returns whether anything changed; if so, the journal says what.
create or replace function faultline.write_limit(
  queue text, group_key text, declared jsonb, override jsonb, signed jsonb
) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  was faultline.limits;
  effective constant jsonb := declared || override;
begin
  select * into was from faultline.limits l where l.queue = write_limit.queue and l.group_key = write_limit.group_key;
  if (coalesce(was.declared, '{}'), coalesce(was.override, '{}')) = (write_limit.declared, write_limit.override) then
    return false;
  end if;
  if write_limit.declared = '{}' and write_limit.override = '{}' then
    delete from faultline.limits l where l.queue = write_limit.queue and l.group_key = write_limit.group_key;
  else
    -- Who has set what wins over the code stays on record, whatever is deployed after.
    insert into faultline.limits as l (queue, group_key, declared, override, effective, changed_at, changed_by, reason)
    values (
      write_limit.queue, write_limit.group_key, write_limit.declared, write_limit.override, effective, faultline.clock(),
      signed ->> 'by', signed ->> 'reason'
    )
    on conflict (queue, group_key) do update
    set declared = excluded.declared, override = excluded.override, effective = excluded.effective,
        changed_at = case when l.override = excluded.override and l.override <> '{}'
          then l.changed_at else excluded.changed_at end,
        changed_by = case when l.override = excluded.override and l.override <> '{}'
          then l.changed_by else excluded.changed_by end,
        reason = case when l.override = excluded.override and l.override <> '{}' then l.reason else excluded.reason end;
  end if;
  insert into faultline.journal (at, event, detail)
  values (
    faultline.clock(), 'limit_changed',
    jsonb_build_object(
      'queue', write_limit.queue, 'group', write_limit.group_key, 'was', coalesce(was.effective, '{}'), 'is', effective,
      'by_code', write_limit.declared <> coalesce(was.declared, '{}')
    ) || signed
  );
  -- What the queue as a whole may do is asked by each claim, and stored with no group.
  if write_limit.group_key <> '' then
    perform faultline.recheck_groups(write_limit.queue, write_limit.group_key, coalesce(was.effective, '{}'));
  end if;
  perform faultline.wake(write_limit.queue, -32768, '1970-01-01 00:00:00+00');
  return true;
end
$$;

-- Make a queue one with limits, and lock it for a change of them. Claims that hold it are waited for; what is granted after the
-- commit is granted under what the caller writes.
-- A row that is missing, deleted by hand or not restored, is written again: with the permits that jobs hold, behind the turns of
-- its groups, and with no tokens, since those that were taken are not known.
create or replace function faultline.limit_queue(queue text) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  was boolean;
begin
  perform faultline.check_name('the name of a queue', limit_queue.queue, 100);
  insert into faultline.queues (name) values (limit_queue.queue) on conflict do nothing;
  select q.limited into was from faultline.queues q where q.name = limit_queue.queue for update;
  perform from faultline.limited_queues l where l.queue = limit_queue.queue for update;
  if found and was then
    return;
  elsif not found then
    insert into faultline.limited_queues (queue, changed_second, tokens, refilled_at, arrival_virtual_time)
    select
      limit_queue.queue, extract(epoch from faultline.clock()), case when was then 0 end, case when was then faultline.clock() end,
      coalesce(max(g.virtual_time), 0)
    from faultline.groups g
    where g.queue = limit_queue.queue and g.ready;
  end if;
  update faultline.queues q set limited = true where q.name = limit_queue.queue;
  perform faultline.recount_queue(limit_queue.queue);
  -- All at once: what is enqueued after this stands in its group, and must not overtake what was enqueued before.
  perform faultline.move_due_jobs_into_groups(limit_queue.queue, faultline.clock(), 2147483647);
end
$$;

-- After a change of the limit of one group, or of each ('*'): make groups ready that waited for a permit or a token and may go on
-- now, put jobs forward that keep their group's permit and waited for a token, and give groups that hold something their new
-- weight. Before: the caller holds the queue's lock and has written the limit. `was`: the limit before.
-- Writes no other group: claims wait meanwhile, however many groups the queue has.
create or replace function faultline.recheck_groups(queue text, group_key text, was jsonb) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  at constant timestamptz := faultline.clock();
  each_group constant jsonb := faultline.group_limit(recheck_groups.queue, '*');
  old_fields constant jsonb := case recheck_groups.group_key when '*' then '{}' else each_group end || recheck_groups.was;
  new_fields constant jsonb := faultline.group_limit(recheck_groups.queue, recheck_groups.group_key);
  -- A slower rate is read at the next token.
  faster constant boolean := coalesce(
    faultline.rate_of(old_fields) < coalesce(faultline.rate_of(new_fields), 'infinity'), false
  );
  reweighed constant boolean := faultline.weight_of(old_fields) <> faultline.weight_of(new_fields);
begin
  update faultline.groups g
  set ready = g.has_waiting and (faster or g.not_before is null) and g.holding < coalesce(faultline.cap_of(l.fields), 2147483647)
        and (t.tokens < 1) is not true,
      not_before = case
        when not faster then g.not_before
        when t.tokens < 1 then at + make_interval(secs => (1 - t.tokens) / faultline.rate_of(l.fields))
      end,
      holding_per_weight = g.holding / faultline.weight_of(l.fields),
      -- Its virtual time grew by its old weight: it begins again.
      virtual_time = coalesce(greatest(
        case when not reweighed then g.virtual_time end,
        (
          select s.arrival_virtual_time from faultline.limited_queues s
          where s.queue = g.queue order by s.changed_second desc limit 1
        )
      ), g.virtual_time)
  from (
    -- By the cheap columns first.
    select o.ctid, o.group_key, o.tokens, o.refilled_at
    from faultline.groups o
    where o.queue = recheck_groups.queue
      and (recheck_groups.group_key = '*' or o.group_key = recheck_groups.group_key)
      and (
        o.has_waiting and not o.ready and o.not_before is null
        or faster and o.not_before is not null
        or reweighed and (o.has_waiting or o.holding > 0)
      )
    offset 0
  ) o
  cross join lateral (select faultline.group_limit(recheck_groups.queue, o.group_key) as fields offset 0) l
  cross join lateral (
    select case when faster then faultline.refilled(
      o.tokens, o.refilled_at, faultline.rate_of(l.fields), (l.fields ->> 'burst')::double precision, at
    ) end as tokens
    offset 0
  ) t
  where g.ctid = o.ctid
    and (
      g.not_before is not null and faster
      or g.has_waiting and not g.ready and g.not_before is null and g.holding < coalesce(faultline.cap_of(l.fields), 2147483647)
      or reweighed
    );
  if faster then
    -- Jobs that keep their group's permit were put off until the next token of the old rate.
    with put_off as materialized (
      select j.ctid
      from faultline.open_jobs j
      where j.queue = recheck_groups.queue
        and j.state = 'queued' and j.group_key is not null and j.in_group is null and j.has_permit
        and j.group_at is not null
        and (recheck_groups.group_key = '*' or j.group_key = recheck_groups.group_key)
      for update skip locked
    )
    update faultline.open_jobs j set next_run_at = j.group_at, group_at = null from put_off p where j.ctid = p.ctid;
  end if;
end
$$;

-- The fields of a limit that a person sets, with what they leave out of its rate: the time is that of the rate in force, so that
-- 100 in place of 600 a minute is 100 a minute, and not 100 a second. The burst in force stays, and goes down with a lower rate in
-- proportion: a person who slows a queue down does not want more to start at once.
-- Without a rate in force, and for fields that are refused anyway, nothing is added.
create or replace function faultline.keep_rate(fields jsonb, in_force jsonb) returns jsonb
language plpgsql immutable
as $$
declare
  kept jsonb := fields;
begin
  if jsonb_typeof(fields) is distinct from 'object' or jsonb_typeof(fields -> 'rate') is distinct from 'number'
    or coalesce(jsonb_typeof(fields -> 'per'), 'number') <> 'number' or jsonb_typeof(in_force -> 'rate') is distinct from 'number'
    or (fields ->> 'rate')::numeric not between 0.001 and 1000000000
    or (fields ->> 'per')::numeric not between 0.000001 and 31536000
  then
    return fields;
  end if;
  if not fields ? 'per' then
    kept := kept || jsonb_build_object('per', in_force -> 'per');
  end if;
  if not fields ? 'burst' then
    -- By numbers that are exact: 60 for 600 a minute are 10 for 100, and not 11.
    kept := kept || jsonb_build_object('burst', greatest(
      least(
        (in_force ->> 'burst')::numeric,
        ceil(
          (in_force ->> 'burst')::numeric * (kept ->> 'rate')::numeric * (in_force ->> 'per')::numeric
          / ((kept ->> 'per')::numeric * (in_force ->> 'rate')::numeric)
        )
      ),
      1
    ));
  end if;
  return kept;
end
$$;

-- When a queue has a token of its rate. Null: it has no rate, or there is one.
create or replace function faultline.next_token(
  limited_queue faultline.limited_queues, fields jsonb, at timestamptz
) returns timestamptz
language plpgsql stable
as $$
declare
  rate constant double precision := faultline.rate_of(fields);
  tokens double precision;
begin
  if rate is null then
    return null;
  end if;
  tokens := faultline.refilled(
    limited_queue.tokens, limited_queue.refilled_at, rate, (fields ->> 'burst')::double precision, at
  );
  return case when tokens < 1 then at + make_interval(secs => (1 - tokens) / rate) end;
end
$$;

-- The tokens of a bucket at a moment. A bucket that was never used is full. One that was filled in the future, by a clock
-- that was ahead, has what it had: no token is made of it, and none is lost.
create or replace function faultline.refilled(
  tokens double precision, refilled_at timestamptz, rate double precision, burst double precision, at timestamptz
) returns double precision
language sql immutable parallel safe
return least(burst, coalesce(tokens + rate * greatest(0, extract(epoch from at - refilled_at)::double precision), burst));

-- Since when a bucket refills, after a look at it. A clock that was set back by less than a second catches up; where it was
-- ahead by more, no job waits for it.
create or replace function faultline.refill_moment(was timestamptz, at timestamptz) returns timestamptz
language sql immutable parallel safe
return case when was > at and was <= at + interval '1 second' then was else at end;
