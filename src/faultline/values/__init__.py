"""Arguments and results: how values of a program are stored as JSON and read again, by their annotations.

JSON types, dataclasses, TypedDicts, NamedTuples, tuples, sets, unions, enums, dates, times, UUIDs, decimals, bytes, and
models of pydantic and structs of msgspec, where these are there, and types that the program has registered.
"""

from faultline.values.annotations import annotated as annotated
from faultline.values.annotations import is_read as is_read
from faultline.values.annotations import name_of as name_of
from faultline.values.annotations import returned as returned
from faultline.values.exceptions import Classes as Classes
from faultline.values.exceptions import full_name as full_name
from faultline.values.exceptions import read_exception as read_exception
from faultline.values.exceptions import write_exception as write_exception
from faultline.values.reading import Misfit as Misfit
from faultline.values.reading import Read as Read
from faultline.values.reading import reader as reader
from faultline.values.stored import args_text as args_text
from faultline.values.stored import as_stored as as_stored
from faultline.values.stored import changed_field as changed_field
from faultline.values.stored import digest as digest
from faultline.values.stored import digest_of as digest_of
from faultline.values.stored import is_same_kind as is_same_kind
from faultline.values.stored import read_as as read_as
from faultline.values.stored import text_of as text_of
from faultline.values.stored import typed as typed
from faultline.values.writing import plain as plain
