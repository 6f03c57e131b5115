-- Remove those of these workers of which no job is left: those with locked rows are reaped later. One that is alive after all
-- adds itself again with its next heartbeat. A worker whose row is locked is removed later: to wait for it would keep the jobs
-- of all the others.
create or replace function faultline.remove_dead_workers(dead text[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with gone as (
    delete from faultline.workers w
    where w.ctid = any (array(
        select d.ctid from faultline.workers d where d.id = any (remove_dead_workers.dead) for update skip locked
      ))
      and not exists (
        select from faultline.open_jobs j
        where j.state = 'running' and split_part(j.lease_owner, '/', 1) = w.id
      )
    returning w.id, w.host, w.pid, w.heartbeat_at
  )
  insert into faultline.journal (at, event, owner, detail)
  select faultline.clock(), 'worker_lost', g.id, jsonb_build_object('host', g.host, 'pid', g.pid, 'last_heartbeat', g.heartbeat_at)
  from gone g;
end
$$;
