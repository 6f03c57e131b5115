-- Make the commit of this transaction wait for the disk, even if the session has set synchronous_commit to off:
-- otherwise a crash could undo a verb that was acknowledged. Other levels stay as they are.
create or replace function faultline.require_synchronous_commit() returns void
language plpgsql volatile
as $$
begin
  if current_setting('synchronous_commit') = 'off' then
    -- Not a SET clause on the verb: PostgreSQL resets that when the verb returns, which is before the commit.
    perform set_config('synchronous_commit', 'on', true);
  end if;
end
$$;
