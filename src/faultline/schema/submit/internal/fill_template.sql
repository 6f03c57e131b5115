-- A text over a task's arguments, as `attempt/templates.py` stores it, filled for those who publish:
-- [{"text": "tenant-", "path": ["tenant_id"], "default": "7"}, …]. An argument that is missing, null or no scalar raises FL005.
create or replace function faultline.fill_template(parts jsonb, args json, about text) returns text
language plpgsql immutable
as $$
declare
  part record;
  found text;
  filled text := '';
begin
  for part in
    select p.text, p.path, p."default"
    from jsonb_to_recordset(fill_template.parts) as p ("text" text, path text[], "default" text)
  loop
    filled := filled || coalesce(part.text, '');
    continue when part.path is null;
    found := case
      when fill_template.args -> part.path[1] is null then part."default"
      when json_typeof(fill_template.args #> part.path) not in ('object', 'array') then fill_template.args #>> part.path
    end;
    if found is null then
      raise exception '% is refused: % is missing or neither text nor a number',
        fill_template.about, array_to_string(part.path, '.')
        using errcode = 'FL005', detail = 'Nothing was enqueued.';
    end if;
    filled := filled || found;
  end loop;
  return filled;
end
$$;
