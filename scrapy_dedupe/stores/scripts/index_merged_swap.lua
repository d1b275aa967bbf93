-- Replaces the merged index by the new one, and completes the operation for which it was built.
-- ARGV  2 process  3 what: "rebuild", "purge" (4... crawls), or "replace" (4 crawl  5 the crawl whose records it gets)
-- Returns {"ok"}; {"more", crawls...} that must still be added; {"lost"} if another process builds it now; or
-- {state, crawl} for a crawl that does not allow it.
local what = ARGV[3]
-- A client that lost the connection repeats the call.
if ARGV[1] == '1' and call('HGET', KEYS[1], 'swapped') == ARGV[2] then return {'ok'} end
if call('GET', REBUILDING) ~= ARGV[2] then return {'lost'} end

local function stop()
  call('UNLINK', REBUILDING, NEW_DUPES, REBUILT, REMOVING, REPLACING)
end

local function give_up(state, crawl)
  stop()
  return {state, crawl}
end

-- If the old key was overwritten, the server would free its memory at once and block; UNLINK frees it in the background.
local function move(from, to)
  call('UNLINK', to)
  if call('EXISTS', from) == 1 then call('RENAME', from, to) end
end

if what == 'purge' then
  for i = 4, #ARGV do
    if is_uncommitted(ARGV[i]) then return give_up('uncommitted', ARGV[i]) end
  end
elseif what == 'replace' then
  local meta, by_meta = 'dedupe:crawl:' .. ARGV[4], 'dedupe:crawl:' .. ARGV[5]
  if not has(COMMITTED, ARGV[4]) then return give_up(state_of(ARGV[4]), ARGV[4]) end
  if not is_uncommitted(ARGV[5]) then
    if call('HGET', meta, 'replaced') == ARGV[5] then return give_up('ok', ARGV[4]) end
    return give_up(state_of(ARGV[5]), ARGV[5])
  end
  -- Records that were imported since are missing from the replacement, and would be lost.
  local ended = call('HGET', meta, 'ended') or 0
  if begun_of(ARGV[4]) or tonumber(ended) > tonumber(call('HGET', by_meta, 'since') or 0) then
    return give_up('extended', ARGV[4])
  end
end
local more = {'more'}
for _, crawl in ipairs(call('SUNION', COMMITTED, CONCURRENT, COMMITTING)) do
  if not has(REBUILT, crawl) and not has(REMOVING, crawl) then more[#more + 1] = crawl end
end
if #more > 1 then return more end

if what == 'purge' then
  for i = 4, #ARGV do
    local crawl = ARGV[i]
    call('SREM', COMMITTED, crawl)
    call('SREM', UNCOMMITTED, crawl)
    forget_cancel(crawl)
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
    forget_report(crawl)
    call('DEL', 'dedupe:crawl:' .. crawl)
  end
  for _, name in ipairs({'removedCrawls', 'removedCrawlSize'}) do
    if call('HEXISTS', TOTALS, name) == 1 then call('HSET', TOTALS, name, '0') end
  end
elseif what == 'replace' then
  local crawl, by = ARGV[4], ARGV[5]
  local merging = call('HGETALL', MERGING)
  for i = 1, #merging, 2 do
    if merging[i + 1] == crawl then
      call('HDEL', MERGING, merging[i])
      forget_source(merging[i])
    end
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

move(NEW_DUPES, DUPES)
stop()
call('HSET', KEYS[1], 'swapped', ARGV[2])
forget_mode()
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
