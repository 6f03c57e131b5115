-- Lock a shard of a queue for a claim, until the commit: its row, or nothing. Others than those that are held, from `first`
-- on; of those that somebody else holds, only the first is waited for, for a quarter of a second, and only if none is free.
create or replace function faultline.lock_shard(
  queue text, shards integer, held smallint[], first integer
) returns faultline.shards
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  patience constant text := current_setting('lock_timeout');
  wanted smallint;
  found_row faultline.shards;
begin
  for nth in 0..lock_shard.shards - 1 loop
    wanted := (lock_shard.first + nth) % lock_shard.shards;
    continue when wanted = any (lock_shard.held);
    select s.* into found_row
    from faultline.shards s
    where s.queue = lock_shard.queue and s.shard = wanted
    order by s.changed_second desc
    limit 1
    for update skip locked;
    if found then
      return found_row;
    end if;
  end loop;
  if lock_shard.held <> '{}' then
    return null;
  end if;
  begin
    perform set_config('lock_timeout', '250ms', true);
    select s.* into found_row
    from faultline.shards s
    where s.queue = lock_shard.queue and s.shard = lock_shard.first % lock_shard.shards
    order by s.changed_second desc
    limit 1
    for update;
    perform set_config('lock_timeout', patience, true);
    return found_row;
  exception when lock_not_available or deadlock_detected then
    return null;
  end;
end
$$;
