-- Gives a WARC file of a crawl another name. Its number stays, so the places of its records stay true.
-- KEYS  1 uncommittedcrawls  2 allcrawls  3 canceledcrawls  4 dedupe:files:{id}
-- ARGV  1 crawl  2 old name  3 new name
-- Gives "ok", "no file" or the state that does not allow it.
local crawl, old, new = ARGV[1], ARGV[2], ARGV[3]
if redis.call('SISMEMBER', KEYS[1], crawl) == 0 and redis.call('SISMEMBER', KEYS[2], crawl) == 0 then
  if redis.call('SISMEMBER', KEYS[3], crawl) == 1 then return 'canceled' end
  return 'unknown'
end
local answer = redis.call('ZSCORE', KEYS[4], new) and 'ok' or 'no file'
if old == new then return answer end
local found = redis.call('ZRANGE', KEYS[4], 0, -1, 'WITHSCORES')
for i = 1, #found, 2 do
  local name, number = found[i], found[i + 1]
  local ends = string.find(name, '\0', 1, true)
  if name == old or (ends and string.sub(name, 1, ends - 1) == old) then
    redis.call('ZREM', KEYS[4], name)
    if redis.call('ZSCORE', KEYS[4], new) then
      -- One name cannot have two numbers.
      redis.call('ZADD', KEYS[4], number, new .. '\0' .. number)
    else
      redis.call('ZADD', KEYS[4], number, new)
    end
    answer = 'ok'
  end
end
return answer
