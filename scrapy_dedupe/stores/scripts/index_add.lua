-- Adds records to an uncommitted crawl and to its counts, once for each token of 8 bytes.
-- ARGV  2 crawl  3 token  4-7 the four counts  8 number of records  9 number of URLs  10 number of needs, then
--       for each record: digest, its short form, entry, file name or "", its packed place without the file, or "";
--       for each URL its hash, its packed capture and its file or ""; the needs; for each waiting digest the sizes
-- Returns "ok" or the state that does not allow it.
local crawl = ARGV[2]
local meta, records, urls = 'dedupe:crawl:' .. crawl, 'h:' .. crawl, 'dedupe:urls:' .. crawl
if not is_uncommitted(crawl) then return state_of(crawl) end
local known = call('HMGET', meta, 'imported', 'token')
if known[1] then return 'importing' end
if has(COMMITTING, crawl) then return 'committing' end
-- A client that lost the connection repeats the call; the counts must not be added twice. Others may have added meanwhile.
local tokens = known[2] or ''
for i = 1, #tokens, 8 do
  if string.sub(tokens, i, i + 7) == ARGV[3] then return 'ok' end
end
call('HSET', meta, 'token', string.sub(ARGV[3] .. tokens, 1, 64))
local is_concurrent = has(CONCURRENT, crawl)
local numbers = {}
local function number_of(file)
  if file == '' then return 16777215 end
  numbers[file] = numbers[file] or file_number(crawl, file)
  return numbers[file]
end
local after_records = 11 + 5 * ARGV[8]
local after_urls = after_records + 3 * ARGV[9]
local after_needs = after_urls + ARGV[10]
for i = 11, after_records - 1, 5 do
  local file, rest = ARGV[i + 3], ARGV[i + 4]
  local number = number_of(file)
  if call('HSETNX', records, ARGV[i], ARGV[i + 2]) == 1 then
    if rest ~= '' then
      set_place(crawl, ARGV[i + 1], packed_number(number) .. rest)
    end
    if is_concurrent then enter(ARGV[i], crawl) end
  end
end
for i = after_records, after_urls - 1, 3 do
  call('HSET', urls, ARGV[i], with_file(ARGV[i + 1], number_of(ARGV[i + 2])))
end
for i = after_urls, after_needs - 1 do
  call('SADD', 'dedupe:needs:' .. crawl, ARGV[i])
end
for i = after_needs, #ARGV, 2 do
  add_waiting(crawl, ARGV[i], ARGV[i + 1])
end
add_counts('h:' .. crawl .. ':counts', {ARGV[4], ARGV[5], ARGV[6], ARGV[7]})
return 'ok'
