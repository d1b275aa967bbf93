-- Lets the needs of some crawls follow a file that has another name now.
-- KEYS  dedupe:needs:{id} of each crawl
-- ARGV  1 the crawl that has the file, and a space  2 a space and the old name  3 a space and the new name
local start, old, new = ARGV[1], ARGV[2], ARGV[3]
for _, key in ipairs(KEYS) do
  for _, need in ipairs(redis.call('SMEMBERS', key)) do
    if string.sub(need, 1, #start) == start then
      local ends = string.find(need, ' ', #start + 1, true)
      if ends and string.sub(need, ends) == old then
        redis.call('SREM', key, need)
        redis.call('SADD', key, string.sub(need, 1, ends - 1) .. new)
      end
    end
  end
end
return redis.status_reply('OK')
