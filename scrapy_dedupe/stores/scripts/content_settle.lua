-- Confirms the texts of pages that succeeded, and forgets those of pages that failed. The keys are described in
-- stores/redis_content.py; all have the hash tag of the key that is passed.
--
-- KEYS: i
-- ARGV: 1 if this call may be a repetition; prefix; lifetime in milliseconds (0: unlimited); then for each page "+", "-"
-- or "=" (dropped), the digest of its text, URL key, URL, crawl id, time in milliseconds, the kind of the verdict, the
-- original's digest (empty: the same text), similarity

local run, match = redis.call, string.match
local prefix, lifetime = ARGV[2], tonumber(ARGV[3])

local places = {}
local function place_of(crawl)
  if not places[crawl] then
    local place = run('HGET', KEYS[1], crawl)
    if not place then
      place = run('RPUSH', prefix .. 'n', crawl) - 1
      run('HSET', KEYS[1], crawl, place)
    end
    places[crawl] = place
  end
  return places[crawl]
end

-- The first capture of a text at a URL is kept until it expires.
local function note(url_key, digest, ms, value)
  local key = prefix .. 'c' .. url_key
  local is_new = run('HSETNX', key, digest, value) == 1
  if not is_new and lifetime > 0 then
    local noted_ms = match(run('HGET', key, digest), '^%S+ (%S+)')
    if tonumber(noted_ms) + lifetime <= tonumber(ms) then
      run('HSET', key, digest, value)
    end
  end
  if lifetime > 0 then
    run('PEXPIRE', key, lifetime)
  end
end

for item = 4, #ARGV, 9 do
  local operation, digest, url_key, url = ARGV[item], ARGV[item + 1], ARGV[item + 2], ARGV[item + 3]
  local place, ms = place_of(ARGV[item + 4]), ARGV[item + 5]
  local kind, original, similarity = ARGV[item + 6], ARGV[item + 7], ARGV[item + 8]
  local key = prefix .. 't' .. digest
  local first = run('GET', key)
  local own = ' ' .. ms .. ' ' .. place .. ' ' .. url

  local state, first_url
  if first then
    state, first_url = match(first, '^(%a) %S+ %d+ (.*)$')
  end
  if operation == '+' and state ~= 'c' then
    if lifetime > 0 then
      run('SET', key, 'c' .. own, 'PX', lifetime)
    else
      run('SET', key, 'c' .. own)
    end
  end
  if operation ~= '-' and (kind == 'near' or original ~= '' or (state == 'c' and first_url ~= url)) then
    note(url_key, digest, ms, kind .. ' ' .. ms .. ' ' .. place .. ' ' .. similarity .. ' ' .. original)
  end
  if operation ~= '+' and first == 'p' .. own then
    run('DEL', key, prefix .. 's' .. digest)
  end
end
return 0
