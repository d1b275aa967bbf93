-- Attach a process to a shared URL filter, renew its lease, or detach it. The formats are described in
-- urls/shared.py.
--
-- KEYS[1]: the key of the head, "<base>:meta"; the other keys are derived from it and carry the same hash tag.
-- ARGV: 1 if this call may be a repetition (ignored); "attach", "renew" or "detach"; the token of the process; its lease
-- in milliseconds. The other arguments depend on the operation.

local run = redis.call
local meta, operation, token, lease_ms = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local base = string.sub(meta, 1, -5)
local attached = base .. 'attached'

local function now_ms()
    local time = run('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function renew_lease()
    run('ZADD', attached, now_ms() + lease_ms, token)
end

-- A process that did not detach has lost its queue: `cut` records this.
local function bury(gone)
    if run('ZREM', attached, gone) == 1 and run('EXISTS', meta) == 1 then
        run('HSET', meta, 'cut', gone)
    end
    run('HDEL', meta, 'call:' .. gone)
end

local function forget_expired()
    for _, gone in ipairs(run('ZRANGEBYSCORE', attached, '-inf', now_ms())) do
        bury(gone)
    end
end

local function count_all()
    local total = tonumber(run('HGET', meta, 'count') or 0)
    for count in string.gmatch(run('HGET', meta, 'full') or '', '%d+') do
        total = total + tonumber(count)
    end
    return total
end

local function delete_all()
    local number = 0
    for shards in string.gmatch(run('HGET', meta, 'used') or '', '%a+ %d+ %d+ %d+ (%d+)') do
        for shard = 0, tonumber(shards) - 1 do
            run('UNLINK', base .. 'bits:' .. number .. ':' .. shard)
        end
        number = number + 1
    end
    run('UNLINK', meta, attached, base .. 'starts')
end

if operation == 'attach' then
    -- ARGV: version, hash, fingerprinter, capacity, error rate, the first layer, the other layers, a name for a new
    -- generation, the generation that the calling process has used until now, the generation that may be kept if no
    -- other process is attached ('*': any), 1 if no other process is attached to the first part (2: and that was `cut`),
    -- tokens of processes that are gone. Returns the head, the number of other processes, the number of discarded
    -- fingerprints, and 1 if the existing filter was `cut`.
    local version, hash, fingerprinter, capacity, error_rate, first, plan, born, held, keep = unpack(ARGV, 5, 14)
    for i = 16, #ARGV do
        bury(ARGV[i])
    end
    -- A process that returns after its lease has expired is not gone.
    run('ZREM', attached, token)
    forget_expired()
    -- A process that is attached to other parts only has not detached from these.
    local others = ARGV[15] == '0' and run('ZCARD', attached) or 0
    local discarded, cut = 0, 0
    local found_born, found_cut = unpack(run('HMGET', meta, 'born', 'cut'))
    if run('EXISTS', meta) == 1 then
        found_cut = found_cut or ARGV[15] == '2'
        cut = found_cut and 1 or 0
        -- redis-py may send the call twice; the second call finds the generation that the first one has created.
        local is_in_use = others > 0 or found_born == held or found_born == born
        if not is_in_use and keep ~= '*' and (keep ~= found_born or found_cut) then
            discarded = count_all()
            delete_all()
            -- An interrupted job that continues keeps its list of forgotten fingerprints.
            if keep ~= found_born then
                run('UNLINK', base .. 'forgotten')
            end
        elseif keep == '*' then
            run('HDEL', meta, 'cut') -- the queue is in Redis too, and complete
        end
    end
    if run('EXISTS', meta) == 0 then
        run('HSET', meta, 'version', version, 'hash', hash, 'fingerprinter', fingerprinter, 'capacity', capacity,
            'error_rate', error_rate, 'born', born, 'used', first, 'plan', plan, 'full', '', 'count', 0)
        local forgotten = run('SCARD', base .. 'forgotten')
        if forgotten > 0 then
            run('HSET', meta, 'forgotten', forgotten)
        end
    end
    local head = run('HMGET', meta, 'version', 'hash', 'fingerprinter', 'capacity', 'error_rate', 'born', 'used',
        'full', 'count', 'forgotten')
    if head[1] == version and head[2] == hash and head[3] == fingerprinter
        and tonumber(head[5]) == tonumber(error_rate) then
        renew_lease()
    end
    return { head, others, discarded, cut }
end

if operation == 'renew' then
    if run('EXISTS', meta) == 1 then
        renew_lease()
    end
    return 1
end

-- 'detach'. ARGV: 1 to delete the filter if no other process is attached (2: even if others are, which then create a new
-- one), 1 to detach as an interrupted process, tokens of processes that are gone. Returns 1 if it was deleted.
for i = 7, #ARGV do
    bury(ARGV[i])
end
if ARGV[6] == '1' then
    bury(token)
end
run('ZREM', attached, token)
run('HDEL', meta, 'call:' .. token)
forget_expired()
if ARGV[5] == '0' or ARGV[5] == '1' and run('ZCARD', attached) > 0 then
    return 0
end
delete_all()
run('UNLINK', base .. 'forgotten')
return 1
