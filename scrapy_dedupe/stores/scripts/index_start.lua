-- Begins a crawl, or goes on with it.
-- KEYS  the keys of the index and of the crawl, in the order of ARGV[6...]
--       1 dedupe:index  2 dedupe:crawl:{id}  3 allcrawls  4 uncommittedcrawls  5 canceledcrawls
--       6 dedupe:committing  7 alldupes  8... others that are only looked at
-- ARGV  1 crawl  2 payload mode  3 time  4 our format  5 software  6... the type that each key must have
-- Gives {"ok"}, {"type", key, found, expected}, {"newer", format}, {"payload", mode} or {state}.
for i, key in ipairs(KEYS) do
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= ARGV[5 + i] then
    return {'type', key, found, ARGV[5 + i]}
  end
end
local crawl = ARGV[1]
local format = redis.call('HGET', KEYS[1], 'format')
if format and tonumber(format) ~= tonumber(ARGV[4]) then
  return {'newer', format}
end
local mode = redis.call('HGET', KEYS[1], 'payload')
if not mode and redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[7]) > 0 then
  -- Crawls, but no mark of ours: Browsertrix's, which hashes decoded payloads.
  if ARGV[2] ~= 'decoded' then
    return {'foreign', 'decoded'}
  end
elseif mode and mode ~= ARGV[2] then
  return {'payload', mode}
end
if redis.call('SISMEMBER', KEYS[3], crawl) == 1 then
  return {'committed'}
end
if redis.call('HEXISTS', KEYS[2], 'canceling') == 1 then
  return {'canceling'}
end
if not mode then
  redis.call('HSET', KEYS[1], 'format', ARGV[4], 'payload', ARGV[2])
end
if redis.call('SREM', KEYS[5], crawl) == 1 then
  redis.call('DEL', KEYS[2])
end
redis.call('SADD', KEYS[4], crawl)
redis.call('SREM', KEYS[6], crawl)
redis.call('HSETNX', KEYS[2], 'started', ARGV[3])
redis.call('HSETNX', KEYS[2], 'software', ARGV[5])
return {'ok'}
