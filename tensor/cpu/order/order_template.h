/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting and selecting elements E that contain their index. Their keys are compared byte by byte, so that equal keys
 * keep the order of their indices. Must be defined before: E, N(name), BYTE(e, b): byte b of e's key (0: the least
 * significant), BEFORE(a, b). */

/* For few elements: inserts each among those before it. */
static void N(insert)(E *a, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        E moved = a[i];
        int64_t at = i;
        for (; at > 0 && BEFORE(moved, a[at - 1]); at--)
            a[at] = a[at - 1];
        a[at] = moved;
    }
}

/* Sorts n elements with keys of `bytes` bytes; room has the same size as a. Returns where they are: a or room. */
static E *N(sorted)(E *a, E *room, int64_t n, int bytes)
{
    if (n <= FEW) {
        N(insert)(a, n);
        return a;
    }
    int64_t in_order = 1;
    while (in_order < n && !BEFORE(a[in_order], a[in_order - 1]))
        in_order++;
    if (in_order == n)
        return a;
    uint32_t counts[8][256];
    memset(counts, 0, (size_t)bytes * sizeof counts[0]);
    for (int64_t i = 0; i < n; i++)
        for (int b = 0; b < bytes; b++)
            counts[b][BYTE(a[i], b)]++;
    for (int b = 0; b < bytes; b++) {
        uint32_t *starts = counts[b], sum = 0;
        if (starts[BYTE(a[0], b)] == n) /* the same everywhere */
            continue;
        for (int digit = 0; digit < 256; digit++) {
            uint32_t count = starts[digit];
            starts[digit] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < n; i++)
            room[starts[BYTE(a[i], b)]++] = a[i];
        E *sorted = room;
        room = a;
        a = sorted;
    }
    return a;
}

/* Selects the first k of n, for small k: each element that comes before the last selected one is inserted among them. */
static const E *N(first_few)(const E *a, E *held, int64_t n, int64_t k)
{
    memcpy(held, a, (size_t)k * sizeof *a);
    N(insert)(held, k);
    for (int64_t i = k; i < n; i++) {
        if (!BEFORE(a[i], held[k - 1]))
            continue;
        const E moved = a[i];
        int64_t at = k - 1;
        for (; at > 0 && BEFORE(moved, held[at - 1]); at--)
            held[at] = held[at - 1];
        held[at] = moved;
    }
    return held;
}

/* Selects the first k of n in order: candidates are collected until there are twice as many, and the others of those
 * are dropped. a does not change; room has the same size. */
static const E *N(first)(E *a, E *room, int64_t n, int64_t k, int bytes)
{
    if (k == 0)
        return a;
    if (k <= FEW_FIRST)
        return N(first_few)(a, room, n, k);
    int64_t most = 2 * k < 128 ? 128 : 2 * k, held = 0;
    if (2 * most >= n)
        return N(sorted)(a, room, n, bytes);
    E *held_here = room, *other = room + most;
    int64_t i = 0;
    for (; held < most; i++)
        held_here[held++] = a[i];
    for (;;) {
        E *order = N(sorted)(held_here, other, held, bytes);
        other = order == held_here ? other : held_here;
        held_here = order;
        held = held < k ? held : k;
        if (i == n)
            return held_here;
        const E limit = held_here[k - 1];
        for (; i < n && held < most; i++)
            if (BEFORE(a[i], limit))
                held_here[held++] = a[i];
    }
}

/* Returns the element at position k in order: of all elements with the same first bytes, those with the same next
 * byte are kept. */
static E N(chosen)(E *a, E *room, int64_t n, int64_t k, int bytes)
{
    for (int b = bytes - 1; b >= 0 && n > 1; b--) {
        uint32_t counts[256] = { 0 };
        for (int64_t i = 0; i < n; i++)
            counts[BYTE(a[i], b)]++;
        unsigned digit = 0;
        while (k >= counts[digit])
            k -= counts[digit++];
        if (counts[digit] == n)
            continue;
        int64_t kept = 0;
        for (int64_t i = 0; i < n; i++) {
            room[kept] = a[i];
            kept += BYTE(a[i], b) == digit;
        }
        E *swap = a;
        a = room;
        room = swap;
        n = kept;
    }
    return a[k];
}

#undef E
#undef N
#undef BYTE
#undef BEFORE
