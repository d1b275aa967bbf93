-- The queue of sources to import.
-- ARGV  2 what: "queue", then for each source its name and JSON: how many were put there
--       "claim", the lease in milliseconds: {} if there is none, {JSON}, or {JSON, "unreadable"} for one that was dropped
--       "renew", a name and the lease
--       "drop", an entry of pending:q
--       "release", a name
local what = ARGV[2]

if what == 'queue' then
  local added = 0
  for i = 3, #ARGV, 2 do
    if not has(DONE, ARGV[i]) and call('SADD', QUEUED, ARGV[i]) == 1 then
      call('LPUSH', QUEUE, ARGV[i + 1])
      added = added + 1
    end
  end
  return added
end

if what == 'claim' then
  local claimed = call('LRANGE', CLAIMED, 0, -1)
  for i = #claimed, 1, -1 do
    local name = name_of(claimed[i])
    if not name then
      call('LREM', CLAIMED, 0, claimed[i])
      return {claimed[i], 'unreadable'}
    end
    if call('EXISTS', CLAIMED .. ':' .. name) == 0 then
      call('SET', CLAIMED .. ':' .. name, '1', 'PX', ARGV[3])
      return {claimed[i]}
    end
  end
  local entry, name
  repeat
    entry = call('RPOP', QUEUE)
    if not entry then return {} end
    name = name_of(entry)
    if not name then return {entry, 'unreadable'} end
    -- Another program may have imported it in the meantime.
    local is_done = has(DONE, name)
    if is_done then call('SREM', QUEUED, name) end
  until not is_done
  call('LPUSH', CLAIMED, entry)
  call('SADD', QUEUED, name)
  call('SET', CLAIMED .. ':' .. name, '1', 'PX', ARGV[3])
  return {entry}
end

if what == 'renew' then
  for _, entry in ipairs(call('LRANGE', CLAIMED, 0, -1)) do
    if name_of(entry) == ARGV[3] then
      call('SET', CLAIMED .. ':' .. ARGV[3], '1', 'PX', ARGV[4])
      break
    end
  end
elseif what == 'drop' then
  call('LREM', CLAIMED, 0, ARGV[3])
  local name = name_of(ARGV[3])
  if name then
    call('SREM', QUEUED, name)
    call('DEL', CLAIMED .. ':' .. name)
  end
elseif what == 'release' then
  unqueue(ARGV[3])
end
return 0
