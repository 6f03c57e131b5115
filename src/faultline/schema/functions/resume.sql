-- Grant jobs of a queue again, and wake who sleeps on it. Answers whether it was paused.
create or replace function faultline.resume(queue text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform faultline.durable();
  delete from faultline.queues q where q.name = resume.queue and q.paused_at is not null;
  if not found then
    return false;
  end if;
  -- From the very beginning: what came while it was paused may lie below everyone's bounds.
  perform faultline.wake(resume.queue, -32768, '1970-01-01 00:00:00+00');
  return true;
end
$$;
