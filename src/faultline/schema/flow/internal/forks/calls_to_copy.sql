-- The calls of a job that go with a fork of it, before `cut` and without those in `stopped`, each with the result that its copy has:
-- one that needs nothing of the other flow.
create or replace function faultline.calls_to_copy(job_id uuid, cut numeric[], stopped bigint[]) returns table (
  call faultline.calls,
  copied jsonb
)
language sql stable
as $$
  select
    c,
    case
      when c.kind = 'after' then coalesce(c.result, '{"failed": {}, "results": {}}') || jsonb_build_object('upstream', (
        select coalesce(c.result -> 'upstream', jsonb_agg(to_jsonb(u)))
        from faultline.came_after(c.id, c.result -> 'failed') u
      ))
      when c.kind in ('children', 'watch') and c.outcome = 'done' then jsonb_set(c.result, '{results}', (
        select coalesce(jsonb_object_agg(e.index, f.result), '{}')
        from faultline.edges e
        -- Looked up one by one, as in `complete`.
        join faultline.ledger f on f.job_id = any (array[e.job_id])
        where e.call_id = c.id and not c.result -> 'failed' ? e.index::text
      ) || (c.result -> 'results'))
      else c.result
    end
  from faultline.calls c
  where c.job_id = calls_to_copy.job_id
    and (c.ended_at is not null or c.kind = 'after')
    and c.number !~ '^0[.]0([.]|$)'
    and c.id <> all (calls_to_copy.stopped)
    and (calls_to_copy.cut is null or string_to_array(c.number, '.')::numeric[] < calls_to_copy.cut)
    -- A step that has ended needs no pauses between its tries, and one that has not begins with its first.
    and c.kind <> 'retry'
    -- A change is in force from its place among the calls on.
    and (c.kind <> 'patch' or calls_to_copy.cut is null or (
      (string_to_array(c.number, '.')::numeric[])[:array_length(string_to_array(c.number, '.'), 1) - 2]
      || ((c.result ->> 'after')::numeric + 1) <= calls_to_copy.cut
    ))
    -- What lost a race has lost it only if the end of the race is part of the history.
    and (c.outcome is distinct from 'closed' or calls_to_copy.cut is null or exists (
      select from faultline.calls r
      where r.job_id = calls_to_copy.job_id and r.kind = 'race' and r.outcome = 'done' and r.ended_moment = c.ended_moment
        and string_to_array(r.number, '.')::numeric[] < calls_to_copy.cut
    ));
$$;
