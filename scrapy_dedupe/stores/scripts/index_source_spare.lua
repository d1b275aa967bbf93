-- Assigns a batch of digests that other sources of the crawl had added first to a source that is ending.
-- ARGV  2 crawl  3 name of the source  4 its token  5 cursor  6 approximate number
-- Returns the next cursor; "0" after the last batch, "" if the source is not ending any more.
local crawl, name = ARGV[2], ARGV[3]
if own_source(crawl, name, ARGV[4]) ~= 'e' then return '' end
local records, where = 'h:' .. crawl, 'dedupe:where:' .. crawl
local entered, spare = 'dedupe:entered:' .. name, 'dedupe:spare:' .. name
local answer = call('HSCAN', spare, ARGV[5], 'COUNT', ARGV[6])
local found = answer[2]
for i = 1, #found, 2 do
  local digest, value = found[i], found[i + 1]
  local first = string.find(value, '\0', 1, true)
  local second = string.find(value, '\0', first + 1, true)
  local length = tonumber(string.sub(value, first + 1, second - 1))
  local short, place = string.sub(value, second + 1, second + length), string.sub(value, second + length + 1)
  local entry = call('HGET', records, digest)
  local state, other = hiding(crawl, digest)
  if not entry or (state and other ~= name) then
    if entry then
      -- The two records are exchanged, so that nothing is lost whichever source is dropped.
      local known = call('HGET', where, short) or ''
      call('SREM', 'dedupe:entered:' .. other, digest)
      call('HSETNX', 'dedupe:spare:' .. other, digest, entry .. '\0' .. #short .. '\0' .. short .. known)
    end
    call('HSET', records, digest, string.sub(value, 1, first - 1))
    call('HSET', where, short, place)
    call('SADD', entered, digest)
  end
  call('HDEL', spare, digest)
end
return answer[1]
