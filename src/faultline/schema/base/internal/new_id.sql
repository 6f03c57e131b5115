-- A time-ordered uuid (version 7). `ordinal` is the row's position in its statement: it orders ids of the same microsecond.
do $migration$
begin
  if current_setting('server_version_num')::integer >= 180000 then
    create or replace function faultline.new_id(ordinal bigint) returns uuid
    language sql volatile parallel safe
    return uuidv7();
  else
    -- 48 bits of milliseconds, 12 bits of the millisecond's fraction, 18 bits of position, 44 random bits.
    create or replace function faultline.new_id(ordinal bigint) returns uuid
    language plpgsql volatile parallel safe
    as $function$
    declare
      micros constant bigint := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
      random_bits constant text := replace(gen_random_uuid()::text, '-', '');
    begin
      return (
        lpad(to_hex(micros / 1000), 12, '0')
        || '7' || lpad(to_hex((micros % 1000) * 4), 3, '0')
        || to_hex(8 + ((ordinal >> 16) & 3)) || lpad(to_hex(ordinal & 65535), 4, '0')
        || right(random_bits, 11)
      )::uuid;
    end
    $function$;
  end if;
end
$migration$;
