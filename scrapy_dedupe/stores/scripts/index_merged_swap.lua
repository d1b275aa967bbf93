-- Puts the merged index that was made in the place of the old one, and does what it was made for.
-- ARGV  2 who  3 what: "rebuild", "purge" (4... crawls), or "replace" (4 crawl  5 the crawl whose records it gets)
-- Gives {"ok"}; {"more", crawls...} that are to be entered yet; {"lost"} if another process makes it now; or
-- {state, crawl} for one that does not allow it.
local what = ARGV[3]
if call('GET', REBUILDING) ~= ARGV[2] then return {'lost'} end

local function give_up(state, crawl)
  call('UNLINK', REBUILDING, NEW_DUPES, 'dedupe:rebuilt', REMOVING)
  return {state, crawl}
end

if what == 'purge' then
  for i = 4, #ARGV do
    if has(UNCOMMITTED, ARGV[i]) then return give_up('uncommitted', ARGV[i]) end
  end
elseif what == 'replace' then
  if not has(COMMITTED, ARGV[4]) then return give_up(state_of(ARGV[4]), ARGV[4]) end
  if not has(UNCOMMITTED, ARGV[5]) then return give_up(state_of(ARGV[5]), ARGV[5]) end
end
local more = {'more'}
for _, crawl in ipairs(call('SUNION', COMMITTED, CONCURRENT, COMMITTING)) do
  if not has('dedupe:rebuilt', crawl) and not has(REMOVING, crawl) then more[#more + 1] = crawl end
end
if #more > 1 then return more end

if what == 'purge' then
  for i = 4, #ARGV do
    local crawl = ARGV[i]
    call('SREM', COMMITTED, crawl)
    call('SREM', CANCELED, crawl)
    for _, item in ipairs(call('LRANGE', 'c:' .. crawl .. ':wacz', 0, -1)) do
      local good, container = pcall(cjson.decode, item)
      if good and type(container) == 'table' and type(container.filename) == 'string' then
        call('SREM', DONE, container.filename)
      end
    end
    for _, name in ipairs(call('SMEMBERS', 'dedupe:sources:' .. crawl)) do
      call('SREM', DONE, name)
    end
    forget_records(crawl)
    call('DEL', 'dedupe:crawl:' .. crawl)
  end
  for _, name in ipairs({'removedCrawls', 'removedCrawlSize'}) do
    if call('HEXISTS', TOTALS, name) == 1 then call('HSET', TOTALS, name, '0') end
  end
elseif what == 'replace' then
  local crawl, by = ARGV[4], ARGV[5]
  for _, source in ipairs(begun_of(crawl) or {}) do forget_source(source[1]) end
  local merging = call('HGETALL', MERGING)
  for i = 1, #merging, 2 do
    if merging[i + 1] == crawl then
      call('HDEL', MERGING, merging[i])
      forget_source(merging[i])
    end
  end
  local function move(from, to)
    if call('EXISTS', from) == 1 then call('RENAME', from, to) else call('UNLINK', to) end
  end
  move('h:' .. by, 'h:' .. crawl)
  move('h:' .. by .. ':counts', 'h:' .. crawl .. ':counts')
  for _, kind in ipairs({'where', 'files', 'urls', 'needs', 'waiting', 'hidden'}) do
    move('dedupe:' .. kind .. ':' .. by, 'dedupe:' .. kind .. ':' .. crawl)
  end
  call('SREM', WAITERS, crawl)
  if call('EXISTS', 'dedupe:waiting:' .. crawl) == 1 then call('SADD', WAITERS, crawl) end
  call('SREM', UNCOMMITTED, by)
  call('SREM', COMMITTING, by)
  call('SREM', CONCURRENT, by)
  forget_records(by)
  call('DEL', 'dedupe:crawl:' .. by)
  call('HSET', 'dedupe:crawl:' .. crawl, 'replaced', by)
end

if call('EXISTS', NEW_DUPES) == 1 then
  call('RENAME', NEW_DUPES, DUPES)
else
  call('UNLINK', DUPES)
end
call('UNLINK', REBUILDING, 'dedupe:rebuilt', REMOVING)
local sums = {0, 0, 0, 0}
for _, crawl in ipairs(call('SMEMBERS', COMMITTED)) do
  local counts = call('HMGET', 'h:' .. crawl .. ':counts', unpack(COUNT_NAMES))
  for i = 1, 4 do
    if counts[i] and string.match(counts[i], '^%d+$') then sums[i] = sums[i] + counts[i] end
  end
end
for i, name in ipairs(COUNT_NAMES) do
  if sums[i] > 0 or call('HEXISTS', TOTALS, name) == 1 then
    call('HSET', TOTALS, name, string.format('%.0f', sums[i]))
  end
end
return {'ok'}
