/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding and decoding, and the tables behind them. */
#include "data/tokenizer.h"

#include <inttypes.h>
#include <string.h>

#include "data/tokenizer_internal.h"
#include "tensor/byte_hash.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* --- tokens ------------------------------------------------------------------------- */

trek_tokenizer *trek_tokenizer_empty(void)
{
    trek_tokenizer *t = trek_calloc(1, sizeof *t);
    if (t)
        t->classes = trek_char_classes();
    return t;
}

void trek_tokenizer_free(trek_tokenizer **tokenizer)
{
    if (!tokenizer || !*tokenizer)
        return;
    trek_tokenizer *t = *tokenizer;
    *tokenizer = NULL;
    trek_free(t->tokens);
    trek_free(t->bytes);
    trek_free(t->slots);
    trek_free(t->merges);
    trek_free(t->added);
    trek_free(t);
}

/* Returns the slot of these bytes, or the free slot where they belong (linear probing). */
static int find_slot(const trek_tokenizer *t, const int32_t *slots, int n_slots, const void *bytes, size_t length)
{
    uint64_t hash = trek_hash_bytes(TREK_HASH_BEGIN, bytes, length);
    int mask = n_slots - 1, at = (int)((hash ^ hash >> 32) & (uint64_t)mask);
    for (; slots[at] != 0; at = (at + 1) & mask) {
        const trek_token *token = &t->tokens[slots[at] - 1];
        if (token->length == length && memcmp(t->bytes + token->at, bytes, length) == 0)
            break;
    }
    return at;
}

int32_t trek_tokenizer_lookup(const trek_tokenizer *t, const void *bytes, size_t length)
{
    return t->n_slots == 0 ? -1 : t->slots[find_slot(t, t->slots, t->n_slots, bytes, length)] - 1;
}

static trek_status room_for_token(trek_tokenizer *t, size_t length, int64_t id)
{
    trek_status status = TREK_OK;
    if (2 * (t->n_used + 1) > t->n_slots) {
        int n = t->n_slots ? 2 * t->n_slots : 1024;
        int32_t *slots = trek_calloc((size_t)n, sizeof *slots);
        if (!slots)
            return TREK_ERR_MEMORY;
        for (int k = 0; k < t->n_tokens; k++)
            if (t->tokens[k].used)
                slots[find_slot(t, slots, n, t->bytes + t->tokens[k].at, t->tokens[k].length)] = k + 1;
        trek_free(t->slots);
        t->slots = slots;
        t->n_slots = n;
    }
    if (id >= t->cap_tokens)
        status = trek_array_grow(&t->tokens, &t->cap_tokens, (int)id + 1, sizeof *t->tokens);
    for (; status == TREK_OK && t->n_tokens <= id; t->n_tokens++)
        t->tokens[t->n_tokens] = (trek_token){ 0 };
    if (status != TREK_OK || t->n_bytes + length < t->cap_bytes)
        return status;
    size_t capacity = 2 * t->cap_bytes + length + 4096;
    unsigned char *bytes = capacity <= UINT32_MAX ? trek_realloc(t->bytes, capacity) : NULL;
    if (!bytes)
        return capacity <= UINT32_MAX
                   ? TREK_ERR_MEMORY
                   : trek_fail(TREK_ERR_FORMAT,
                               "tokenizer: the tokens are too long; all together must have less than 2^31 bytes");
    t->bytes = bytes;
    t->cap_bytes = capacity;
    return TREK_OK;
}

trek_status trek_tokenizer_put(trek_tokenizer *t, const void *bytes, size_t length, int64_t id, const char *path)
{
    if (id < 0 || id > 16 * (int64_t)t->n_used + 65536)
        return trek_fail(TREK_ERR_FORMAT, "%s: a token has the number %" PRId64 ", far from all others", path, id);
    if ((id < t->n_tokens && t->tokens[id].used) || trek_tokenizer_lookup(t, bytes, length) >= 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: the token with number %" PRId64 " occurs twice", path, id);
    trek_status status = room_for_token(t, length, id);
    if (status != TREK_OK)
        return status;
    if (length > 0)
        memcpy(t->bytes + t->n_bytes, bytes, length);
    t->slots[find_slot(t, t->slots, t->n_slots, bytes, length)] = (int32_t)id + 1;
    t->tokens[id] = (trek_token){ .at = (uint32_t)t->n_bytes, .length = (uint32_t)length, .used = true };
    t->n_bytes += length;
    t->n_used++;
    return TREK_OK;
}

trek_status trek_tokenizer_put_added(trek_tokenizer *t, int32_t id, bool special)
{
    if (t->tokens[id].length == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "tokenizer: special token: no text; it must have one");
    t->tokens[id].special |= special;
    for (int k = 0; k < t->n_added; k++)
        if (t->added[k] == id)
            return TREK_OK;
    trek_status status = trek_array_grow(&t->added, &t->cap_added, t->n_added + 1, sizeof *t->added);
    if (status != TREK_OK)
        return status;
    t->added[t->n_added++] = id;
    t->begins_added[t->bytes[t->tokens[id].at]] = true;
    return TREK_OK;
}

trek_status trek_tokenizer_finish(trek_tokenizer *t, const char *path)
{
    for (int k = 0; k < 256; k++) {
        unsigned char byte = (unsigned char)k;
        t->of_byte[k] = trek_tokenizer_lookup(t, &byte, 1);
        if (t->of_byte[k] < 0)
            return trek_fail(TREK_ERR_FORMAT, "%s: the byte 0x%02x has no token", path, (unsigned)byte);
    }
    return t->merges ? TREK_OK : trek_tokenizer_room_for_merges(t, 0);
}

int64_t trek_tokenizer_size(const trek_tokenizer *t) { return t ? t->n_tokens : 0; }

int64_t trek_tokenizer_id(const trek_tokenizer *t, const char *token, size_t bytes)
{
    if (!t || !token) {
        trek_fail_missing("tokenizer_id", t ? "token" : "tokenizer");
        return -1;
    }
    return trek_tokenizer_lookup(t, token, bytes);
}

static bool is_token(const trek_tokenizer *t, int64_t id) { return id >= 0 && id < t->n_tokens && t->tokens[id].used; }

const char *trek_tokenizer_token(const trek_tokenizer *t, int64_t id, size_t *bytes)
{
    if (!t || !bytes) {
        trek_fail_missing("tokenizer_token", t ? "bytes" : "tokenizer");
        return NULL;
    }
    if (!is_token(t, id))
        return trek_fail_null(TREK_ERR_ARGUMENT, "tokenizer_token: id: there is no token %" PRId64, id);
    *bytes = t->tokens[id].length;
    return (const char *)t->bytes + t->tokens[id].at;
}

int64_t trek_tokenizer_add_special(trek_tokenizer *t, const char *token)
{
    if (!t || !token || !*token) {
        trek_fail_missing("tokenizer_add_special", t ? "token" : "tokenizer");
        return -1;
    }
    int32_t id = trek_tokenizer_lookup(t, token, strlen(token));
    trek_status status = TREK_OK;
    if (id < 0) {
        id = t->n_tokens;
        status = trek_tokenizer_put(t, token, strlen(token), id, "tokenizer_add_special");
    }
    if (status == TREK_OK)
        status = trek_tokenizer_put_added(t, id, true);
    return status == TREK_OK ? id : -1;
}

/* --- merges ---------------------------------------------------------------------------- */

trek_status trek_tokenizer_room_for_merges(trek_tokenizer *t, int64_t count)
{
    int64_t n = 16, most = 64 * (int64_t)t->n_used; /* each merge makes a token, even if not each a different one */
    while (n < 2 * (count < most ? count : most))
        n *= 2;
    trek_free(t->merges);
    t->merges = trek_alloc((size_t)n * sizeof *t->merges);
    t->n_merge_slots = t->merges ? (int)n : 0;
    t->n_merges = 0;
    for (int64_t k = 0; t->merges && k < n; k++)
        t->merges[k].left = -1;
    return t->merges ? TREK_OK : TREK_ERR_MEMORY;
}

/* Returns the pair, or the free slot where it belongs. */
static inline trek_merge *find_merge(const trek_tokenizer *t, int32_t left, int32_t right)
{
    uint32_t mask = (uint32_t)t->n_merge_slots - 1, at = trek_merge_hash(left, right) & mask;
    while (t->merges[at].left != -1 && (t->merges[at].left != left || t->merges[at].right != right))
        at = (at + 1) & mask;
    return &t->merges[at];
}

trek_status trek_tokenizer_put_merge(trek_tokenizer *t, int32_t left, int32_t right, int32_t to, const char *path)
{
    trek_merge *m = find_merge(t, left, right);
    if (m->left != -1 || 2 * (t->n_merges + 1) > t->n_merge_slots)
        return trek_fail(TREK_ERR_FORMAT, "%s: merge %d: it occurs twice, or there are too many", path, t->n_merges);
    *m = (trek_merge){ left, right, t->n_merges++, to };
    return TREK_OK;
}

/* --- words into tokens -------------------------------------------------------------------- */

typedef struct output {
    int64_t *ids;
    int64_t capacity, n;
} output;

static inline void put(output *out, int32_t id)
{
    if (out->n < out->capacity)
        out->ids[out->n] = id;
    out->n++;
}

enum { SHORT = 48, NEVER = INT32_MAX };

/* Returns the rank of a pair of tokens. *becomes is the token that they are joined to. */
static inline int32_t pair_rank(const trek_tokenizer *t, int32_t left, int32_t right, int32_t *becomes)
{
    const trek_merge *m = find_merge(t, left, right);
    if (m->left == -1)
        return NEVER;
    *becomes = m->to;
    return m->rank;
}

/* Encodes a word of at most SHORT bytes; it looks at all pairs for each merge. Returns the number of tokens, which
 * are in ids. */
static int merge_short(const trek_tokenizer *t, const unsigned char *word, int n, int32_t ids[SHORT])
{
    int32_t ranks[SHORT], becomes[SHORT];
    for (int k = 0; k < n; k++)
        ids[k] = t->of_byte[word[k]];
    for (int k = 0; k + 1 < n; k++)
        ranks[k] = pair_rank(t, ids[k], ids[k + 1], &becomes[k]);
    ranks[n - 1] = NEVER;
    while (n > 1) {
        int best = 0;
        for (int k = 1; k < n - 1; k++)
            best = ranks[k] < ranks[best] ? k : best;
        if (ranks[best] == NEVER)
            break;
        ids[best] = becomes[best];
        n--;
        size_t rest = (size_t)(n - best - 1);
        memmove(ids + best + 1, ids + best + 2, rest * sizeof *ids);
        memmove(ranks + best + 1, ranks + best + 2, rest * sizeof *ranks);
        memmove(becomes + best + 1, becomes + best + 2, rest * sizeof *becomes);
        ranks[best] = best + 1 < n ? pair_rank(t, ids[best], ids[best + 1], &becomes[best]) : NEVER;
        if (best > 0)
            ranks[best - 1] = pair_rank(t, ids[best - 1], ids[best], &becomes[best - 1]);
    }
    return n;
}

/* A longer word: a list of tokens, and a heap of pairs by rank and position. Pairs that no longer exist are skipped. */
typedef struct piece {
    int32_t id, before, after; /* neighbours; -1 for none */
} piece;

typedef struct candidate {
    int32_t rank, place, left, right; /* as they were when the pair was added */
} candidate;

typedef struct long_word {
    piece *pieces;
    candidate *heap;
    int n_heap;
    size_t capacity;
} long_word;

static inline bool sooner(const candidate *a, const candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->place < b->place;
}

static void push(long_word *w, candidate c)
{
    int at = w->n_heap++;
    for (int up; at > 0 && sooner(&c, &w->heap[up = (at - 1) / 2]); at = up)
        w->heap[at] = w->heap[up];
    w->heap[at] = c;
}

static candidate pop(long_word *w)
{
    candidate first = w->heap[0], last = w->heap[--w->n_heap];
    int at = 0;
    for (int down; (down = 2 * at + 1) < w->n_heap; at = down) {
        down += down + 1 < w->n_heap && sooner(&w->heap[down + 1], &w->heap[down]);
        if (!sooner(&w->heap[down], &last))
            break;
        w->heap[at] = w->heap[down];
    }
    w->heap[at] = last;
    return first;
}

static void push_pair(const trek_tokenizer *t, long_word *w, int32_t place)
{
    int32_t after = place >= 0 ? w->pieces[place].after : -1, ignored;
    if (after < 0)
        return;
    int32_t left = w->pieces[place].id, right = w->pieces[after].id, rank = pair_rank(t, left, right, &ignored);
    if (rank != NEVER)
        push(w, (candidate){ rank, place, left, right });
}

/* There are at most three candidates for each byte: its first pair, and two for each merge. */
static trek_status room_for_word(long_word *w, size_t n)
{
    if (n <= w->capacity)
        return TREK_OK;
    if (n > INT32_MAX / 4)
        return trek_fail(TREK_ERR_ARGUMENT, "tokenizer_encode: text: a word of %zu bytes; must be shorter", n);
    piece *pieces = trek_realloc(w->pieces, n * sizeof *pieces);
    w->pieces = pieces ? pieces : w->pieces;
    candidate *heap = pieces ? trek_realloc(w->heap, 3 * n * sizeof *heap) : NULL;
    w->heap = heap ? heap : w->heap;
    w->capacity = heap ? n : w->capacity;
    return heap ? TREK_OK : TREK_ERR_MEMORY;
}

static trek_status merge_long(const trek_tokenizer *t, long_word *w, const unsigned char *word, size_t length, output *out)
{
    trek_status status = room_for_word(w, length);
    if (status != TREK_OK)
        return status;
    int32_t n = (int32_t)length;
    w->n_heap = 0;
    for (int32_t k = 0; k < n; k++)
        w->pieces[k] = (piece){ t->of_byte[word[k]], k - 1, k + 1 < n ? k + 1 : -1 };
    for (int32_t k = 0; k + 1 < n; k++)
        push_pair(t, w, k);
    while (w->n_heap > 0) {
        candidate c = pop(w);
        piece *left = &w->pieces[c.place];
        if (left->id != c.left || left->after < 0 || w->pieces[left->after].id != c.right)
            continue;
        piece *right = &w->pieces[left->after];
        left->id = find_merge(t, c.left, c.right)->to;
        left->after = right->after;
        right->id = -1; /* belongs to no pair any more */
        if (left->after >= 0)
            w->pieces[left->after].before = c.place;
        push_pair(t, w, left->before);
        push_pair(t, w, c.place);
    }
    for (int32_t k = 0; k >= 0; k = w->pieces[k].after)
        put(out, w->pieces[k].id);
    return TREK_OK;
}

/* --- words that come again -------------------------------------------------------------------- */

/* A cache for long texts, most of whose words are frequent ones. Of two words in one slot, the later one stays. */
enum { CACHED = 4096, CACHED_BYTES = 16, CACHED_IDS = 6, WORTH_IT = 16384 };

typedef struct cached_word {
    uint64_t word[2];         /* padded with zeros */
    uint8_t length, n;        /* length 0 if free */
    int32_t ids[CACHED_IDS];
} cached_word;

typedef struct encoding {
    const trek_tokenizer *t;
    output out;
    long_word word;
    cached_word *cache;       /* [CACHED]; NULL if there is none */
} encoding;

static inline cached_word *cached(const encoding *e, const uint64_t word[2])
{
    uint64_t hash = (word[0] ^ word[1] * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xD6E8FEB86659FD93);
    return &e->cache[hash >> 52];
}

static trek_status encode_word(encoding *e, const unsigned char *word, size_t length)
{
    int32_t ids[SHORT];
    uint64_t key[2] = { 0, 0 };
    cached_word *c = NULL;
    if (length > SHORT)
        return merge_long(e->t, &e->word, word, length, &e->out);
    if (e->cache && length <= CACHED_BYTES) {
        memcpy(key, word, length);
        c = cached(e, key);
        if (c->length == length && c->word[0] == key[0] && c->word[1] == key[1]) {
            for (int k = 0; k < c->n; k++)
                put(&e->out, c->ids[k]);
            return TREK_OK;
        }
    }
    int n = merge_short(e->t, word, (int)length, ids);
    for (int k = 0; k < n; k++)
        put(&e->out, ids[k]);
    if (c && n <= CACHED_IDS) {
        *c = (cached_word){ .word = { key[0], key[1] }, .length = (uint8_t)length, .n = (uint8_t)n };
        memcpy(c->ids, ids, (size_t)n * sizeof *ids);
    }
    return TREK_OK;
}

/* --- texts ----------------------------------------------------------------------------------------- */

static trek_status encode_plain(encoding *e, const unsigned char *p, const unsigned char *end)
{
    trek_status status = TREK_OK;
    while (p < end && status == TREK_OK) {
        const unsigned char *next = trek_word_end(e->t->classes, p, end);
        status = encode_word(e, p, (size_t)(next - p));
        p = next;
    }
    return status;
}

/* Returns the longest added token at p, or -1. */
static int32_t added_at(const trek_tokenizer *t, const unsigned char *p, const unsigned char *end)
{
    int32_t best = -1;
    for (int k = 0; k < t->n_added; k++) {
        const trek_token *token = &t->tokens[t->added[k]];
        if (token->length <= (size_t)(end - p) && memcmp(p, t->bytes + token->at, token->length) == 0 &&
            (best < 0 || token->length > t->tokens[best].length))
            best = t->added[k];
    }
    return best;
}

static trek_status encode_all(encoding *e, const unsigned char *p, const unsigned char *end, bool plain)
{
    const unsigned char *from = p;
    trek_status status = TREK_OK;
    while (!plain && p < end && status == TREK_OK) {
        int32_t id = e->t->begins_added[*p] ? added_at(e->t, p, end) : -1;
        if (id < 0) {
            p++;
            continue;
        }
        status = encode_plain(e, from, p);
        put(&e->out, id);
        p += e->t->tokens[id].length;
        from = p;
    }
    return status == TREK_OK ? encode_plain(e, from, end) : status;
}

int64_t trek_tokenizer_encode_to(const trek_tokenizer *t, const char *text, size_t bytes, const trek_encode_opts *opts,
                                 int64_t *ids, int64_t capacity)
{
    if (!t || (!text && bytes > 0) || (!ids && capacity > 0)) {
        trek_fail_missing("tokenizer_encode", !t ? "tokenizer" : !text && bytes > 0 ? "text" : "ids");
        return -1;
    }
    encoding e = { .t = t, .out = { ids, capacity, 0 } };
    if (bytes >= WORTH_IT) {
        e.cache = trek_calloc(CACHED, sizeof *e.cache);
        if (!e.cache)
            return -1;
    }
    const unsigned char *p = (const unsigned char *)text;
    trek_status status = bytes > 0 ? encode_all(&e, p, p + bytes, opts && opts->plain) : TREK_OK;
    trek_free(e.cache);
    trek_free(e.word.pieces);
    trek_free(e.word.heap);
    return status == TREK_OK ? e.out.n : -1;
}

/* Texts have a few bytes for each token. A text with fewer is encoded twice. */
trek_tensor *trek_tokenizer_encode(const trek_tokenizer *t, const char *text, size_t bytes, const trek_encode_opts *opts)
{
    int64_t capacity = (int64_t)(bytes / 3) + 64, n = capacity + 1, *ids = NULL;
    while (n > capacity) {
        capacity = ids ? n : capacity;
        trek_free(ids);
        ids = trek_alloc((size_t)capacity * sizeof *ids);
        n = ids ? trek_tokenizer_encode_to(t, text, bytes, opts, ids, capacity) : -1;
    }
    trek_tensor *tensor = n >= 0 ? trek_tensor_from_data(ids, trek_dims(n), TREK_I64, trek_cpu(0)) : NULL;
    trek_free(ids);
    return tensor;
}

char *trek_tokenizer_decode(const trek_tokenizer *t, const int64_t *ids, int64_t n, bool skip_special, size_t *bytes)
{
    if (!t || (!ids && n > 0) || n < 0) {
        trek_fail_missing("tokenizer_decode", t ? "numbers" : "tokenizer");
        return NULL;
    }
    size_t length = 0;
    for (int64_t k = 0; k < n; k++) {
        if (!is_token(t, ids[k]))
            return trek_fail_null(TREK_ERR_ARGUMENT, "tokenizer_decode: ids: there is no token %" PRId64, ids[k]);
        length += skip_special && t->tokens[ids[k]].special ? 0 : t->tokens[ids[k]].length;
    }
    char *text = trek_alloc(length + 1);
    if (!text)
        return NULL;
    size_t at = 0;
    for (int64_t k = 0; k < n; k++) {
        const trek_token *token = &t->tokens[ids[k]];
        if (skip_special && token->special)
            continue;
        memcpy(text + at, t->bytes + token->at, token->length);
        at += token->length;
    }
    text[at] = 0;
    if (bytes)
        *bytes = at;
    return text;
}
