-- Forgets what is still as it was read, so that nothing is lost that came meanwhile. The keys are described in
-- stores/redis_content.py; all carry the hash tag of the one that is named.
--
-- KEYS: i
-- ARGV: 1 if this call may have come before; prefix; then for each thing three arguments:
--   t, digest, first capture        a text with its signature
--   c, URL key and digest, value    what was noted of a text of a URL
--   s, digest, ""                   a signature whose text is gone
--   b, two bytes, ""                of a hash of buckets those whose text is not kept any more
-- Answer: the number of texts

local run, sub = redis.call, string.sub
local prefix = ARGV[2]

local forgotten = 0
for item = 3, #ARGV, 3 do
  local kind, name, value = ARGV[item], ARGV[item + 1], ARGV[item + 2]
  local key = prefix .. kind .. name
  if kind == 't' then
    if run('GET', key) == value then
      run('DEL', key, prefix .. 's' .. name)
      forgotten = forgotten + 1
    end
  elseif kind == 'c' then
    local noted, digest = prefix .. 'c' .. sub(name, 1, 16), sub(name, 17)
    if run('HGET', noted, digest) == value then
      run('HDEL', noted, digest)
    end
  elseif kind == 's' then
    if run('EXISTS', prefix .. 't' .. name) == 0 then
      run('DEL', key)
    end
  else
    local buckets = run('HGETALL', key)
    for place = 1, #buckets, 2 do
      if run('EXISTS', prefix .. 's' .. buckets[place + 1]) == 0 then
        run('HDEL', key, buckets[place])
      end
    end
  end
end
return forgotten
