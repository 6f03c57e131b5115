-- Forget a call that is doubtful since a retry, what is inside of it, and all that is doubtful and comes after it in its branch.
-- Before: the caller holds the lease of the job.
create or replace function faultline.forget_doubtful(job_id uuid, number text) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  branch constant text := regexp_replace(forget_doubtful.number, '[0-9]+$', '');
  position constant numeric := substr(forget_doubtful.number, length(branch) + 1);
begin
  perform faultline.set_current_verb('retry');
  perform faultline.forget_calls(array(
    select c.id
    from faultline.calls c
    where c.job_id = forget_doubtful.job_id
      and c.doubtful
      and starts_with(c.number, branch)
      and split_part(substr(c.number, length(branch) + 1), '.', 1)::numeric >= position
  ));
  perform faultline.set_current_verb('');
end
$$;
