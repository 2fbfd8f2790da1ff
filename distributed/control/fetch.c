/* SPDX-License-Identifier: Apache-2.0 */
/* The fetching side: one loop over all suppliers, each of which has a few pieces under way. */
#include <string.h>

#include "distributed/control/supply.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* Bytes of a piece, and how many of them each supplier is to send if there are few bytes; for how long nobody else is asked for a
 * piece that somebody has been asked for; and how many may be. */
#define LEAST_PIECE ((int64_t)16)
#define MOST_PIECE ((int64_t)2 << 20)
#define AGAIN_NS 1000000000
enum { PIECES_EACH = 8, MOST_ASKED = 2, TURN_MS = 100 };

typedef struct piece {
    int64_t begin, end, asked_ns;
    int asked;               /* how many suppliers have been asked for it, and still may send it */
    bool here;
} piece;

typedef struct source {
    int fd;                  /* -1: the connection has ended */
    bool connected;
    trek_seal seal;
    int asked[TREK_SUPPLY_AHEAD], n_asked; /* pieces, in the order in which they will come */
    int64_t at;              /* how much of the first of them has come */
    size_t used;
    char in[sizeof(trek_handshake_note)];
} source;

typedef struct fetch {
    const trek_supply_fetching *what;
    trek_hmac_key secret;
    trek_identity own;
    source *sources;
    struct pollfd *polled;
    piece *pieces;
    int n_pieces, next, missing; /* from `next` on nobody has been asked for any */
    int64_t heard_ns;
} fetch;

static int64_t piece_size(const trek_supply_fetching *what)
{
    int64_t all = 0;
    for (int k = 0; k < what->n_ranges; k++)
        all += what->ranges[k].end - what->ranges[k].begin;
    int64_t size = all / (PIECES_EACH * (what->n_suppliers + 1));
    return size < LEAST_PIECE ? LEAST_PIECE : size > MOST_PIECE ? MOST_PIECE : size;
}

static trek_status make_pieces(fetch *f)
{
    int64_t n = 0, size = piece_size(f->what);
    for (int k = 0; k < f->what->n_ranges; k++)
        n += (f->what->ranges[k].end - f->what->ranges[k].begin + size - 1) / size;
    f->pieces = trek_calloc((size_t)n + 1, sizeof *f->pieces);
    if (!f->pieces)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < f->what->n_ranges; k++) {
        const trek_supply_range *range = &f->what->ranges[k];
        for (int64_t at = range->begin; at < range->end; at += size)
            f->pieces[f->n_pieces++] = (piece){ .begin = at, .end = range->end - at < size ? range->end : at + size };
    }
    f->missing = f->n_pieces;
    return TREK_OK;
}

/* What this source was to send is left to others. */
static void end_source(fetch *f, source *s)
{
    trek_socket_close(s->fd);
    s->fd = -1;
    for (int k = 0; k < s->n_asked; k++)
        f->pieces[s->asked[k]].asked--;
    s->n_asked = 0;
}

/* --- asking ---------------------------------------------------------------------------------------------- */

static bool has_asked(const source *s, int k)
{
    for (int i = 0; i < s->n_asked; i++)
        if (s->asked[i] == k)
            return true;
    return false;
}

/* Returns a piece to ask this source for, or -1: one for which nobody has been asked, or who was asked has died or is late. */
static int choose_piece(fetch *f, const source *s, int64_t now)
{
    if (f->next < f->n_pieces)
        return f->next++;
    for (int k = 0; k < f->n_pieces; k++) {
        const piece *p = &f->pieces[k];
        if (!p->here && (p->asked == 0 || (p->asked < MOST_ASKED && now - p->asked_ns > AGAIN_NS)) && !has_asked(s, k))
            return k;
    }
    return -1;
}

static bool ask(fetch *f, source *s, int k, int64_t now)
{
    piece *p = &f->pieces[k];
    trek_supply_request note = { .begin = p->begin, .bytes = p->end - p->begin };
    struct iovec part = { &note, offsetof(trek_supply_request, code) };
    trek_seal_sign(&s->seal, &part, 1, note.code);
    part = (struct iovec){ &note, sizeof note };
    s->asked[s->n_asked++] = k;
    p->asked++;
    p->asked_ns = now;
    return trek_socket_send(s->fd, &part, 1) == (int64_t)sizeof note; /* there are few, and they are short */
}

static bool ask_for_more(fetch *f, source *s)
{
    int64_t now = trek_now_ns();
    while (s->n_asked < TREK_SUPPLY_AHEAD) {
        int k = choose_piece(f, s, now);
        if (k < 0)
            return true;
        if (!ask(f, s, k, now))
            return false;
    }
    return true;
}

/* --- what comes ------------------------------------------------------------------------------------------ */

static bool shake(fetch *f, source *s)
{
    int64_t got = trek_socket_receive(s->fd, s->in + s->used, sizeof s->in - s->used);
    size_t taken;
    if (got <= 0)
        return got == 0;
    s->used += (size_t)got;
    trek_shake how = trek_seal_shake(&s->seal, &f->own, s->fd, s->in, s->used, &taken);
    s->used -= taken;
    return how == TREK_SHAKE_MORE || (how == TREK_SHAKE_DONE && s->seal.other.role == TREK_ROLE_SUPPLY);
}

static void take_piece(fetch *f, source *s)
{
    piece *p = &f->pieces[s->asked[0]];
    p->asked--;
    f->missing -= !p->here;
    p->here = true;
    s->at = 0;
    memmove(s->asked, s->asked + 1, (size_t)--s->n_asked * sizeof *s->asked);
}

/* Returns false if the connection has ended. */
static bool receive(fetch *f, source *s)
{
    while (s->n_asked > 0) {
        const piece *p = &f->pieces[s->asked[0]];
        int64_t left = p->end - p->begin - s->at;
        int64_t got = trek_socket_receive(s->fd, f->what->memory + p->begin + s->at, (size_t)left);
        if (got <= 0)
            return got == 0;
        f->heard_ns = trek_now_ns();
        s->at += got;
        if (got == left)
            take_piece(f, s);
    }
    return true;
}

static bool go_on(fetch *f, source *s)
{
    if (!s->connected) {
        s->connected = trek_socket_begun(s->fd);
        return s->connected && trek_seal_call(&s->seal, &f->own, s->fd);
    }
    return trek_seal_is_open(&s->seal) ? receive(f, s) : shake(f, s);
}

/* --- the loop -------------------------------------------------------------------------------------------- */

/* Suppliers wait for those who have come, so all of them learn that this one has, unless they stand still. */
static bool is_complete(const fetch *f)
{
    bool known = true;
    for (int k = 0; k < f->what->n_suppliers; k++)
        known &= f->sources[k].fd < 0 || trek_seal_is_open(&f->sources[k].seal);
    return f->missing == 0 && (known || trek_now_ns() - f->heard_ns > AGAIN_NS);
}

static int watch(fetch *f)
{
    int living = 0;
    for (int k = 0; k < f->what->n_suppliers; k++) {
        const source *s = &f->sources[k];
        f->polled[k] = (struct pollfd){ .fd = s->fd, .events = s->connected ? POLLIN : POLLOUT };
        living += s->fd >= 0;
    }
    return living;
}

static trek_status fetch_all(fetch *f)
{
    int n = f->what->n_suppliers;
    for (int k = 0; k < n; k++)
        f->sources[k].fd = trek_socket_begin(f->what->suppliers[k].address, f->what->suppliers[k].port);
    f->heard_ns = trek_now_ns();
    while (!is_complete(f)) {
        if (watch(f) == 0 && f->missing > 0)
            return trek_fail(TREK_ERR_PEER, "trainer_setup: the processes of the job that had its state have died, or cannot be "
                                            "reached, before this one had all of it");
        if (f->what->quiet_ns > 0 && trek_now_ns() - f->heard_ns > f->what->quiet_ns)
            return trek_fail(TREK_ERR_TIMEOUT, "trainer_setup: nobody has sent more of the job's state for %.0f s",
                             (double)f->what->quiet_ns * 1e-9);
        trek_socket_poll(f->polled, n, TURN_MS);
        for (int k = 0; k < n; k++) {
            source *s = &f->sources[k];
            bool good = s->fd >= 0 && (!f->polled[k].revents || go_on(f, s));
            if (good && trek_seal_is_open(&s->seal))
                good = ask_for_more(f, s);
            if (!good && s->fd >= 0)
                end_source(f, s);
        }
    }
    return TREK_OK;
}

trek_status trek_supply_fetch(const trek_supply_fetching *fetching)
{
    fetch f = { .what = fetching };
    size_t n = (size_t)fetching->n_suppliers;
    trek_hmac_key_of(fetching->token, strlen(fetching->token), &f.secret);
    f.own = (trek_identity){ .secret = &f.secret, .role = TREK_ROLE_SUPPLY, .process = fetching->number };
    f.sources = trek_calloc(n + 1, sizeof *f.sources);
    f.polled = trek_calloc(n + 1, sizeof *f.polled);
    for (size_t k = 0; f.sources && k < n; k++)
        f.sources[k].fd = -1;
    trek_status status = f.sources && f.polled ? make_pieces(&f) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = fetch_all(&f);
    for (size_t k = 0; f.sources && k < n; k++)
        trek_socket_close(f.sources[k].fd);
    trek_free(f.pieces);
    trek_free(f.polled);
    trek_free(f.sources);
    return status;
}
