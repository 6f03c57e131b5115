-- Since when the current run of the server (see `server_run`) is known. Notes a new run: whoever comes first, a heartbeat or
-- a reap. Null if somebody else holds the row at this moment; then nothing is known yet.
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
        -- Heartbeats in the table are of earlier runs. The clock of the server that wrote them may have been ahead.
        server_run_noticed_at = greatest(faultline.clock(), (select max(w.beat_at) from faultline.workers w))
    where s.ctid = any (array(select t.ctid from faultline.settings t for update skip locked))
    returning s.server_run_noticed_at into noticed_at;
  end if;
  return noticed_at;
end
$$;
