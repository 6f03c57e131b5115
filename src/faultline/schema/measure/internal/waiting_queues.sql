-- Queues with queued jobs: one index lookup for each.
create or replace function faultline.waiting_queues() returns setof text
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    with recursive waiting (name) as (
      (select j.queue::text from faultline.open_jobs j where j.state = 'queued' order by j.queue limit 1)
      union all
      select (
        select j.queue::text from faultline.open_jobs j where j.state = 'queued' and j.queue > f.name order by j.queue limit 1
      )
      from waiting f
      where f.name is not null
    )
    select f.name from waiting f where f.name is not null;
end
$$;
