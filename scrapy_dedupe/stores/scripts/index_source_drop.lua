-- Forgets a source that has not ended.
-- ARGV  2 name of the source  3 what: "begin" (4 "owner" and 5 the token of the source, or 4 "cancel" and 5 that of the
--       cancellation of its crawl), "part" (4 crawl, then digests,
--       each with its short form) or "end"
-- Returns {crawl}, {"", "taken"}, or {} if there is nothing to forget. A part also returns how many digests were removed;
-- the end returns {"again"} if digests are left.
local name, what = ARGV[2], ARGV[3]
local entered = 'dedupe:entered:' .. name
local state, slot, source, _, value = begun_source(name)
if what == 'begin' then
  local who = ARGV[4]
  if who == 'owner' and is_taken(name, ARGV[5]) then return {'', 'taken'} end
  if who == 'cancel' and state and call('HGET', 'dedupe:crawl:' .. source.crawlId, 'canceling') ~= ARGV[5] then
    return {}
  end
end
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
    if has(entered, ARGV[i]) then
      if not leave(ARGV[i], crawl) then return {crawl, (i - 5) / 2} end
      call('SREM', entered, ARGV[i])
      call('HDEL', 'h:' .. crawl, ARGV[i])
      call('HDEL', 'dedupe:where:' .. crawl, ARGV[i + 1])
    end
  end
  return {crawl, (#ARGV - 4) / 2}
end
if call('EXISTS', entered) == 1 then return {'again'} end
local is_alone, is_ending = true, false
for _, other in ipairs(begun_of(crawl)) do
  if other[1] ~= name then
    is_alone = false
    if other[2] == 'e' then is_ending = true end
  end
end
if is_uncommitted(crawl) and is_alone then
  -- The crawl was never committed, so it has no data of any other source.
  call('SREM', UNCOMMITTED, crawl)
  call('SREM', COMMITTING, crawl)
  forget_records(crawl)
  call('DEL', 'dedupe:crawl:' .. crawl)
  forget_mode()
  return {crawl}
end
if is_uncommitted(crawl) and not is_ending then
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
