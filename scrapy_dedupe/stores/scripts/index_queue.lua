-- The queue of sources to import.
-- ARGV  2 what: "queue", then for each source its name and JSON: returns how many were appended
--       "claim", the lease in milliseconds and a new token: {} if there is none, {JSON}, or {JSON, "unreadable"} for an
--       entry that was dropped
--       "renew", a name, the token of its claim, and the lease
--       "drop", an entry of pending:q
--       "release", a name and the token of its claim
-- The first two return {"type", key, found, expected} for a key of another type; "renew" and "release" return "ok" or
-- "taken".
local what = ARGV[2]

if what == 'queue' or what == 'claim' then
  local wrong = wrong_type({QUEUE, 'list', QUEUED, 'set', CLAIMED, 'list', CLAIMS, 'hash', DONE, 'set'}, 1)
  if wrong then return wrong end
end

if what == 'queue' then
  local added = 0
  for i = 3, #ARGV, 2 do
    if not has(DONE, ARGV[i]) and call('SADD', QUEUED, ARGV[i]) == 1 then
      call('LPUSH', QUEUE, ARGV[i + 1])
      -- Another program may have taken it out of the queue after it was claimed here.
      call('HDEL', CLAIMS, ARGV[i])
      added = added + 1
    end
  end
  return added
end

if what == 'claim' then
  local function claim(entry, name)
    call('SET', CLAIMED .. ':' .. name, ARGV[4], 'PX', ARGV[3])
    call('HSET', CLAIMS, name, ARGV[4])
    return {entry}
  end
  local claimed = call('LRANGE', CLAIMED, 0, -1)
  if ARGV[1] == '1' then
    -- A client that lost the connection repeats the call.
    for _, entry in ipairs(claimed) do
      local name = name_of(entry)
      if name and call('HGET', CLAIMS, name) == ARGV[4] then return {entry} end
    end
  end
  for i = #claimed, 1, -1 do
    local name = name_of(claimed[i])
    if not name then
      call('LREM', CLAIMED, 0, claimed[i])
      return {claimed[i], 'unreadable'}
    end
    if call('EXISTS', CLAIMED .. ':' .. name) == 0 then
      return claim(claimed[i], name)
    end
  end
  local entry, name
  repeat
    entry = call('RPOP', QUEUE)
    if not entry then return {} end
    name = name_of(entry)
    if not name then return {entry, 'unreadable'} end
    -- Another program may have imported it meanwhile.
    local is_done = has(DONE, name)
    if is_done then call('SREM', QUEUED, name) end
  until not is_done
  call('LPUSH', CLAIMED, entry)
  call('SADD', QUEUED, name)
  return claim(entry, name)
end

if (what == 'renew' or what == 'release') and is_taken(ARGV[3], ARGV[4]) then return 'taken' end
if what == 'renew' then
  for _, entry in ipairs(call('LRANGE', CLAIMED, 0, -1)) do
    if name_of(entry) == ARGV[3] then
      call('SET', CLAIMED .. ':' .. ARGV[3], ARGV[4], 'PX', ARGV[5])
      break
    end
  end
elseif what == 'drop' then
  call('LREM', CLAIMED, 0, ARGV[3])
  local name = name_of(ARGV[3])
  if name then
    call('SREM', QUEUED, name)
    call('DEL', CLAIMED .. ':' .. name)
    call('HDEL', CLAIMS, name)
  end
elseif what == 'release' then
  unqueue(ARGV[3])
end
return 'ok'
