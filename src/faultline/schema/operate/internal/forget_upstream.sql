-- Have jobs of a graph look again at what they come after. Before: `faultline.verb` is retry, their rows are locked, and they
-- have ended badly. One that had looked begins without its history: what it called depends on what it saw.
create or replace function faultline.forget_upstream(job_ids uuid[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  looked constant uuid[] := array(
    select c.job_id from faultline.calls c
    where c.job_id = any (forget_upstream.job_ids) and c.kind = 'after' and c.ended_at is not null
  );
begin
  perform faultline.forget_calls(array(
    select c.id from faultline.calls c
    where c.job_id = any (looked) and c.kind <> 'after' and c.number !~ '^0[.]0([.]|$)'
  ));
  delete from faultline.steps s where s.job_id = any (looked);
  update faultline.calls c
  set ended_at = null, outcome = null, result = null, open_index = null
  where c.job_id = any (looked) and c.kind = 'after';
end
$$;
