-- The kind of an error: its first line, with … in place of quoted text and of words that contain a digit (ids, times,
-- addresses, counts).
-- No more of an error is read than 300 characters, however long it is; ids of different lengths must not move the end of
-- what is compared, so that ends sooner.
create or replace function faultline.error_kind(error text) returns text
language sql immutable parallel safe
return left(
  regexp_replace(
    split_part(left(coalesce(error, ''), 300), e'\n', 1),
    '"[^"]*("|$)|(?<!\w)''[^'']*(''|$)|[-\w]*[0-9][-\w.:]*',
    '…',
    'g'
  ),
  150
);
