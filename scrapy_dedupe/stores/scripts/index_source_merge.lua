-- Adds a batch of the URLs or the waiting revisits of a source that has ended to those of its crawl.
-- ARGV  2 name of the source  3 "newurls" or "newwaits"  4 cursor  5 approximate number
-- Returns the next cursor; "0" after the last batch.
local name, kind = ARGV[2], ARGV[3]
local crawl = call('HGET', MERGING, name)
if not crawl then return '0' end
local key, urls = 'dedupe:' .. kind .. ':' .. name, 'dedupe:urls:' .. crawl
local answer = call('HSCAN', key, ARGV[4], 'COUNT', ARGV[5])
local found = answer[2]
for i = 1, #found, 2 do
  if kind == 'newwaits' then
    add_waiting(crawl, found[i], found[i + 1])
  else
    local known = call('HGET', urls, found[i])
    if not known or is_greater(found[i + 1], known) then
      call('HSET', urls, found[i], found[i + 1])
    end
  end
  call('HDEL', key, found[i])
end
if call('EXISTS', 'dedupe:newurls:' .. name, 'dedupe:newwaits:' .. name) == 0 then
  call('HDEL', MERGING, name)
end
return answer[1]
