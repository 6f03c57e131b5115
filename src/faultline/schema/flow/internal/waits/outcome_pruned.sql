-- Raise that a job which a call waited for is gone. Called where its state would be told: it returns nothing.
create or replace function faultline.outcome_pruned(job_id uuid, index integer) returns text
language plpgsql volatile
as $$
begin
  raise exception 'job %, which is number % of this call, is gone: it was pruned', job_id, index
    using errcode = 'FL004', hint = 'keep jobs that others wait for longer: see the retention settings';
end
$$;
