-- The first jobs of a group whose rows are not locked, up to `most`, where some of the very first are. Returns their ctids, locked.
-- Otherwise a transaction that stays open after it was answered with a unique job would stop the whole group.
-- None where the group keeps its order. Looks past 100 locked rows at most: other claims wait meanwhile.
create or replace function faultline.pick_past_locked_head(
  queue text, group_key text, head_priority integer, head_at timestamptz, head_id uuid, due timestamptz, most integer
) returns tid[]
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if (faultline.group_limit(pick_past_locked_head.queue, pick_past_locked_head.group_key) ->> 'ordered')::boolean then
    return '{}';
  end if;
  return array(
    select r.ctid
    from (
      select r.ctid as row_id
      from faultline.open_jobs r
      where r.queue = pick_past_locked_head.queue
        and r.group_key = pick_past_locked_head.group_key
        and r.in_group
        and (r.priority, r.group_at, r.id)
          > (pick_past_locked_head.head_priority, pick_past_locked_head.head_at, pick_past_locked_head.head_id)
        and (r.expires_at is null or r.expires_at > pick_past_locked_head.due or r.fencing_token > 0)
      order by r.priority, r.group_at, r.id
      limit pick_past_locked_head.most + 100
    ) x
    join faultline.open_jobs r on r.ctid = x.row_id
    -- Checked again, since another session may have been faster: it may be in another group by now. Written so that no index
    -- fits, as in pick_from_groups.
    where coalesce(r.in_group, false) and coalesce(r.state, '') = 'queued'
      and coalesce(r.group_key, '') = pick_past_locked_head.group_key
    limit pick_past_locked_head.most
    for update of r skip locked
  );
end
$$;
