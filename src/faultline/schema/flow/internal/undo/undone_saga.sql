-- The number of the saga whose undoing ended this job; null: none did. A retry would only find again that it was undone.
create or replace function faultline.undone_saga(job_id uuid) returns text
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return (
    select c.number
    from faultline.open_jobs j
    join faultline.calls c on c.job_id = j.id and c.number = any (j.stopped_by)
    where j.id = undone_saga.job_id and c.kind = 'saga' and c.outcome = 'failed'
    order by string_to_array(c.number, '.')::numeric[]
    limit 1
  );
end
$$;
