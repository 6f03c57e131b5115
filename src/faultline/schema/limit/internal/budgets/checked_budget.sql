-- The fields of a budget as they are stored: its rate with its seconds and its burst. Raises FL005 for what makes no sense.
create or replace function faultline.checked_budget(budget text, fields jsonb) returns jsonb
language plpgsql stable
as $$
begin
  perform faultline.check_name('the name of a budget', budget, 100, trimmed => false);
  fields := faultline.checked_limit(fields, format('budget "%s"', budget), true);
  if coalesce(jsonb_typeof(fields -> 'rate'), 'null') = 'null' or fields ? 'concurrency' then
    raise exception 'the limit of budget "%" is refused: it has a "rate", with "per" and "burst", and nothing else', budget
      using errcode = 'FL005', detail = 'Nothing was changed.';
  end if;
  return fields - array['weight', 'ordered'];
end
$$;
