/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/comm/served.h"

#include <string.h>

#include "distributed/comm/gloo/mesh.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

/* What is read or given comes in pieces, of which so many are under way for each thread. */
enum { PIECE = TREK_SERVED_PIECE, UNDER_WAY = 4 };
/* How long the thread waits for connections before it looks around, and a reader when the group has ended. */
enum { LOOK_MS = 1000, REASON_MS = 2000 };
#define JOIN_NS 60000000000

enum { ASK = 1, GIVE, PUT, GOT, LEAVE }; /* GIVE answers ASK, and GOT answers PUT */

/* A message; the bytes of GIVE and PUT follow it. */
typedef struct note {
    uint64_t id, offset, version;
    int32_t kind, rank, k, bytes;
} note;

/* A message on its way. */
typedef struct parcel {
    struct parcel *next;
    size_t sent, bytes;
    const char *behind;      /* what is sent after them: borrowed, until it has been answered */
    size_t behind_bytes;
    char data[];
} parcel;

/* A thread that waits for what it reads or gives. */
typedef struct reading {
    struct reading *next;
    uint64_t id;
    int process;
    trek_served_ask ask;
    char *to;                /* NULL: it gives */
    const char *from;
    uint64_t asked, got;     /* bytes */
    int under_way;
    uint64_t version, other; /* expected; the first one that differs */
    bool lost, over;
} reading;

/* The connection to a process. */
typedef struct line {
    int fd;                  /* -1: it has ended, or is the own process */
    bool left;               /* that process reads no more */
    note in;
    size_t got;              /* bytes of it, and of what follows */
    reading *of;             /* whose bytes follow */
    char *room;              /* [PIECE] for those that are put; NULL: none yet */
    parcel *first, *last;    /* to be sent */
} line;

struct trek_served {
    trek_comm *comm;
    trek_served_opts opts;
    trek_thread thread;
    trek_lock lock;          /* of all below */
    trek_condition changed;
    int bell;
    bool stops;
    uint64_t ids;
    reading *readings;
    line *lines;             /* [world] */
    struct pollfd *polled;   /* [world + 1] the thread's */
};

/* --- sending ---------------------------------------------------------------------------------------------------------- */

static parcel *post(line *l, const note *n, size_t more)
{
    parcel *p = trek_alloc(sizeof *p + sizeof *n + more);
    if (!p)
        return NULL;
    *p = (parcel){ .bytes = sizeof *n + more };
    memcpy(p->data, n, sizeof *n);
    *(l->first ? &l->last->next : &l->first) = p;
    l->last = p;
    return p;
}

static bool send_some(line *l)
{
    while (l->first) {
        parcel *p = l->first;
        size_t own = p->sent < p->bytes ? p->sent : p->bytes, behind = p->sent - own;
        struct iovec parts[] = { { p->data + own, p->bytes - own },
                                 { (char *)(uintptr_t)p->behind + behind, p->behind_bytes - behind } };
        int64_t sent = trek_socket_send(l->fd, parts, p->behind ? 2 : 1);
        if (sent < 0)
            return false;
        p->sent += (size_t)sent;
        if (p->sent < p->bytes + p->behind_bytes)
            return true;
        l->first = p->next;
        trek_free(p);
    }
    return true;
}

/* --- readings ----------------------------------------------------------------------------------------------------------- */

/* Asks for the next pieces, or gives them. Returns false without memory. */
static bool ask_more(trek_served *s, reading *r)
{
    while (r->under_way < UNDER_WAY && r->asked < r->ask.bytes && r->version == r->other) {
        uint64_t left = r->ask.bytes - r->asked;
        note n = { .id = r->id, .kind = r->to ? ASK : PUT, .rank = r->ask.rank, .k = r->ask.k, .offset = r->ask.offset + r->asked,
                   .bytes = (int32_t)(left < PIECE ? left : PIECE) };
        parcel *p = post(&s->lines[r->process], &n, 0);
        if (!p)
            return false;
        if (!r->to) {
            p->behind = r->from + r->asked;
            p->behind_bytes = (size_t)n.bytes;
        }
        r->asked += (uint64_t)n.bytes;
        r->under_way++;
    }
    return true;
}

static void end_reading(trek_served *s, reading *r, bool lost)
{
    r->lost = lost;
    r->over = true;
    trek_condition_wake_all(&s->changed);
}

static void lose_line(trek_served *s, int p)
{
    line *l = &s->lines[p];
    trek_socket_close(l->fd);
    for (parcel *next; l->first; l->first = next) {
        next = l->first->next;
        trek_free(l->first);
    }
    trek_free(l->room);
    *l = (line){ .fd = -1, .left = true };
    for (reading *r = s->readings; r; r = r->next)
        if (r->process == p)
            end_reading(s, r, true);
    trek_condition_wake_all(&s->changed);
}

/* --- messages ----------------------------------------------------------------------------------------------------------- */

static bool answer(trek_served *s, line *l)
{
    const trek_served_ask ask = { l->in.rank, l->in.k, l->in.offset, (uint64_t)l->in.bytes };
    note n = l->in;
    n.kind = GIVE;
    parcel *p = post(l, &n, (size_t)n.bytes);
    if (!p || !s->opts.copy(s->opts.arg, &ask, p->data + sizeof n, &n.version))
        return false;
    memcpy(p->data, &n, sizeof n);
    l->got = 0;
    return true;
}

/* Takes what has been put. */
static bool take(trek_served *s, line *l)
{
    const trek_served_ask ask = { l->in.rank, l->in.k, l->in.offset, (uint64_t)l->in.bytes };
    note n = l->in;
    n.kind = GOT;
    l->got = 0;
    return s->opts.take(s->opts.arg, &ask, l->room) && post(l, &n, 0);
}

static bool end_piece(trek_served *s, line *l);

static bool begin_message(trek_served *s, int process)
{
    line *l = &s->lines[process];
    const note *n = &l->in;
    bool moves = n->bytes > 0 && n->bytes <= PIECE;
    if (n->kind == LEAVE) {
        l->left = true;
        l->got = 0;
        trek_condition_wake_all(&s->changed);
        return true;
    }
    if (n->kind == ASK)
        return moves && answer(s, l);
    if (n->kind == PUT)
        return moves && s->opts.take && (l->room || (l->room = trek_alloc(PIECE)));
    reading *r = s->readings;
    while (r && (r->id != n->id || r->process != process))
        r = r->next;
    l->of = r;
    bool fits = r && moves && n->offset >= r->ask.offset && n->offset - r->ask.offset <= r->ask.bytes - (uint64_t)n->bytes &&
        (uint64_t)n->bytes <= r->ask.bytes;
    if (n->kind == GOT)
        return fits && !r->to && end_piece(s, l);
    return n->kind == GIVE && fits && r->to;
}

static bool end_piece(trek_served *s, line *l)
{
    reading *r = l->of;
    l->got = 0;
    r->under_way--;
    r->got += (uint64_t)l->in.bytes;
    if (l->in.version != r->version && r->version == r->other)
        r->other = l->in.version;
    bool asked = ask_more(s, r);
    if (r->under_way == 0 && (r->got == r->ask.bytes || r->version != r->other))
        end_reading(s, r, false);
    return asked;
}

/* Reads what has come. Returns false if the connection has ended, or brings something else than expected. */
static bool receive(trek_served *s, int process)
{
    line *l = &s->lines[process];
    for (int64_t got = 1; got > 0;) {
        size_t head = sizeof l->in;
        if (l->got < head) {
            got = trek_socket_receive(l->fd, (char *)&l->in + l->got, head - l->got);
            l->got += got > 0 ? (size_t)got : 0;
            if (got > 0 && l->got == head && !begin_message(s, process))
                return false;
        } else {
            size_t at = l->got - head;
            char *to = l->in.kind == PUT ? l->room + at : l->of->to + (l->in.offset - l->of->ask.offset) + at;
            got = trek_socket_receive(l->fd, to, (size_t)l->in.bytes - at);
            l->got += got > 0 ? (size_t)got : 0;
            if (got > 0 && l->got == head + (size_t)l->in.bytes && !(l->in.kind == PUT ? take(s, l) : end_piece(s, l)))
                return false;
        }
        if (got < 0)
            return false;
    }
    return true;
}

/* --- the thread ---------------------------------------------------------------------------------------------------------- */

static void serve(trek_served *s)
{
    for (int p = 0; p < s->comm->world; p++) {
        line *l = &s->lines[p];
        if (l->fd >= 0 && l->fd == s->polled[p].fd && (s->polled[p].revents & (POLLIN | POLLHUP | POLLERR)) && !receive(s, p))
            lose_line(s, p);
        if (l->fd >= 0 && l->first && !send_some(l))
            lose_line(s, p);
    }
}

static void *run(void *arg)
{
    trek_served *s = arg;
    int world = s->comm->world;
    trek_thread_name(trek_thread_self(), "trek-served");
    trek_lock_acquire(&s->lock);
    while (!s->stops) {
        for (int p = 0; p < world; p++)
            s->polled[p] = (struct pollfd){ .fd = s->lines[p].fd, .events = (short)(POLLIN | (s->lines[p].first ? POLLOUT : 0)) };
        s->polled[world] = (struct pollfd){ .fd = s->bell, .events = POLLIN };
        trek_lock_release(&s->lock);
        trek_socket_poll(s->polled, world + 1, LOOK_MS);
        trek_lock_acquire(&s->lock);
        if (s->polled[world].revents)
            trek_bell_quiet(s->bell);
        serve(s);
    }
    trek_lock_release(&s->lock);
    return NULL;
}

/* --- reading ------------------------------------------------------------------------------------------------------------- */

static trek_status fail_lost(const trek_served *s, int process)
{
    trek_control *control = s->comm->control;
    for (int k = 0; k < REASON_MS && !trek_control_ended(control) && !trek_control_some_left(control); k++)
        trek_sleep_ns(1000000); /* the channel knows more than a connection */
    if (trek_control_ended(control))
        return trek_control_fail(control);
    return trek_fail(TREK_ERR_PEER, "%s: process %d, which keeps a part of them on another machine, has ended or has freed its "
                                    "graph", s->opts.what, process);
}

/* Waits until a reading is over. If the group has ended, it goes on as long as something comes. */
static void wait_for(trek_served *s, reading *r)
{
    uint64_t got = 0;
    int silent = 0;
    while (!r->over) {
        bool woken = trek_condition_wait_until(&s->changed, &s->lock, trek_now_ns() + (int64_t)LOOK_MS * 1000000);
        silent = woken || r->got != got ? 0 : silent + LOOK_MS;
        got = r->got;
        if (silent >= REASON_MS && trek_control_ended(s->comm->control))
            lose_line(s, r->process);
    }
}

/* Waits until all pieces have come, or have been taken. */
static trek_status carry(trek_served *s, reading *own)
{
    int process = own->process;
    if (own->ask.bytes == 0)
        return TREK_OK;
    trek_lock_acquire(&s->lock);
    own->id = ++s->ids;
    own->next = s->readings;
    s->readings = own;
    own->lost = own->over = s->lines[process].fd < 0;
    bool asked = own->over || (ask_more(s, own) && trek_bell_ring(s->bell));
    if (!asked)
        lose_line(s, process); /* what has been asked for would come to nobody */
    wait_for(s, own);
    for (reading **at = &s->readings; *at; at = &(*at)->next)
        if (*at == own) {
            *at = own->next;
            break;
        }
    trek_lock_release(&s->lock);
    return !asked ? TREK_ERR_MEMORY : own->lost ? fail_lost(s, process) : TREK_OK;
}

trek_status trek_served_read(trek_served *s, int process, const trek_served_ask *ask, void *to, uint64_t *version)
{
    reading own = { .process = process, .ask = *ask, .to = to, .version = *version, .other = *version };
    trek_status status = carry(s, &own);
    *version = own.other;
    return status;
}

trek_status trek_served_give(trek_served *s, int process, const trek_served_ask *ask, const void *bytes)
{
    return carry(s, &(reading){ .process = process, .ask = *ask, .from = bytes });
}

/* --- beginning and end ----------------------------------------------------------------------------------------------------- */

static void drop(trek_served *s)
{
    for (int p = 0; s->lines && p < s->comm->world; p++)
        if (s->lines[p].fd >= 0)
            lose_line(s, p);
    trek_bell_free(s->bell);
    trek_condition_destroy(&s->changed);
    trek_lock_destroy(&s->lock);
    trek_free(s->lines);
    trek_free(s->polled);
    trek_free(s);
}

static trek_served *make(trek_comm *comm, const trek_served_opts *opts)
{
    trek_served *s = trek_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (trek_served){ .comm = comm, .opts = *opts, .bell = trek_bell_new() };
    trek_lock_init(&s->lock);
    trek_condition_init(&s->changed);
    s->lines = trek_calloc((size_t)comm->world, sizeof *s->lines);
    s->polled = trek_calloc((size_t)comm->world + 1, sizeof *s->polled);
    for (int p = 0; s->lines && p < comm->world; p++)
        s->lines[p].fd = -1;
    if (s->bell >= 0 && s->lines && s->polled)
        return s;
    if (s->bell < 0)
        trek_fail(TREK_ERR_MEMORY, "%s: this process has no descriptor left to be reached by other machines", opts->what);
    drop(s);
    return NULL;
}

static trek_status listen_here(const trek_comm *comm, const char *what, trek_mesh_card *card, int *listening)
{
    int port = 0;
    if (!trek_control_own_address(comm->control, card->address, sizeof card->address))
        return trek_fail(TREK_ERR_COMM, "%s: the control connection of process %d is lost", what, comm->rank);
    trek_status status = trek_socket_listen(card->address, 0, listening, &port);
    card->port = port;
    return status;
}

/* Connects to the others, or learns that one of them cannot. */
static trek_status meet(trek_comm *comm, trek_served *s, const char *what, trek_status own, int *sockets)
{
    trek_mesh_card card = { .status = TREK_OK }, all[TREK_MAX_RANKS];
    int listening = -1;
    if (own == TREK_OK)
        own = listen_here(comm, what, &card, &listening);
    card.status = (int32_t)own;
    trek_status status = trek_comm_gather_bytes(comm, &card, sizeof card, all);
    for (int p = 0; p < comm->world && status == TREK_OK && own == TREK_OK; p++)
        if (all[p].status != TREK_OK)
            status = trek_fail(TREK_ERR_PEER, "%s: process %d cannot be reached by other machines", what, p);
        else if (all[p].port < 1 || all[p].port > 65535 || !memchr(all[p].address, 0, sizeof all[p].address))
            status = trek_fail(TREK_ERR_COMM, "%s: process %d gives no address at which it can be reached", what, p);
    if (status == TREK_OK && own == TREK_OK)
        status = trek_mesh_connect(comm->control, listening, all, JOIN_NS, sockets);
    for (int p = 0; p < comm->world && status == TREK_OK && own == TREK_OK; p++)
        s->lines[p].fd = sockets[p];
    trek_socket_close(listening);
    return own != TREK_OK ? own : status;
}

trek_status trek_served_new(trek_comm *comm, const trek_served_opts *opts, trek_served **made)
{
    trek_served *s = make(comm, opts);
    int *sockets = trek_calloc((size_t)comm->world, sizeof *sockets);
    trek_status status = meet(comm, s, opts->what, s && sockets ? TREK_OK : trek_error_status(), sockets);
    trek_free(sockets);
    if (status == TREK_OK && trek_thread_begin(&s->thread, run, s) != 0)
        status = trek_fail(TREK_ERR_MEMORY, "%s: the system has no further thread", opts->what);
    *made = status == TREK_OK ? s : NULL;
    if (status != TREK_OK && s)
        drop(s);
    return status;
}

/* Returns whether a process may still read. */
static bool may_read(const trek_served *s, int p)
{
    trek_control *control = s->comm->control;
    return s->lines[p].fd >= 0 && !s->lines[p].left && !trek_control_ended(control) &&
           trek_control_peer_call(control, p) <= s->comm->calls;
}

void trek_served_free(trek_served **address)
{
    trek_served *s = *address;
    *address = NULL;
    if (!s)
        return;
    trek_kept_error first;
    trek_error_keep(&first);
    trek_lock_acquire(&s->lock);
    for (int p = 0; p < s->comm->world; p++)
        if (s->lines[p].fd >= 0 && !post(&s->lines[p], &(note){ .kind = LEAVE }, 0))
            lose_line(s, p);
    trek_error_clear();
    trek_error_put_back(&first);
    trek_bell_ring(s->bell);
    for (int p = 0; p < s->comm->world; p++)
        while (may_read(s, p) || (s->lines[p].fd >= 0 && s->lines[p].first && !trek_control_ended(s->comm->control)))
            trek_condition_wait_until(&s->changed, &s->lock, trek_now_ns() + 10000000);
    s->stops = true;
    trek_bell_ring(s->bell);
    trek_lock_release(&s->lock);
    trek_thread_join(s->thread);
    drop(s);
}
