-- Begins to build a new merged index. Another process that is building one must start again, later.
-- ARGV  2 process  3 lease in milliseconds  4 a crawl that will get the records of another one, or ""  5 that other crawl
--       6... the crawls to leave out
-- Returns "ok".
call('SET', REBUILDING, ARGV[2], 'PX', ARGV[3])
call('UNLINK', NEW_DUPES, REBUILT, REMOVING, REPLACING)
if ARGV[4] ~= '' then call('HSET', REPLACING, ARGV[4], ARGV[5]) end
for i = 6, #ARGV do
  call('SADD', REMOVING, ARGV[i])
end
return 'ok'
