-- Tests whether a text is new and remembers it, in one step. See stores/redis_content.py for the keys.
--
-- KEYS: t + digest, c + pair, i, n, k
-- ARGV: URL, crawl id, milliseconds
-- Answer: nil for a new text, else {first capture, its crawl id, 1 if this URL had the text before}

local first = redis.call('GET', KEYS[1])
if not first then
  local place = redis.call('HGET', KEYS[3], ARGV[2])
  if not place then
    place = redis.call('RPUSH', KEYS[4], ARGV[2]) - 1
    redis.call('HSET', KEYS[3], ARGV[2], place)
  end
  redis.call('SET', KEYS[1], ARGV[3] .. ' ' .. place .. ' ' .. ARGV[1])
  redis.call('HINCRBY', KEYS[5], 'texts', 1)
  return false
end

local place, url = string.match(first, '^%d+ (%d+) (.*)$')
local crawl = redis.call('LINDEX', KEYS[4], place)
if url == ARGV[1] then
  return {first, crawl, 1}
end
if redis.call('SET', KEYS[2], '', 'NX') then
  return {first, crawl, 0}
end
return {first, crawl, 1}
