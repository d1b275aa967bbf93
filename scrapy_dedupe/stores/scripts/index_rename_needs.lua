-- Updates the needs of some crawls after a file was renamed.
-- ARGV  2 the crawl that has the file, and a space  3 a space and the old name  4 a space and the new name
--       5... crawls
local start, old, new = ARGV[2], ARGV[3], ARGV[4]
for i = 5, #ARGV do
  local key = 'dedupe:needs:' .. ARGV[i]
  for _, need in ipairs(call('SMEMBERS', key)) do
    if string.sub(need, 1, #start) == start then
      local ends = string.find(need, ' ', #start + 1, true)
      if ends and string.sub(need, ends) == old then
        call('SREM', key, need)
        call('SADD', key, string.sub(need, 1, ends - 1) .. new)
      end
    end
  end
end
return 'ok'
