-- Adds records of a begun source.
-- ARGV  2 crawl  3 name of the source  4 its token  5 number of records, then for each record: digest, its short form,
--       entry, file name, its packed place without the file; for each URL its hash, its packed capture and its file.
--       Without a digest only the file is recorded.
-- Returns "ok", "taken" or "dropped".
local crawl, name = ARGV[2], ARGV[3]
local state, value = own_source(crawl, name, ARGV[4])
if not value then return state end
local records, hidden = 'h:' .. crawl, 'dedupe:hidden:' .. crawl
local entered, spare, urls = 'dedupe:entered:' .. name, 'dedupe:spare:' .. name, 'dedupe:newurls:' .. name
local numbers = {}
local function number_of(file)
  if file == '' then return 16777215 end
  if not numbers[file] then
    local number, is_new = file_number(crawl, file)
    if is_new or call('HGET', hidden, file) == '' then
      call('HSET', hidden, file, name)
    end
    call('SADD', 'dedupe:newfiles:' .. name, file)
    numbers[file] = number
  end
  return numbers[file]
end
local after_records = 6 + 5 * ARGV[5]
for i = 6, after_records - 1, 5 do
  local digest = ARGV[i]
  local place = packed_number(number_of(ARGV[i + 3])) .. ARGV[i + 4]
  if digest ~= '' and call('HSETNX', records, digest, ARGV[i + 2]) == 1 then
    set_place(crawl, ARGV[i + 1], place)
    call('SADD', entered, digest)
  elseif digest ~= '' and #begun_of(crawl) > 1 and call('SISMEMBER', entered, digest) == 0 and hiding(crawl, digest) then
    -- Another source has it, which may be dropped, or end later.
    call('HSETNX', spare, digest, ARGV[i + 2] .. '\0' .. #ARGV[i + 1] .. '\0' .. ARGV[i + 1] .. place)
  end
end
for i = after_records, #ARGV, 3 do
  local known = call('HGET', urls, ARGV[i])
  local value = with_file(ARGV[i + 1], number_of(ARGV[i + 2]))
  if not known or is_greater(value, known) then
    call('HSET', urls, ARGV[i], value)
  end
end
return 'ok'
