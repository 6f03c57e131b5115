-- Raise the error for a schedule that is not there. Never returns.
create or replace function faultline.no_schedule(name text) returns void
language plpgsql volatile
as $$
begin
  raise exception 'no schedule named "%"', no_schedule.name
    using errcode = 'FL004', detail = 'schedule', hint = 'faultline schedules lists them; one of the code is there once a worker with it has started, or by app.declare()';
end
$$;
