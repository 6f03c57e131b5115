-- Raise FL005 if the arrays differ in length or contain a null: a lease is an id, a token and an owner.
create or replace function faultline.check_leases(job_ids uuid[], tokens bigint[], owners text[]) returns void
language plpgsql immutable
as $$
begin
  if cardinality(job_ids) is distinct from cardinality(tokens)
    or cardinality(job_ids) is distinct from cardinality(owners)
    or array_position(job_ids, null) is not null
    or array_position(tokens, null) is not null
    or array_position(owners, null) is not null
  then
    raise exception 'job_ids, tokens and owners must be arrays of the same length without nulls' using errcode = 'FL005';
  end if;
end
$$;
