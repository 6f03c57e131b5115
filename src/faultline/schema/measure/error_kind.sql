-- The kind of an error: its first line, with … for quoted text and for words that contain a digit (ids, times, counts).
-- Reads 300 characters at most, and returns 150: otherwise ids of different lengths would move the end of the text, and
-- split one kind into several.
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
