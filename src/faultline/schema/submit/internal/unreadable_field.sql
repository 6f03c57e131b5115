-- Name the field of a job that PostgreSQL cannot read, for a message: 'its priority: '. It does not say by itself which one it is:
-- the one that cannot be read alone either. Null if there is none, as when the name of a field cannot be read.
create or replace function faultline.unreadable_field(job json) returns text
language plpgsql stable
as $$
declare
  field record;
begin
  for field in select f.key, f.value from json_each(unreadable_field.job) f loop
    begin
      perform field.value::jsonb, count(p.task), max(p.next_run_at)
      from faultline.parse_new_jobs(
        json_build_array(json_build_object('task', 't', field.key, field.value)), faultline.clock(), 67108864
      ) p;
    exception
      when sqlstate 'FL005' then
        null;  -- read, and refused for something else
      when data_exception or program_limit_exceeded then
        return format('its %s: ', field.key);
    end;
  end loop;
  return null;
exception
  when data_exception or program_limit_exceeded then
    return null;
end
$$;
