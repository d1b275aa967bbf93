-- Begins (ARGV[3] = "begin") or ends ("end") the cancelling of a crawl; between them lies index_release.lua.
-- ARGV  2 crawl  3 step  4 token of this cancelling: at the beginning a new one
-- The id goes to a key of ours: Browsertrix's canceledcrawls has committed crawls that its next removal forgets.
-- Gives {"ok", token}, {"done"} (nothing is left to do), {"committed"} or {"unknown"}. Who goes on with a cancelling that was
-- cut off gets its token.
local crawl = ARGV[2]
local meta = 'dedupe:crawl:' .. crawl
if ARGV[3] == 'begin' then
  if has(COMMITTED, crawl) then return {'committed'} end
  if call('SREM', UNCOMMITTED, crawl) == 1 then
    forget_cancel(crawl)
    call('HSET', CANCELED, crawl, '')
    call('SREM', COMMITTING, crawl)
    call('SREM', CONCURRENT, crawl)
    call('HDEL', meta, 'resetting')
    call('HSET', meta, 'canceling', ARGV[4])
  end
  local state = state_of(crawl)
  if state == 'canceled' then forget_report(crawl) end
  local token = call('HGET', meta, 'canceling')
  if token then return {'ok', token} end
  return {state == 'canceled' and 'done' or state}
end
-- Another process may have ended it, and the crawl may be another one now.
if call('HGET', meta, 'canceling') == ARGV[4] then
  forget_records(crawl)
  -- The id may become a crawl of another program, so nothing may say that the crawl is ours.
  local known = call('HMGET', meta, 'started', 'software')
  call('HSET', CANCELED, crawl, (known[1] or '') .. ' ' .. (known[2] or ''))
  call('DEL', meta)
  forget_mode()
end
return {'ok'}
