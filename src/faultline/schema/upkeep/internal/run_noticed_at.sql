-- When the current run of the server (see `server_run`) was noticed. The first heartbeat or reap of a run records it.
-- Null while another session is recording it.
create or replace function faultline.run_noticed_at() returns timestamptz
language plpgsql volatile
as $$
declare
  run constant text := faultline.server_run();
  noticed_at timestamptz;
begin
  select s.server_run_noticed_at into noticed_at
  from faultline.settings s
  where s.server_run = run;
  if not found then
    update faultline.settings s
    set server_run = run,
        -- All heartbeats so far are of earlier runs, even if the clock of that server was ahead.
        server_run_noticed_at = greatest(faultline.clock(), (select max(w.heartbeat_at) from faultline.workers w))
    where s.ctid = any (array(select t.ctid from faultline.settings t for update skip locked))
    returning s.server_run_noticed_at into noticed_at;
  end if;
  return noticed_at;
end
$$;
