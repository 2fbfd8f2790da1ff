/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP engine: process 0 takes the others' data piece by piece, combines the pieces in rank order and sends each
 * result back while the next piece comes in. What a call yields is written to the caller's memory when all of it is
 * there: a call that fails leaves it alone. */
#include "distributed/comm/tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "distributed/comm/nccl.h"
#include "distributed/control/control_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* Bytes that are combined at a time: a multiple of every dtype's size. */
#define PIECE (256u << 10)
/* How long the control channel may take to say why a connection has ended. */
#define REASON_NS (2 * (int64_t)TREK_CONTROL_SILENCE_NS)

typedef struct wire_call {
    uint64_t number;
    int32_t kind, op, dtype, root;
    int64_t count;
    int32_t on_device, unused;
} wire_call;

/* A connection and how far the present call has come on it. */
typedef struct tcp_link {
    int fd;
    bool lost;
    wire_call head;             /* what the other side says; on process 0 its call, else the number */
    size_t head_in, head_out;   /* bytes of heads */
    size_t in, in_all;          /* bytes of data */
    size_t out, out_all;        /* sent; out_first is the offset in `source` of the first */
    size_t out_first;
    char *piece;                /* process 0: the piece that comes in */
} tcp_link;

typedef struct tcp_comm {
    trek_comm base;
    int links_count, wake_fd;
    tcp_link *links;            /* process 0: by process; others: one */
    struct pollfd *polled;
    const void **ins;
    char *scratch;
    size_t scratch_size;
    /* of the present call */
    const char *source;         /* what is sent from */
    size_t total, ready;        /* bytes of the result, and how many of them can be sent */
    size_t piece_first, piece_bytes;
    int64_t moved_ns;           /* when something last moved */
    bool agreed;
} tcp_comm;

/* On devices, the processes only meet here (comm_nccl.c). */
static size_t part_bytes(const trek_comm_call *call)
{
    return call->on_device ? 0 : (size_t)call->count * trek_dtype_size(call->dtype);
}

static bool is_reduction(const trek_comm_call *call)
{
    return call->kind == TREK_COMM_ALL_REDUCE || call->kind == TREK_COMM_REDUCE_SCATTER;
}

/* Bytes that a process gives, and gets. */
static size_t bytes_given(const trek_comm *comm, const trek_comm_call *call, int process)
{
    size_t part = part_bytes(call);
    switch (call->kind) {
    case TREK_COMM_ALL_REDUCE: case TREK_COMM_ALL_GATHER: return part;
    case TREK_COMM_REDUCE_SCATTER: return part * (size_t)comm->world;
    case TREK_COMM_BROADCAST: return process == call->root ? part : 0;
    default: return 0;
    }
}

static size_t bytes_got(const trek_comm *comm, const trek_comm_call *call, int process)
{
    size_t part = part_bytes(call);
    switch (call->kind) {
    case TREK_COMM_ALL_REDUCE: case TREK_COMM_REDUCE_SCATTER: return part;
    case TREK_COMM_ALL_GATHER: return part * (size_t)comm->world;
    case TREK_COMM_BROADCAST: return process == call->root ? 0 : part;
    default: return 0;
    }
}

static bool has_scratch(tcp_comm *c, size_t bytes)
{
    if (bytes <= c->scratch_size && c->scratch)
        return true;
    char *larger = trek_block_alloc(bytes ? bytes : 1);
    if (!larger)
        return false;
    trek_block_free(c->scratch);
    c->scratch = larger;
    c->scratch_size = bytes;
    return true;
}

/* --- moving bytes ------------------------------------------------------------------------------------------------- */

/* Takes what has come, `want` bytes at most. */
static size_t take(tcp_comm *c, tcp_link *link, void *to, size_t want)
{
    ssize_t got;
    do
        got = recv(link->fd, to, want, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        c->moved_ns = trek_clock_ns();
    else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
        link->lost = true;
    return got > 0 ? (size_t)got : 0;
}

static void take_head(tcp_comm *c, tcp_link *link)
{
    if (link->head_in < sizeof link->head && !link->lost)
        link->head_in += take(c, link, (char *)&link->head + link->head_in, sizeof link->head - link->head_in);
}

/* The head goes with the first data. */
static void give(tcp_comm *c, tcp_link *link, const wire_call *head, size_t limit)
{
    struct iovec parts[2] = { { (char *)(uintptr_t)head + link->head_out, sizeof *head - link->head_out },
                              { (char *)(uintptr_t)c->source + link->out_first + link->out,
                                limit > link->out ? limit - link->out : 0 } };
    if (parts[0].iov_len + parts[1].iov_len == 0 || link->lost)
        return;
    int64_t sent = trek_socket_send(link->fd, parts, 2);
    if (sent < 0) {
        link->lost = true;
        return;
    }
    if (sent > 0)
        c->moved_ns = trek_clock_ns();
    size_t of_head = sizeof *head - link->head_out;
    of_head = (size_t)sent < of_head ? (size_t)sent : of_head;
    link->head_out += of_head;
    link->out += (size_t)sent - of_head;
}

/* --- failing ------------------------------------------------------------------------------------------------------ */

/* A connection has ended: the control channel knows why, or will soon. */
static trek_status fail_lost(tcp_comm *c, int process)
{
    int64_t until = trek_clock_ns() + REASON_NS;
    struct pollfd wake = { .fd = c->wake_fd, .events = POLLIN };
    while (!trek_control_ended(c->base.control) && trek_clock_ns() < until)
        poll(&wake, 1, 100);
    char message[128];
    snprintf(message, sizeof message, "the data connection of process %d to process %d was lost", c->base.rank, process);
    trek_control_end(c->base.control, TREK_ERR_PEER, message);
    return trek_control_fail(c->base.control);
}

/* Whether process 0 still waits for something of this one in the present call. */
static bool is_missing(const tcp_comm *c, const tcp_link *link)
{
    return link->head_in < sizeof link->head || (c->agreed && (link->in < link->in_all || link->out < link->out_all));
}

/* On process 0, when nothing has moved for the deadline: true while all who miss are excused. */
static bool wait_on(tcp_comm *c, const trek_comm_call *call)
{
    char missing[200] = "", text[128], message[TREK_ERROR_SIZE], phase[32];
    size_t used = 0;
    int count = 0, first = 0;
    bool excused = true;
    for (int p = 1; p < c->links_count; p++) {
        if (!is_missing(c, &c->links[p]))
            continue;
        excused = excused && trek_control_excused(c->base.control, p, c->base.deadline_ns);
        if (count++ == 0)
            first = p;
        if (used < sizeof missing - 16)
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used ? ", " : "", p);
    }
    if (excused)
        return true;
    int64_t silent, since;
    trek_control_peer(c->base.control, first, phase, sizeof phase, &silent, &since);
    snprintf(message, sizeof message,
             "%s, call %llu of process 0: process%s %s did not come within %g s (process %d in phase \"%s\" for %.1f s, "
             "its last call was %llu)",
             trek_comm_call_text(call, text, sizeof text), (unsigned long long)call->number, count > 1 ? "es" : "", missing,
             (double)c->base.deadline_ns * 1e-9, first, phase, (double)since * 1e-9,
             (unsigned long long)trek_control_peer_call(c->base.control, first));
    trek_control_end(c->base.control, TREK_ERR_TIMEOUT, message);
    return false;
}

/* On the others: process 0 decides, as long as it has come itself; it is given time to say so. */
static bool wait_on_zero(tcp_comm *c, const trek_comm_call *call)
{
    if (trek_control_peer_call(c->base.control, 0) >= call->number ||
        trek_control_excused(c->base.control, 0, c->base.deadline_ns) ||
        trek_clock_ns() - c->moved_ns < c->base.deadline_ns + 2 * (int64_t)TREK_CONTROL_BEAT_NS)
        return true;
    char text[128], message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "%s, call %llu of process %d: process 0 did not come within %g s",
             trek_comm_call_text(call, text, sizeof text), (unsigned long long)call->number, c->base.rank,
             (double)c->base.deadline_ns * 1e-9);
    trek_control_end(c->base.control, TREK_ERR_TIMEOUT, message);
    return false;
}

/* Sleeps until something can be done. false: the group has ended. */
static bool sleep_for(tcp_comm *c, const trek_comm_call *call, int n)
{
    c->polled[n] = (struct pollfd){ .fd = c->wake_fd, .events = POLLIN };
    int64_t left = c->base.deadline_ns ? c->moved_ns + c->base.deadline_ns - trek_clock_ns() : INT64_MAX;
    if (left <= 0 && !(c->base.rank == 0 ? wait_on(c, call) : wait_on_zero(c, call)))
        return false;
    int ms = left <= 0 ? 50 : left > 1000000000 ? 1000 : (int)(left / 1000000) + 1;
    poll(c->polled, (nfds_t)n + 1, ms);
    return !trek_control_ended(c->base.control);
}

/* --- process 0 ---------------------------------------------------------------------------------------------------- */

static bool same_call(const wire_call *wire, const trek_comm_call *call)
{
    return wire->number == call->number && wire->kind == (int32_t)call->kind && wire->op == (int32_t)call->op &&
           wire->dtype == (int32_t)call->dtype && wire->root == call->root && wire->count == call->count &&
           wire->on_device == (int32_t)call->on_device;
}

static bool calls_agree(tcp_comm *c, const trek_comm_call *call)
{
    for (int p = 0; p < c->links_count; p++) {
        const wire_call *wire = &c->links[p].head;
        if (call->kind != TREK_COMM_INVALID && (p == 0 || same_call(wire, call)))
            continue;
        char mine[128], other[128], message[TREK_ERROR_SIZE];
        trek_comm_call theirs = { .kind = (trek_comm_kind)wire->kind,
                                  .op = (trek_reduce_op)wire->op,
                                  .dtype = (trek_dtype)wire->dtype,
                                  .root = wire->root,
                                  .count = wire->count,
                                  .on_device = wire->on_device != 0 };
        if (p == 0)
            snprintf(message, sizeof message, "call %llu: rank 0 came with wrong arguments", (unsigned long long)call->number);
        else
            snprintf(message, sizeof message, "the ranks' calls differ: rank 0's call %llu is %s, rank %d's call %llu is %s",
                     (unsigned long long)call->number, trek_comm_call_text(call, mine, sizeof mine), p,
                     (unsigned long long)wire->number, trek_comm_call_text(&theirs, other, sizeof other));
        trek_control_end(c->base.control, TREK_ERR_COMM, message);
        return false;
    }
    return true;
}

/* All know what is to be done: where everyone's data goes, and what can be sent already. */
static void begin_data(tcp_comm *c, const trek_comm_call *call)
{
    size_t part = part_bytes(call);
    c->agreed = true;
    c->source = c->scratch;
    c->total = call->kind == TREK_COMM_BROADCAST ? part
               : is_reduction(call)              ? bytes_given(&c->base, call, 0)
                                                 : bytes_got(&c->base, call, 0);
    for (int p = 1; p < c->links_count; p++) {
        c->links[p].in_all = bytes_given(&c->base, call, p);
        c->links[p].out_all = bytes_got(&c->base, call, p);
        c->links[p].out_first = call->kind == TREK_COMM_REDUCE_SCATTER ? (size_t)p * part : 0;
    }
    if (call->kind == TREK_COMM_ALL_GATHER && part)
        memcpy(c->scratch, call->in, part);
    if (call->kind == TREK_COMM_BROADCAST && call->root == 0) {
        c->source = call->in;
        c->ready = c->total;
    }
    c->piece_bytes = c->total < PIECE ? c->total : PIECE;
}

/* Where this process's next data belongs and how much of it fits there. */
static char *place_for(tcp_comm *c, const trek_comm_call *call, tcp_link *link, int p, size_t *room)
{
    if (is_reduction(call)) {
        size_t used = link->in - c->piece_first;
        *room = c->piece_bytes - used;
        return link->piece + used;
    }
    *room = link->in_all - link->in;
    return c->scratch + (call->kind == TREK_COMM_ALL_GATHER ? (size_t)p * part_bytes(call) : 0) + link->in;
}

/* Combines a piece that has come from all; or finds how far the result is whole. */
static void advance(tcp_comm *c, const trek_comm_call *call)
{
    if (!is_reduction(call)) {
        size_t whole = call->kind == TREK_COMM_ALL_GATHER ? part_bytes(call) : 0;
        for (int p = 1; p < c->links_count && c->source == c->scratch; p++) {
            if (call->kind == TREK_COMM_BROADCAST && p != call->root)
                continue;
            whole += c->links[p].in;
            if (c->links[p].in < c->links[p].in_all)
                break;
        }
        c->ready = c->source == c->scratch ? whole : c->total;
        return;
    }
    for (int p = 1; p < c->links_count; p++)
        if (c->links[p].in < c->piece_first + c->piece_bytes)
            return;
    if (c->piece_bytes == 0)
        return;
    size_t size = trek_dtype_size(call->dtype);
    void *out = c->scratch + c->piece_first;
    c->ins[0] = (const char *)call->in + c->piece_first;
    for (int p = 1; p < c->links_count; p++)
        c->ins[p] = c->links[p].piece;
    trek_comm_combine(call->dtype, call->op, c->ins, c->links_count, &out, 1, 0, (int64_t)(c->piece_bytes / size));
    c->piece_first += c->piece_bytes;
    c->ready = c->piece_first;
    c->piece_bytes = c->total - c->piece_first < PIECE ? c->total - c->piece_first : PIECE;
}

/* How much of what this process gets can be sent now. */
static size_t limit_of(const tcp_comm *c, const tcp_link *link)
{
    size_t ready = c->ready > link->out_first ? c->ready - link->out_first : 0;
    return ready < link->out_all ? ready : link->out_all;
}

/* One turn over all connections; the process whose connection was lost, or 0. */
static int turn(tcp_comm *c, const trek_comm_call *call, const wire_call *head, bool *busy)
{
    *busy = false;
    for (int p = 1; p < c->links_count; p++) {
        tcp_link *link = &c->links[p];
        if (!c->agreed) {
            take_head(c, link);
            *busy |= link->head_in < sizeof link->head;
        } else {
            size_t room;
            char *place = place_for(c, call, link, p, &room);
            if (link->in < link->in_all && room)
                link->in += take(c, link, place, room);
            advance(c, call);
            give(c, link, head, limit_of(c, link));
            *busy |= link->in < link->in_all || link->out < link->out_all || link->head_out < sizeof *head;
        }
        if (link->lost)
            return p;
    }
    return 0;
}

/* Fills the table of what is waited for; 0 entries: nothing is, as data can move at once. */
static int watch(tcp_comm *c, const trek_comm_call *call)
{
    int n = 0;
    for (int p = 1; p < c->links_count; p++) {
        tcp_link *link = &c->links[p];
        size_t room = 1;
        if (c->agreed)
            place_for(c, call, link, p, &room);
        bool in = c->agreed ? link->in < link->in_all && room : link->head_in < sizeof link->head;
        bool out = c->agreed && (link->out < limit_of(c, link) || link->head_out < sizeof(wire_call));
        c->polled[n++] =
            (struct pollfd){ .fd = in || out ? link->fd : -1, .events = (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0)) };
    }
    return n;
}

static trek_status run_zero(tcp_comm *c, const trek_comm_call *call)
{
    const wire_call head = { .number = call->number };
    bool busy;
    for (;;) {
        int lost = turn(c, call, &head, &busy);
        if (lost)
            return fail_lost(c, lost);
        if (!busy && c->agreed)
            break;
        if (busy && !sleep_for(c, call, watch(c, call)))
            return trek_control_fail(c->base.control);
        if (!busy) {
            if (!calls_agree(c, call))
                return trek_control_fail(c->base.control);
            begin_data(c, call);
        }
    }
    size_t bytes = call->kind == TREK_COMM_BROADCAST ? c->total : bytes_got(&c->base, call, 0);
    if (bytes && call->out != c->source)
        memcpy(call->out, c->source, bytes); /* of a reduce_scatter the first part is its own */
    return TREK_OK;
}

/* --- the others --------------------------------------------------------------------------------------------------- */

static trek_status run_other(tcp_comm *c, const trek_comm_call *call)
{
    const wire_call head = { .number = call->number,
                             .kind = (int32_t)call->kind,
                             .op = (int32_t)call->op,
                             .dtype = (int32_t)call->dtype,
                             .root = call->root,
                             .count = call->count,
                             .on_device = call->on_device };
    tcp_link *link = &c->links[0];
    c->source = call->in ? call->in : c->scratch;
    link->in_all = bytes_got(&c->base, call, c->base.rank);
    link->out_all = bytes_given(&c->base, call, c->base.rank);
    for (;;) {
        give(c, link, &head, link->out_all);
        take_head(c, link);
        if (link->head_in == sizeof link->head && link->in < link->in_all && !link->lost)
            link->in += take(c, link, c->scratch + link->in, link->in_all - link->in);
        bool out = link->out < link->out_all || link->head_out < sizeof head;
        bool in = link->head_in < sizeof link->head || link->in < link->in_all;
        if (!in && !out)
            break;
        if (link->lost)
            return fail_lost(c, 0);
        c->polled[0] = (struct pollfd){ .fd = link->fd, .events = (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0)) };
        if (!sleep_for(c, call, 1))
            return trek_control_fail(c->base.control);
    }
    if (link->in_all)
        memcpy(call->out, c->scratch, link->in_all);
    else if (call->kind == TREK_COMM_BROADCAST && link->out_all && call->out != call->in)
        memcpy(call->out, call->in, link->out_all);
    return TREK_OK;
}

static trek_status tcp_run(trek_comm *comm, const trek_comm_call *call)
{
    tcp_comm *c = (tcp_comm *)comm;
    if (trek_forked)
        return trek_fail_forked();
    if (trek_control_ended(comm->control))
        return trek_control_fail(comm->control);
    size_t given = bytes_given(comm, call, comm->rank), got = bytes_got(comm, call, comm->rank);
    if (!has_scratch(c, given > got ? given : got)) {
        trek_control_end(comm->control, TREK_ERR_MEMORY, "a process has no memory for a call");
        return TREK_ERR_MEMORY;
    }
    for (int i = 0; i < c->links_count; i++)
        c->links[i] = (tcp_link){ .fd = c->links[i].fd, .lost = c->links[i].lost, .piece = c->links[i].piece };
    c->total = c->ready = c->piece_first = c->piece_bytes = 0;
    c->agreed = false;
    c->moved_ns = trek_clock_ns();
    return comm->rank == 0 ? run_zero(c, call) : run_other(c, call);
}

static void tcp_abort(trek_comm *comm, const char *reason)
{
    char message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "the group was aborted through rank %d%s%s", comm->rank, reason && *reason ? ": " : "",
             reason ? reason : "");
    trek_control_end(comm->control, TREK_ERR_CANCELLED, message);
}

static bool tcp_ended(const trek_comm *comm) { return trek_control_ended(comm->control); }

/* --- making ------------------------------------------------------------------------------------------------------- */

static void wake(void *arg)
{
    uint64_t one = 1;
    if (write(((tcp_comm *)arg)->wake_fd, &one, sizeof one) < 0)
        return; /* it is full: awake already */
}

static void tcp_free(trek_comm *comm)
{
    tcp_comm *c = (tcp_comm *)comm;
    trek_control_forget(comm->control, c);
    trek_comm_nccl_detach(comm);
    for (int i = 0; c->links && i < c->links_count; i++) {
        trek_socket_close(c->links[i].fd);
        trek_block_free(c->links[i].piece);
    }
    if (c->wake_fd >= 0)
        close(c->wake_fd);
    trek_block_free(c->scratch);
    trek_free(c->links);
    trek_free(c->polled);
    trek_free(c->ins);
    trek_free(c);
}

static const trek_comm_engine tcp_engine = { "tcp", tcp_run, tcp_abort, tcp_ended, tcp_free, NULL, NULL };

static tcp_comm *make(trek_control *control)
{
    int n = trek_control_processes(control);
    tcp_comm *c = trek_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->base = (trek_comm){ .engine = &tcp_engine, .rank = trek_control_process(control), .world = n, .deadline_ns = 600000000000,
                           .device = trek_cpu(0), .control = control };
    c->links_count = c->base.rank == 0 ? n : 1;
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->links = trek_calloc((size_t)c->links_count, sizeof *c->links);
    c->polled = trek_calloc((size_t)n + 1, sizeof *c->polled);
    c->ins = trek_calloc((size_t)n, sizeof *c->ins);
    bool good = c->links && c->polled && c->ins && c->wake_fd >= 0;
    for (int i = 0; c->links && i < c->links_count; i++) {
        c->links[i].fd = -1;
        c->links[i].piece = c->base.rank == 0 && i > 0 ? trek_block_alloc(PIECE) : NULL;
        good = good && (c->links[i].piece || c->base.rank != 0 || i == 0);
    }
    if (good && trek_control_on_end(control, wake, c) == TREK_OK)
        return c;
    trek_fail(TREK_ERR_MEMORY, "no memory for the connections of %d processes", n);
    tcp_free(&c->base);
    return NULL;
}

/* What process 0 lets the others know over the control channel, and what they greet it with. */
typedef struct invitation {
    int32_t port, process;
    char secret[32];
} invitation;

static bool transfer(int fd, void *data, size_t bytes, bool out, int64_t until_ns)
{
    for (size_t done = 0; done < bytes;) {
        struct iovec part = { (char *)data + done, bytes - done };
        ssize_t now = out ? trek_socket_send(fd, &part, 1) : recv(fd, part.iov_base, part.iov_len, MSG_DONTWAIT);
        if (now > 0) {
            done += (size_t)now;
            continue;
        }
        if ((now == 0 && !out) || (now < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return false;
        struct pollfd wait = { .fd = fd, .events = out ? POLLOUT : POLLIN };
        int64_t left = until_ns - trek_clock_ns();
        if (left <= 0)
            return false;
        poll(&wait, 1, (int)(left / 1000000) + 1);
    }
    return true;
}

static bool has_ended(void *control) { return trek_control_ended(control); }

/* Process 0 takes all the others in. */
static trek_status take_in(tcp_comm *c, int listening, const invitation *own)
{
    int64_t until = trek_clock_ns() + 10 * (int64_t)TREK_CONTROL_BEAT_NS;
    for (int came = 1; came < c->links_count;) {
        struct pollfd wait[2] = { { .fd = listening, .events = POLLIN }, { .fd = c->wake_fd, .events = POLLIN } };
        poll(wait, 2, 200);
        if (trek_control_ended(c->base.control))
            return trek_control_fail(c->base.control);
        if (trek_clock_ns() > until)
            return trek_fail(TREK_ERR_TIMEOUT, "%d of %d processes did not make their data connection", c->links_count - came,
                             c->links_count - 1);
        int fd = trek_socket_accept(listening);
        invitation theirs;
        bool good = fd >= 0 && transfer(fd, &theirs, sizeof theirs, false, trek_clock_ns() + TREK_CONTROL_BEAT_NS) &&
                    theirs.process > 0 && theirs.process < c->links_count && c->links[theirs.process].fd < 0 &&
                    memcmp(theirs.secret, own->secret, sizeof own->secret) == 0;
        if (good) {
            c->links[theirs.process].fd = fd;
            came++;
        } else {
            trek_socket_close(fd);
        }
    }
    return TREK_OK;
}

static trek_status go_in(tcp_comm *c, invitation *zero)
{
    trek_control *control = c->base.control;
    char why[256], where[TREK_WHERE];
    int64_t until = trek_clock_ns() + 10 * (int64_t)TREK_CONTROL_BEAT_NS;
    int fd = trek_socket_connect(control->address, zero->port, until, has_ended, control, why, sizeof why);
    if (fd < 0)
        return trek_fail(TREK_ERR_COMM, "process %d did not reach process 0 at %s: %s", c->base.rank,
                         trek_socket_where(control->address, zero->port, where, sizeof where), why);
    c->links[0].fd = fd;
    zero->process = c->base.rank;
    return transfer(fd, zero, sizeof *zero, true, until)
               ? TREK_OK : trek_fail(TREK_ERR_COMM, "the data connection of process %d was lost", c->base.rank);
}

trek_status trek_comm_tcp_new(trek_control *control, trek_comm **comm)
{
    invitation own = { 0 }, *all = trek_calloc((size_t)trek_control_processes(control), sizeof own);
    tcp_comm *c = all ? make(control) : NULL;
    int listening = -1, port = 0;
    if (c && c->base.rank == 0 && getrandom(own.secret, sizeof own.secret, 0) == (ssize_t)sizeof own.secret &&
        trek_socket_listen(control->address, 0, &listening, &port) == TREK_OK)
        own.port = port;
    trek_status status = all ? trek_control_gather(control, &own, sizeof own, all, 0) : trek_status_get();
    if (!all)
        trek_control_end(control, TREK_ERR_MEMORY, "a process has no memory to join the group");
    if (status == TREK_OK && !c)
        status = trek_status_get();
    if (status == TREK_OK && all[0].port == 0)
        status = c->base.rank == 0 ? trek_status_get() : trek_fail(TREK_ERR_COMM, "process 0 cannot listen for data connections");
    if (status == TREK_OK)
        status = c->base.rank == 0 ? take_in(c, listening, &own) : go_in(c, &all[0]);
    trek_socket_close(listening);
    trek_free(all);
    if (status != TREK_OK) /* the others need not wait for what does not come */
        trek_control_end(control, status, trek_error());
    if (status != TREK_OK && c)
        tcp_free(&c->base);
    *comm = status == TREK_OK ? &c->base : NULL;
    return status;
}
