-- Whether a worker that is alive has this declaration of a schedule in its code.
-- A worker that has sent no heartbeat for 15 seconds does not count: if it lives, it has not ticked meanwhile either, and
-- finds that others have taken over.
create or replace function faultline.live_digest(digest text) returns boolean
language sql volatile
as $$
  select exists (
    select from faultline.workers w
    where live_digest.digest = any (w.schedules) and w.heartbeat_at > faultline.clock() - interval '15 seconds'
  );
$$;
