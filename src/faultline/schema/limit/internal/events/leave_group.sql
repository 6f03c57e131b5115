-- A job that was cancelled while it waited in its group has its true time again.
create or replace function faultline.leave_group() returns trigger
language plpgsql
as $$
begin
  new.in_group := null;
  new.next_run_at := old.group_at;
  new.group_at := null;
  return new;
end
$$;
