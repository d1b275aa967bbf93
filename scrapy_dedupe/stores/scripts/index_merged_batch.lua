-- Adds a batch of a crawl's digests to the merged index that is being built.
-- ARGV  2 process  3 lease in milliseconds  4 crawl  5 the crawl whose records it has, or will have
--       6 cursor  7 approximate number
-- Returns the next cursor ("0" after the last batch, "" if another process builds it now), and the number of digests.
local crawl, from = ARGV[4], ARGV[5]
if call('GET', REBUILDING) ~= ARGV[2] then return {'', 0} end
call('PEXPIRE', REBUILDING, ARGV[3])
local cursor, count = '0', 0
-- Digests that were removed meanwhile must not be added again.
if is_open(crawl) or has(COMMITTING, crawl) then
  local answer = call('HSCAN', 'h:' .. from, ARGV[6], 'COUNT', ARGV[7])
  local found = answer[2]
  for i = 1, #found, 2 do
    local state = hiding(from, found[i])
    if not state or state == 'e' then
      call('HSETNX', NEW_DUPES, found[i], crawl)
    end
  end
  cursor, count = answer[1], #found / 2
end
if cursor == '0' then call('SADD', REBUILT, crawl) end
return {cursor, count}
