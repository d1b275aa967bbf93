-- Begins a commit, or resumes an interrupted one.
-- ARGV  2 crawl  3 statistics as JSON, or ""  4 a new token
-- Returns {"ok", token of the commit}, {"committed"} (nothing is left to do) or {the state that does not allow it}.
local crawl = ARGV[2]
local meta = 'dedupe:crawl:' .. crawl
if not is_uncommitted(crawl) then return {state_of(crawl)} end
local known = call('HMGET', meta, 'imported', 'resetting', 'committing')
if known[1] then return {'importing'} end
if known[2] then return {'resetting'} end
local token = known[3]
if call('SADD', COMMITTING, crawl) == 1 or not token then
  token = ARGV[4]
  call('HSET', meta, 'committing', token)
end
if ARGV[3] ~= '' then
  call('HSET', meta, 'stats', ARGV[3])
end
return {'ok', token}
