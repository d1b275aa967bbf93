-- Forgets a source that has not ended.
-- ARGV  2 name of the source  3 what: "begin", "part" (4 crawl, then digests, each with its short form) or "end"
-- Gives {crawl}, or {} if there is nothing to forget; at the end {"again"} if digests are left.
local name, what = ARGV[2], ARGV[3]
local entered = 'dedupe:entered:' .. name
local state, slot, source, value = begun_source(name)
if not state then
  if call('HEXISTS', BEGUN, name) == 1 then forget_source(name) end
  return {}
end
local crawl = source.crawlId
if what == 'begin' then
  call('HSET', BEGUN, name, 'd' .. string.sub(value, 2))
  return {crawl}
end
if state ~= 'd' then return {} end
if what == 'part' then
  if ARGV[4] ~= crawl then return {} end
  for i = 5, #ARGV, 2 do
    if call('SREM', entered, ARGV[i]) == 1 then
      call('HDEL', 'h:' .. crawl, ARGV[i])
      call('HDEL', 'dedupe:where:' .. crawl, ARGV[i + 1])
      leave(ARGV[i], crawl)
    end
  end
  return {crawl}
end
if call('EXISTS', entered) == 1 then return {'again'} end
local is_alone, is_ending = true, false
for _, other in ipairs(begun_of(crawl)) do
  if other[1] ~= name then
    is_alone = false
    if other[2] == 'e' then is_ending = true end
  end
end
if has(UNCOMMITTED, crawl) and is_alone then
  -- It was never committed, so that it has nothing of any other source.
  call('SREM', UNCOMMITTED, crawl)
  call('SREM', COMMITTING, crawl)
  forget_records(crawl)
  call('DEL', 'dedupe:crawl:' .. crawl)
  return {crawl}
end
if has(UNCOMMITTED, crawl) and not is_ending then
  call('SREM', COMMITTING, crawl)
end
local hidden = 'dedupe:hidden:' .. crawl
for _, file in ipairs(call('SMEMBERS', 'dedupe:newfiles:' .. name)) do
  if call('HGET', hidden, file) == name then call('HSET', hidden, file, '') end
end
if slot == '+' then
  local place, container, _, number = container_place(crawl, name)
  if place and place == number - 1 and not container.hash then
    call('RPOP', 'c:' .. crawl .. ':wacz')
  end
end
forget_source(name)
return {crawl}
