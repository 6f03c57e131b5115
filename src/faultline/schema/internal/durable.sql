-- Make this transaction's commit wait for the disk, whatever the session's default.
-- A verb that was acknowledged must not be forgotten by a crash a moment later. Other levels than `off` are left alone.
create or replace function faultline.durable() returns void
language plpgsql volatile
as $$
begin
  if current_setting('synchronous_commit') = 'off' then
    -- Local to the transaction: a SET clause on the verb would be undone before the commit that it is meant for.
    perform set_config('synchronous_commit', 'on', true);
  end if;
end
$$;
