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
