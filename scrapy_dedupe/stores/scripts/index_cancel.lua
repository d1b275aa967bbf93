-- Begins (ARGV[3] = "begin") or ends ("end") the cancellation of a crawl; index_release.lua runs in between.
-- ARGV  2 crawl  3 step  4 token of this cancellation: a new one for "begin"
-- The id goes to dedupe:canceled: Browsertrix's canceledcrawls contains committed crawls that its next removal forgets.
-- Returns {"ok", token}, {"done"} (nothing is left to do), {"committed"} or {"unknown"}. A process that resumes an
-- interrupted cancellation gets its token.
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
-- Another process may have ended it, and the id may belong to another crawl now.
if call('HGET', meta, 'canceling') == ARGV[4] then
  forget_records(crawl)
  -- Another program may reuse the id, so no key may mark the crawl as one of this package.
  local known = call('HMGET', meta, 'started', 'software')
  call('HSET', CANCELED, crawl, (known[1] or '') .. ' ' .. (known[2] or ''))
  call('DEL', meta)
  forget_mode()
end
return {'ok'}
