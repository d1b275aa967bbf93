-- Renames a WARC file of a crawl. Its number does not change, so the places of its records stay valid.
-- ARGV  2 crawl  3 old name  4 new name
-- Returns "ok", "no file" or the state that does not allow it.
local crawl, old, new = ARGV[2], ARGV[3], ARGV[4]
local key = 'dedupe:files:' .. crawl
local state = state_of(crawl)
if state ~= 'uncommitted' and state ~= 'committed' then return state end
local answer = call('ZSCORE', key, new) and 'ok' or 'no file'
if old == new then return answer end
local found = call('ZRANGE', key, 0, -1, 'WITHSCORES')
for i = 1, #found, 2 do
  local name, number = found[i], found[i + 1]
  local ends = string.find(name, '\0', 1, true)
  if name == old or (ends and string.sub(name, 1, ends - 1) == old) then
    call('ZREM', key, name)
    if call('ZSCORE', key, new) then
      -- The sorted set cannot have one name with two numbers.
      call('ZADD', key, number, new .. '\0' .. number)
    else
      call('ZADD', key, number, new)
    end
    answer = 'ok'
  end
end
return answer
