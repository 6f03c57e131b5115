-- The oldest signal that this call may receive, or null. A signal that was sent to a call is for that call only. If the
-- call is `fresh`, it does not receive what was sent before the program first came to it: that may answer an earlier
-- question.
create or replace function faultline.kept_signal(
  job_id uuid, name text, number text, fresh boolean, begun_at timestamptz
) returns bigint
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_sort = off
as $$
#variable_conflict use_column
begin
  return (
    select s.id
    from faultline.signals s
    where s.job_id = kept_signal.job_id
      and s.name = kept_signal.name
      and s.received_by is null
      and case
        when s.for_call is not null then s.for_call = kept_signal.number
        else kept_signal.fresh is not true or s.sent_at >= kept_signal.begun_at
      end
    order by s.id
    limit 1
  );
end
$$;
