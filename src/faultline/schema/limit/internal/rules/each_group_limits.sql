-- What each group of a queue may do, read from its fields once: see limits_of_group.
create or replace function faultline.each_group_limits(queue text) returns faultline.group_limits
language plpgsql stable
as $$
#variable_conflict use_column
declare
  fields constant jsonb := coalesce(
    (select l.effective from faultline.limits l where l.queue = each_group_limits.queue and l.group_key = '*'), '{}'
  );
begin
  return row(
    fields, coalesce(faultline.cap_of(fields), 2147483647), faultline.rate_of(fields),
    (fields ->> 'burst')::double precision, faultline.weight_of(fields),
    exists (select from faultline.limits l where l.queue = each_group_limits.queue and l.group_key not in ('', '*'))
  )::faultline.group_limits;
end
$$;
