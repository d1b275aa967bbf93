-- Deletes values that are still the ones that were read, so that later writes are not lost. The keys are described in
-- stores/redis_content.py; all have the hash tag of the key that is passed.
--
-- KEYS: i
-- ARGV: 1 if this call may be a repetition; prefix; then three arguments per value:
--   t, digest, first capture        a text with its signature
--   c, URL key and digest, value    a capture of a text at a URL
--   s, digest, ""                   a signature whose text is gone
--   b, two bytes, ""                a hash of buckets: deletes the buckets whose text is not kept any more
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
