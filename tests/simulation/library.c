/* SPDX-License-Identifier: Apache-2.0 */
/* The communication library that simulated machines have: what the plug-in for Gloo says to the core, over simulated connections.
 * Each process is connected to each other one; of every operation each sends the others all that it has, and computes the result
 * itself, in rank order. A thread of the group moves what is under way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/comm/async/async_table.h"
#include "tensor/dtypes.h"
#include "tests/simulation/simulation.h"

enum { CONNECT, EXCHANGE, ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER };

/* What goes over a connection. */
typedef struct head {
    uint64_t number, bytes;
} head;

typedef struct frame {
    struct frame *next;
    head head;
    char data[];
} frame;

typedef struct peer {
    int fd;
    bool ended;
    frame *out, *out_last, *in, *in_last; /* to be sent; whole ones, of operations that have not begun here */
    size_t sent;                          /* of the first one of out, with its head */
    head begun;                           /* of the one that comes in */
    size_t used;                          /* of it, with its head */
    frame *coming;
    uint64_t heard, gone; /* operations of which all has come from it, has gone to it */
} peer;

typedef struct task {
    struct task *next;
    int kind, root;
    uint64_t number;
    trek_dtype dtype;
    trek_reduction op;
    int64_t count;
    size_t bytes, stride;
    const char *in;
    char *out;
    frame **parts; /* [world] */
} task;

struct trek_async_group {
    void *owner;
    const trek_async_host *host;
    int rank, world, bell;
    trek_lock lock;
    trek_thread thread;
    bool running, leaving, failed;
    char message[128];
    uint64_t given, finished;
    task *tasks, *tasks_last;
    peer *peers;
};

static void *take(const trek_async_group *g, size_t bytes)
{
    void *memory = g->host->alloc(bytes);
    if (!memory)
        abort();
    return memset(memory, 0, bytes);
}

static void fail(trek_async_group *g, int r, const char *what)
{
    if (!g->failed)
        snprintf(g->message, sizeof g->message, "Gloo: the connection to rank %d %s", r, what);
    g->failed = true;
}

/* --- frames ----------------------------------------------------------------------------------------------------------------- */

static void append(frame **first, frame **last, frame *f)
{
    if (*first)
        (*last)->next = f;
    else
        *first = f;
    *last = f;
}

static frame *frame_of(const trek_async_group *g, uint64_t number, const void *data, size_t bytes)
{
    frame *f = take(g, sizeof *f + bytes);
    f->head = (head){ number, bytes };
    if (bytes)
        memcpy(f->data, data, bytes);
    return f;
}

static void send_frames(trek_async_group *g, int r)
{
    peer *p = &g->peers[r];
    while (p->out && p->fd >= 0 && !p->ended) {
        frame *f = p->out;
        size_t whole = sizeof f->head + f->head.bytes, done = p->sent;
        struct iovec part = { .iov_base = (char *)&f->head + done, .iov_len = sizeof f->head - done };
        if (done >= sizeof f->head)
            part = (struct iovec){ .iov_base = f->data + (done - sizeof f->head), .iov_len = whole - done };
        int64_t put = trek_socket_send(p->fd, &part, 1);
        if (put < 0)
            p->ended = true;
        if (put <= 0)
            return;
        p->sent += (size_t)put;
        if (p->sent < whole)
            continue;
        p->out = f->next;
        p->sent = 0;
        p->gone = f->head.number;
        g->host->free(f);
    }
}

static void receive_frames(trek_async_group *g, peer *p)
{
    while (p->fd >= 0 && !p->ended) {
        bool in_head = p->used < sizeof p->begun;
        char *to = in_head ? (char *)&p->begun + p->used : p->coming->data + (p->used - sizeof p->begun);
        size_t whole = in_head ? sizeof p->begun : sizeof p->begun + p->begun.bytes;
        int64_t got = p->used < whole ? trek_socket_receive(p->fd, to, whole - p->used) : 0;
        if (got < 0)
            p->ended = true;
        if (got <= 0 && p->used < whole)
            return;
        p->used += (size_t)got;
        if (p->used == sizeof p->begun && !p->coming) {
            p->coming = take(g, sizeof(frame) + p->begun.bytes);
            p->coming->head = p->begun;
        }
        if (p->used < sizeof p->begun || p->used < sizeof p->begun + p->begun.bytes)
            continue;
        frame *f = p->coming;
        p->coming = NULL;
        p->used = 0;
        p->heard = f->head.number;
        append(&p->in, &p->in_last, f);
    }
}

/* --- operations ---------------------------------------------------------------------------------------------------------------
 */

/* One rank after the other, into the first one's. */
static char *fold_parts(trek_async_group *g, task *t, int64_t count)
{
    char *sum = t->parts[0]->data;
    for (int r = 1; r < g->world; r++)
        g->host->fold(t->dtype, t->op, t->parts[r]->data, sum, count);
    return sum;
}

static void compute(trek_async_group *g, task *t)
{
    size_t bytes = t->bytes;
    if (t->kind == ALL_REDUCE || (t->kind == REDUCE && t->root == g->rank))
        memcpy(t->out, fold_parts(g, t, t->count), bytes);
    else if (t->kind == BROADCAST && t->root != g->rank)
        memcpy(t->out, t->parts[t->root]->data, bytes);
    else if (t->kind == REDUCE_SCATTER)
        memcpy(t->out, fold_parts(g, t, t->count * g->world) + (size_t)g->rank * (bytes / (size_t)g->world),
               bytes / (size_t)g->world);
    for (int r = 0; r < g->world && t->kind == ALL_GATHER; r++)
        memcpy(t->out + (size_t)r * bytes, t->parts[r]->data, bytes);
}

static void free_task(trek_async_group *g, task *t)
{
    for (int r = 0; r < g->world; r++)
        if (t->parts[r])
            g->host->free(t->parts[r]);
    g->host->free(t->parts);
    g->host->free(t);
}

/* What has come of it. Whether it is done. */
static bool look_at_task(trek_async_group *g, task *t)
{
    bool done = true; /* of CONNECT: there is nothing to it */
    for (int r = 0; r < g->world; r++) {
        peer *p = &g->peers[r];
        if (r == g->rank || t->kind == CONNECT)
            continue;
        if (!t->parts[r] && p->in && p->in->head.number == t->number) {
            t->parts[r] = p->in;
            p->in = p->in->next;
            if (t->kind == EXCHANGE)
                memcpy(t->out + (size_t)r * t->stride, t->parts[r]->data, t->parts[r]->head.bytes);
        }
        bool whole = t->parts[r] && p->gone >= t->number;
        if (!whole && p->ended)
            fail(g, r, "has ended");
        done = done && whole;
    }
    return done;
}

static bool finish_tasks(trek_async_group *g)
{
    bool moved = false;
    while (g->tasks && look_at_task(g, g->tasks)) {
        task *t = g->tasks;
        compute(g, t);
        g->tasks = t->next;
        g->finished = t->number;
        free_task(g, t);
        moved = true;
    }
    return moved;
}

/* --- the group's thread --------------------------------------------------------------------------------------------------- */

static int list_polled(trek_async_group *g, struct pollfd *polled)
{
    int n = 0;
    polled[n++] = (struct pollfd){ .fd = g->bell, .events = POLLIN };
    for (int r = 0; r < g->world; r++) {
        const peer *p = &g->peers[r];
        short wanted = (short)(POLLIN | (p->out ? POLLOUT : 0));
        polled[n++] = (struct pollfd){ .fd = p->ended ? -1 : p->fd, .events = wanted };
    }
    return n;
}

static bool move(trek_async_group *g)
{
    uint64_t heard = 0, before = 0;
    for (int r = 0; r < g->world; r++)
        before += g->peers[r].heard + g->peers[r].gone;
    trek_bell_quiet(g->bell);
    for (int r = 0; r < g->world; r++) {
        send_frames(g, r);
        receive_frames(g, &g->peers[r]);
    }
    for (int r = 0; r < g->world; r++)
        heard += g->peers[r].heard + g->peers[r].gone;
    bool had_failed = g->failed, finished = finish_tasks(g);
    return finished || heard > before || g->failed != had_failed;
}

static void *group_main(void *arg)
{
    trek_async_group *g = arg;
    struct pollfd *polled = take(g, (size_t)(g->world + 1) * sizeof *polled);
    trek_lock_acquire(&g->lock);
    while (!g->leaving) {
        int n = list_polled(g, polled);
        trek_lock_release(&g->lock);
        trek_socket_poll(polled, n, 60000);
        trek_lock_acquire(&g->lock);
        if (g->leaving || !move(g))
            continue;
        trek_lock_release(&g->lock);
        g->host->progressed(g->owner);
        g->host->moved(g->owner);
        trek_lock_acquire(&g->lock);
    }
    trek_lock_release(&g->lock);
    g->host->free(polled);
    return NULL;
}

/* --- what the core calls
 * --------------------------------------------------------------------------------------------------------- */

static const trek_async_host *host_here(void);

static trek_status begin(bool *ours)
{
    *ours = true;
    return TREK_OK;
}

static void end(void) {}

static trek_status group_open(void *owner, int rank, int world, trek_async_group **group)
{
    const trek_async_host *host = host_here();
    trek_async_group *g = host->alloc(sizeof *g);
    memset(g, 0, sizeof *g);
    g->host = host;
    g->owner = owner;
    g->rank = rank;
    g->world = world;
    trek_lock_init(&g->lock);
    g->bell = trek_bell_new();
    g->peers = take(g, (size_t)world * sizeof *g->peers);
    for (int r = 0; r < world; r++)
        g->peers[r].fd = -1;
    *group = g;
    return TREK_OK;
}

static task *new_task(trek_async_group *g, int kind, trek_async_request *request)
{
    task *t = take(g, sizeof *t);
    t->kind = kind;
    t->parts = take(g, (size_t)g->world * sizeof(frame *));
    t->number = request->word = ++g->given;
    return t;
}

/* What this process has goes to all others; it is its own part, too. */
static void give(trek_async_group *g, task *t, const void *data, size_t bytes)
{
    for (int r = 0; r < g->world; r++)
        if (r != g->rank)
            append(&g->peers[r].out, &g->peers[r].out_last, frame_of(g, t->number, data, bytes));
    t->parts[g->rank] = frame_of(g, t->number, data, bytes);
}

static trek_status put(trek_async_group *g, task *t)
{
    if (g->tasks)
        g->tasks_last->next = t;
    else
        g->tasks = t;
    g->tasks_last = t;
    trek_bell_ring(g->bell);
    trek_lock_release(&g->lock);
    return TREK_OK;
}

static trek_status group_connect(trek_async_group *g, const int *sockets, trek_async_request *request)
{
    trek_lock_acquire(&g->lock);
    task *t = new_task(g, CONNECT, request);
    for (int r = 0; r < g->world; r++)
        g->peers[r].fd = sockets[r];
    put(g, t);
    g->running = true;
    return trek_thread_begin(&g->thread, group_main, g) == 0 ? TREK_OK : TREK_ERR_MEMORY;
}

static void free_frames(trek_async_group *g, frame *f)
{
    while (f) {
        frame *next = f->next;
        g->host->free(f);
        f = next;
    }
}

static bool group_free(trek_async_group *g, bool done)
{
    (void)done;
    if (g->running) {
        trek_lock_acquire(&g->lock);
        g->leaving = true;
        trek_lock_release(&g->lock);
        trek_bell_ring(g->bell);
        trek_thread_join(g->thread);
    }
    for (int r = 0; r < g->world; r++) {
        trek_socket_close(g->peers[r].fd);
        free_frames(g, g->peers[r].out);
        free_frames(g, g->peers[r].in);
        free_frames(g, g->peers[r].coming);
    }
    while (g->tasks) {
        task *t = g->tasks;
        g->tasks = t->next;
        free_task(g, t);
    }
    trek_bell_free(g->bell);
    trek_lock_destroy(&g->lock);
    g->host->free(g->peers);
    g->host->free(g);
    return true;
}

static trek_status exchange(trek_async_group *g, const void *mine, size_t bytes, void *notes, size_t stride,
                            trek_async_request *requests)
{
    trek_async_request whole;
    trek_lock_acquire(&g->lock);
    task *t = new_task(g, EXCHANGE, &whole);
    t->out = notes;
    t->stride = stride;
    give(g, t, mine, bytes);
    for (int r = 0; r < g->world; r++)
        if (r != g->rank) {
            requests[r].word = t->number | (uint64_t)(r + 1) << 40;
            requests[g->world + r].word = t->number | (uint64_t)(r + 1) << 40 | (uint64_t)1 << 60;
        }
    return put(g, t);
}

static trek_status combine(trek_async_group *g, task *t, void *in, size_t bytes, trek_dtype dtype, trek_reduction op)
{
    t->dtype = dtype;
    t->op = op;
    t->bytes = bytes;
    give(g, t, in, bytes);
    return put(g, t);
}

static trek_status all_reduce(trek_async_group *g, void *data, int64_t count, trek_dtype dtype, trek_reduction op,
                              trek_async_request *request)
{
    trek_lock_acquire(&g->lock);
    task *t = new_task(g, ALL_REDUCE, request);
    t->count = count;
    t->out = data;
    return combine(g, t, data, (size_t)count * trek_dtype_size(dtype), dtype, op);
}

static trek_status reduce(trek_async_group *g, void *data, int64_t count, trek_dtype dtype, trek_reduction op, int root,
                          trek_async_request *request)
{
    trek_lock_acquire(&g->lock);
    task *t = new_task(g, REDUCE, request);
    t->count = count;
    t->root = root;
    t->out = data;
    return combine(g, t, data, (size_t)count * trek_dtype_size(dtype), dtype, op);
}

static trek_status broadcast(trek_async_group *g, void *data, int64_t bytes, int root, trek_async_request *request)
{
    trek_lock_acquire(&g->lock);
    task *t = new_task(g, BROADCAST, request);
    t->root = root;
    t->out = data;
    t->bytes = (size_t)bytes;
    give(g, t, data, root == g->rank ? (size_t)bytes : 0);
    return put(g, t);
}

static trek_status all_gather(trek_async_group *g, const void *part, int64_t bytes, void *all, trek_async_request *request)
{
    trek_lock_acquire(&g->lock);
    task *t = new_task(g, ALL_GATHER, request);
    t->out = all;
    t->bytes = (size_t)bytes;
    give(g, t, part, (size_t)bytes);
    return put(g, t);
}

static trek_status reduce_scatter(trek_async_group *g, void *all, void *part, int64_t count, trek_dtype dtype, trek_reduction op,
                                  trek_async_request *request)
{
    trek_lock_acquire(&g->lock);
    task *t = new_task(g, REDUCE_SCATTER, request);
    t->count = count;
    t->out = part;
    return combine(g, t, all, (size_t)(count * g->world) * trek_dtype_size(dtype), dtype, op);
}

static bool is_done(const trek_async_group *g, uint64_t word)
{
    uint64_t number = word & (((uint64_t)1 << 40) - 1);
    int r = (int)(word >> 40 & 0xfffff) - 1;
    if (word == 0 || g->finished >= number)
        return true;
    const task *t = g->tasks;
    while (r >= 0 && t && t->number != number)
        t = t->next;
    return r >= 0 && (word >> 60 ? g->peers[r].gone >= number : t && t->parts[r]);
}

static trek_status test(trek_async_group *g, int n, trek_async_request *requests, bool *done)
{
    char message[128] = "";
    *done = true;
    trek_lock_acquire(&g->lock);
    for (task *t = g->tasks; t; t = t->next)
        if (t->kind == EXCHANGE)
            look_at_task(g, t);
    for (int k = 0; k < n; k++)
        *done = *done && is_done(g, requests[k].word);
    if (!*done && g->failed)
        memcpy(message, g->message, sizeof message);
    trek_lock_release(&g->lock);
    return message[0] ? g->host->fail(TREK_ERR_PEER, message) : TREK_OK;
}

/* --- as a plug-in
 * ------------------------------------------------------------------------------------------------------------------ */

typedef struct library {
    const trek_async_host *host;
} library;

TREK_PER_PROCESS(library, here, { 0 });

static const trek_async_host *host_here(void) { return here()->host; }

static trek_status open_library(int abi, const trek_async_host *host, trek_async_table *table, char *why, size_t size)
{
    (void)why, (void)size;
    here()->host = host;
    *table = (trek_async_table){ .abi = abi,
                                 .library = "the simulated library",
                                 .begin = begin,
                                 .end = end,
                                 .any_thread = true,
                                 .tells = true,
                                 .group_open = group_open,
                                 .group_connect = group_connect,
                                 .group_free = group_free,
                                 .exchange = exchange,
                                 .all_reduce = all_reduce,
                                 .reduce = reduce,
                                 .broadcast = broadcast,
                                 .all_gather = all_gather,
                                 .reduce_scatter = reduce_scatter,
                                 .test = test };
    return TREK_OK;
}

void *trek_process_plugin(const char *plugin, char *why, size_t size)
{
    static char there;
    if (sim.machines > 1 && strcmp(plugin, "trek-gloo") == 0)
        return &there;
    snprintf(why, size, "there is no plug-in %s in the simulation", plugin);
    return NULL;
}

void *trek_process_symbol(void *plugin, const char *name)
{
    trek_async_open_fn open = open_library;
    void *symbol = NULL;
    (void)plugin;
    if (strcmp(name, TREK_GLOO_OPEN) == 0)
        memcpy(&symbol, &open, sizeof symbol);
    return symbol;
}
