-- Let the commit of this transaction not wait for the disk: it holds a lock that others wait for. Not if something was written
-- in it before: that was promised to be on the disk.
create or replace function faultline.allow_asynchronous_commit() returns void
language plpgsql volatile
as $$
begin
  if pg_current_xact_id_if_assigned() is null then
    perform set_config('synchronous_commit', 'off', true);
  end if;
end
$$;
