-- The number of differences between a part of the merged index and the data of the crawls.
-- ARGV  2 what: "crawl" (3 a committed crawl), "merged" or "counts"  4 cursor  5 approximate number
-- Returns the next cursor ("0" after the last part) and the number of differences.
local what = ARGV[2]
local faults = 0
if what == 'counts' then
  for _, name in ipairs(COUNT_NAMES) do
    local sum = 0
    for _, crawl in ipairs(call('SMEMBERS', COMMITTED)) do
      local count = call('HGET', 'h:' .. crawl .. ':counts', name)
      if count and string.match(count, '^%d+$') then sum = sum + count end
    end
    if (call('HGET', TOTALS, name) or '0') ~= string.format('%.0f', sum) then faults = faults + 1 end
  end
  return {'0', faults}
end
local answer = call('HSCAN', what == 'crawl' and 'h:' .. ARGV[3] or DUPES, ARGV[4], 'COUNT', ARGV[5])
local found = answer[2]
for i = 1, #found, 2 do
  local digest, crawl = found[i], found[i + 1]
  if what == 'crawl' then
    if call('HEXISTS', DUPES, digest) == 0 and not hiding(ARGV[3], digest) then faults = faults + 1 end
  -- A crawl that was started again during its commit has entries that readers ignore.
  elseif not ((is_open(crawl) or has(UNCOMMITTED, crawl)) and call('HEXISTS', 'h:' .. crawl, digest) == 1) then
    faults = faults + 1
  end
end
return {answer[1], faults}
