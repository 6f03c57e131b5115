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
