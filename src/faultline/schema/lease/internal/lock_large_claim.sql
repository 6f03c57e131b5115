-- Wait for this session's turn to claim many jobs of a queue at once. This saves work; it guards nothing (see `claim`).
-- Any login can hold an advisory lock, so a session waits for 250 ms at most. If that fails, it claims without a turn
-- for 1 s, and for twice as long after each further failure, up to 32 s.
create or replace function faultline.lock_large_claim(queue text) returns void
language plpgsql volatile
as $$
declare
  -- The end of the pause, in seconds since 1970, and its length, kept in a setting of the session. Other code of this
  -- session can write to the setting: anything but two numbers is ignored.
  in_vain constant float8[] := string_to_array(
    substring(current_setting('faultline.claim_lock_pause', true) from '^[0-9]{1,12}(?:[.][0-9]+)? [0-9]{1,4}$'), ' '
  );
  seconds constant float8 := extract(epoch from faultline.clock());
  patience constant text := current_setting('lock_timeout');
  pause constant float8 := least(coalesce(in_vain[2] * 2, 1), 32);
begin
  if in_vain[1] > seconds then
    return;
  end if;
  begin
    perform set_config('lock_timeout', '250ms', true);
    perform pg_advisory_xact_lock(faultline.claim_lock(lock_large_claim.queue));
    perform set_config('lock_timeout', patience, true);
    if in_vain is not null then
      perform set_config('faultline.claim_lock_pause', '', false);
    end if;
  exception when lock_not_available or deadlock_detected then
    perform set_config('faultline.claim_lock_pause', seconds + pause || ' ' || pause, false);
  end;
end
$$;
