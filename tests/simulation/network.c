/* SPDX-License-Identifier: Apache-2.0 */
/* The network between simulated machines, and what socket.h says of it. A connection is two ends; what an end is sent lies in its
 * buffer, of which so much can be read as has arrived. What is under way when a link is cut arrives after it is whole again, if
 * that is within five seconds: else the sender's connection has failed. A process that dies leaves its connections to the
 * system, which ends them as it ends those that are closed; of a machine without power nothing is heard. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/simulation.h"

#define UNACKNOWLEDGED_NS (5 * SIM_S)
enum { POLLERS = 4, BACKLOG = 1024 };

typedef enum kind { LISTENER, END, BELL } kind;

typedef struct sim_socket {
    kind kind;
    sim_process *process; /* NULL: nobody has accepted it yet, or has it any more */
    int fd, machine, port;
    struct sim_socket *next; /* of all, or of the listening; or of a listener's backlog */
    struct {
        sim_thread *thread;
        uint64_t wait;
    } pollers[POLLERS];
    bool closed;
    /* a listener's */
    struct sim_socket *backlog, *backlog_last;
    /* a bell's */
    bool rung;
    /* an end's */
    struct sim_socket *peer;
    bool connecting, connected, finished, end_came; /* finished: it sends no more; end_came: the other one does not */
    int error;
    int64_t begun_ns; /* to connect */
    int tries;
    char *data; /* a ring of what it is sent */
    size_t size, from, used, arrived;
    int64_t last_ns; /* when the latest of that arrives */
    bool lossy;      /* something on the way to it was lost: nothing more comes */
} sim_socket;

static sim_socket *all; /* ends and bells of a schedule */

/* --- links ------------------------------------------------------------------------------------------------------------ */

bool sim_cut(int from, int to)
{
    return from != to && (sim.powerless[from] || sim.powerless[to] || sim.cut_until[from][to] > sim.now_ns);
}

static int64_t whole_again(int from, int to)
{
    return sim.powerless[from] || sim.powerless[to] ? SIM_NEVER : sim.cut_until[from][to];
}

static int64_t latency(int from, int to)
{
    const sim_settings *s = &sim.settings;
    int64_t ns = from == to ? 10000 : s->latency_ns;
    ns += sim_below(&sim.chance, from == to ? 20000 : s->jitter_ns + 1);
    if (sim_chance(&sim.chance, s->spikes))
        ns += sim_below(&sim.chance, s->spike_ns + 1);
    return ns;
}

/* --- ends ---------------------------------------------------------------------------------------------------------------- */

static sim_socket *new_socket(kind kind, int machine)
{
    sim_socket *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->kind = kind;
    s->machine = machine;
    s->fd = -1;
    s->next = all;
    all = s;
    return s;
}

static void tell_pollers(sim_socket *s)
{
    for (int k = 0; k < POLLERS; k++) {
        sim_thread *thread = s->pollers[k].thread;
        if (!thread)
            continue;
        s->pollers[k].thread = NULL;
        if (thread->state == SIM_WAITING && thread->wait == s->pollers[k].wait)
            sim_wake(thread);
    }
}

static int take_fd(sim_process *process, sim_socket *s)
{
    for (int fd = 3; fd < SIM_FDS; fd++)
        if (!process->sockets[fd]) {
            process->sockets[fd] = s;
            s->process = process;
            return s->fd = fd;
        }
    errno = EMFILE;
    return -1;
}

static sim_socket *socket_of(int fd)
{
    sim_process *process = sim_here();
    sim_socket *s = fd >= 0 && fd < SIM_FDS ? process->sockets[fd] : NULL;
    if (!s)
        sim_fail("process %d uses socket %d, which it does not have", process->number, fd);
    return s;
}

static void fail_end(sim_socket *end, int error)
{
    if (!end->error)
        end->error = error;
    end->connecting = false;
    tell_pollers(end);
}

static void lose(void *arg, uint64_t number)
{
    (void)number;
    fail_end(arg, ETIMEDOUT);
}

static void reset(void *arg, uint64_t sender)
{
    sim_socket *end = arg;
    if (sim_cut((int)sender, end->machine)) {
        if (whole_again((int)sender, end->machine) != SIM_NEVER)
            sim_at(whole_again((int)sender, end->machine) + SIM_MS, reset, end, sender);
        return;
    }
    sim_hash(3);
    fail_end(end, end->end_came ? EPIPE : ECONNRESET);
}

static void send_reset(const sim_socket *from, sim_socket *to)
{
    int64_t at = sim.now_ns + latency(from->machine, to->machine);
    to->last_ns = at > to->last_ns ? at : to->last_ns + 1; /* behind what was sent before */
    sim_at(to->last_ns, reset, to, (uint64_t)from->machine);
}

/* What comes to an end: bytes, and in the last place that there are no more. */
#define NO_MORE ((uint64_t)1 << 62)

static void arrive(void *arg, uint64_t number)
{
    sim_socket *end = arg;
    const sim_socket *from = end->peer;
    if (sim_cut(from->machine, end->machine) || sim_cut(end->machine, from->machine)) {
        int64_t there = whole_again(from->machine, end->machine), back = whole_again(end->machine, from->machine);
        int64_t again = there > back ? there : back;
        if (again == SIM_NEVER || again - sim.now_ns > UNACKNOWLEDGED_NS) {
            sim_at(sim.now_ns + UNACKNOWLEDGED_NS, lose, end->peer, 0);
            if (sim.cut_until[from->machine][end->machine] > sim.now_ns || again == SIM_NEVER) {
                end->lossy = true;
                return;
            }
        } else {
            again += sim_below(&sim.chance, 200 * SIM_MS);
            end->last_ns = again > end->last_ns ? again : end->last_ns;
            sim_at(end->last_ns, arrive, end, number);
            return;
        }
    }
    sim_hash(number);
    if (end->lossy)
        return;
    if (number >= NO_MORE && end->used > end->arrived) { /* behind all bytes */
        sim_at(end->last_ns > sim.now_ns ? end->last_ns + 1 : sim.now_ns + SIM_MS, arrive, end, number);
        return;
    }
    if (end->closed) {
        if (number < NO_MORE)
            send_reset(end, end->peer);
        return;
    }
    if (number >= NO_MORE) {
        end->end_came = true;
    } else {
        end->arrived += number;
    }
    tell_pollers(end);
}

/* So many bytes, which lie in the end's buffer already. */
static void send_on(sim_socket *to, uint64_t bytes)
{
    int64_t at = sim.now_ns + latency(to->peer->machine, to->machine);
    if (bytes > 1 && bytes < NO_MORE && sim_chance(&sim.chance, sim.settings.splits)) {
        uint64_t first = 1 + (uint64_t)sim_below(&sim.chance, (int64_t)bytes - 1);
        send_on(to, first);
        bytes -= first;
        at += sim_below(&sim.chance, sim.settings.jitter_ns + 1000);
    }
    at = at > to->last_ns ? at : to->last_ns + 1;
    to->last_ns = at;
    sim_at(at, arrive, to, bytes);
}

static void grow(sim_socket *s, size_t more)
{
    if (s->used + more <= s->size)
        return;
    size_t size = s->size ? s->size : 1024;
    while (size < s->used + more)
        size *= 2;
    char *data = malloc(size);
    if (!data)
        abort();
    for (size_t done = 0; done < s->used;) {
        size_t at = (s->from + done) % s->size, part = s->size - at < s->used - done ? s->size - at : s->used - done;
        memcpy(data + done, s->data + at, part);
        done += part;
    }
    free(s->data);
    s->data = data;
    s->size = size;
    s->from = 0;
}

static void put(sim_socket *s, const char *bytes, size_t n)
{
    grow(s, n);
    for (size_t done = 0; done < n;) {
        size_t at = (s->from + s->used) % s->size, part = s->size - at < n - done ? s->size - at : n - done;
        memcpy(s->data + at, bytes + done, part);
        s->used += part;
        done += part;
    }
}

/* --- closing ---------------------------------------------------------------------------------------------------------------- */

static void unlist(sim_socket *listener)
{
    for (sim_socket **at = &sim.listening; *at; at = &(*at)->next)
        if (*at == listener) {
            *at = listener->next;
            return;
        }
}

static void free_socket(sim_socket *s)
{
    free(s->data);
    free(s);
}

static void close_end(sim_socket *end, bool silently)
{
    bool unread = end->arrived > 0;
    end->closed = true;
    if (!silently && end->connected && !end->error && end->peer) {
        if (unread) /* what came and was not read: the other side is told so */
            send_reset(end, end->peer);
        else if (!end->finished)
            send_on(end->peer, NO_MORE);
    }
    free(end->data);
    end->data = NULL;
    end->size = end->used = end->arrived = end->from = 0;
}

static void close_socket(sim_socket *s, bool silently)
{
    if (sim.trace_points)
        sim_trace("socket %d is closed, %d bytes unread", s->fd, (int)s->arrived);
    if (s->process && s->fd >= 0)
        s->process->sockets[s->fd] = NULL;
    s->process = NULL;
    if (s->kind == LISTENER) {
        unlist(s);
        while (s->backlog) {
            sim_socket *end = s->backlog;
            s->backlog = end->next;
            end->next = all;
            all = end;
            end->closed = true;
            if (!silently)
                send_reset(end, end->peer);
        }
        free_socket(s);
    } else if (s->kind == END) {
        close_end(s, silently);
    } else {
        s->closed = true;
    }
}

void sim_network_close(sim_process *process, bool silently)
{
    for (int fd = 0; fd < SIM_FDS; fd++)
        if (process->sockets[fd])
            close_socket(process->sockets[fd], silently);
}

void sim_network_clear(void)
{
    while (sim.listening) {
        sim_socket *s = sim.listening;
        close_socket(s, true);
    }
    while (all) {
        sim_socket *next = all->next;
        free_socket(all);
        all = next;
    }
}

int sim_sockets_open(const sim_process *process)
{
    int n = 0;
    for (int fd = 0; fd < SIM_FDS; fd++)
        n += process->sockets[fd] != NULL;
    return n;
}

int trek_socket_give(int fd) { return fd; }

void trek_socket_close(int fd)
{
    if (fd < 0)
        return;
    sim_socket *s = socket_of(fd);
    sim_point("close");
    if (s)
        close_socket(s, false);
}

/* --- addresses -----------------------------------------------------------------------------------------------------------------
 */

/* -1: there is no such machine. */
static int machine_of(const char *address)
{
    int machine = 0;
    if (strcmp(address, "localhost") == 0 || strncmp(address, "127.", 4) == 0)
        return sim_here()->machine;
    if (sscanf(address, "10.0.0.%d", &machine) != 1 || machine < 1 || machine > sim.machines)
        return -1;
    return machine - 1;
}

static sim_socket *listener_at(int machine, int port)
{
    for (sim_socket *s = sim.listening; s; s = s->next)
        if (s->machine == machine && s->port == port)
            return s;
    return NULL;
}

trek_status trek_socket_listen(const char *address, int port, int *fd, int *bound)
{
    char where[TREK_WHERE];
    int machine = machine_of(address), own = sim_here()->machine;
    trek_socket_where(address, port, where, sizeof where);
    sim_point("listen");
    *fd = -1;
    if (machine != own)
        return trek_fail(TREK_ERR_COMM, "listen: cannot listen at %s: %s", where, strerror(EADDRNOTAVAIL));
    while (port == 0) {
        int drawn = 32768 + (int)sim_below(&sim.chance, 28000);
        port = listener_at(machine, drawn) ? 0 : drawn;
    }
    if (listener_at(machine, port))
        return trek_fail(TREK_ERR_COMM, "listen: cannot listen at %s: %s", where, strerror(EADDRINUSE));
    sim_socket *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->kind = LISTENER;
    s->machine = machine;
    s->port = *bound = port;
    s->next = sim.listening;
    sim.listening = s;
    *fd = take_fd(sim_here(), s);
    sim_trace("listens at machine %d, port %d", machine, port);
    return TREK_OK;
}

int trek_socket_accept(int listening, uint64_t *from, bool *full)
{
    sim_point("accept");
    if (full)
        *full = false;
    sim_socket *s = listening >= 0 ? socket_of(listening) : NULL, *end = s ? s->backlog : NULL;
    if (!end) {
        errno = EAGAIN;
        return -1;
    }
    s->backlog = end->next;
    if (!s->backlog)
        s->backlog_last = NULL;
    end->next = all;
    all = end;
    take_fd(sim_here(), end);
    if (from)
        *from = end->peer ? (uint64_t)end->peer->machine + 1 : 0;
    if (sim.trace_points)
        sim_trace("socket %d has come to port %d", end->fd, end->port);
    return end->fd;
}

/* --- connecting
 * ------------------------------------------------------------------------------------------------------------------ */

static void finish_connecting(void *arg, uint64_t number)
{
    sim_socket *end = arg;
    (void)number;
    if (end->closed || end->error)
        return;
    end->connecting = false;
    end->connected = true;
    tell_pollers(end);
}

static void refuse(void *arg, uint64_t number)
{
    (void)number;
    fail_end(arg, ECONNREFUSED);
}

static void knock(void *arg, uint64_t machine)
{
    sim_socket *end = arg;
    int to = (int)machine;
    if (end->closed || end->error)
        return;
    if (sim_cut(end->machine, to) || sim_cut(to, end->machine)) {
        int64_t after = SIM_S << end->tries;
        if (++end->tries > 5)
            fail_end(end, ETIMEDOUT);
        else
            sim_at(sim.now_ns + after, knock, end, machine);
        return;
    }
    sim_socket *listener = listener_at(to, end->port);
    int64_t at = sim.now_ns + latency(to, end->machine);
    if (!listener) {
        sim_at(at, refuse, end, 0);
        return;
    }
    sim_socket *there = new_socket(END, to);
    all = there->next; /* it lies in the backlog */
    there->next = NULL;
    there->peer = end;
    end->peer = there;
    there->connected = true;
    there->port = end->port;
    if (listener->backlog)
        listener->backlog_last->next = there;
    else
        listener->backlog = there;
    listener->backlog_last = there;
    end->last_ns = at;
    tell_pollers(listener);
    sim_at(at, finish_connecting, end, 0);
}

static sim_socket *begin(const char *address, int port)
{
    int machine = machine_of(address);
    if (machine < 0)
        return NULL;
    sim_socket *end = new_socket(END, sim_here()->machine);
    end->connecting = true;
    end->port = port;
    end->begun_ns = sim.now_ns;
    if (take_fd(sim_here(), end) < 0) {
        end->closed = true;
        return NULL;
    }
    if (sim.trace_points)
        sim_trace("socket %d goes to machine %d, port %d", end->fd, machine, port);
    sim_at(sim.now_ns + latency(end->machine, machine), knock, end, (uint64_t)machine);
    return end;
}

int trek_socket_begin(const char *address, int port)
{
    sim_point("connect");
    sim_socket *end = begin(address, port);
    return end ? end->fd : -1;
}

bool trek_socket_begun(int fd)
{
    sim_socket *end = socket_of(fd);
    sim_point("connected");
    return end && end->connected && !end->error;
}

/* 0, or an errno. */
static int connect_once(const char *address, int port, int64_t until_ns, int *fd)
{
    sim_socket *end = begin(address, port);
    int64_t until = until_ns < sim.now_ns + 5 * SIM_S ? until_ns : sim.now_ns + 5 * SIM_S;
    if (!end)
        return errno;
    do { /* a signal does not end it */
        struct pollfd wait = { .fd = end->fd, .events = POLLOUT };
        int64_t ms = (until - sim.now_ns) / SIM_MS;
        trek_socket_poll(&wait, 1, ms < 1 ? 1 : (int)ms);
    } while (!end->error && !end->connected && sim.now_ns < until);
    int error = end->error ? end->error : end->connected ? 0 : ETIMEDOUT;
    if (error)
        close_socket(end, false);
    else
        *fd = end->fd;
    return error;
}

int trek_socket_connect(const char *address, int port, int64_t until_ns, bool (*stop)(void *arg), void *arg, char *why,
                        size_t size)
{
    int64_t pause = 5000000;
    sim_point("connect");
    for (;;) {
        int fd = -1, error = 0;
        bool known = machine_of(address) >= 0;
        if (known)
            error = connect_once(address, port, until_ns, &fd);
        if (fd >= 0)
            return fd;
        snprintf(why, size, "%s", known ? strerror(error) : "Name or service not known");
        int64_t left = until_ns - trek_now_ns();
        if (left <= 0 || (stop && stop(arg)))
            return -1;
        trek_sleep_ns(left < pause ? left : pause);
        pause = pause < 300000000 ? pause * 2 : pause;
    }
}

/* --- sending and receiving
 * ----------------------------------------------------------------------------------------------------------- */

static int64_t room_for(const sim_socket *end)
{
    return !end->connected || !end->peer ? 0
           : end->peer->closed           ? sim.settings.room
                                         : sim.settings.room - (int64_t)end->peer->used;
}

int64_t trek_socket_send(int fd, struct iovec *parts, int n)
{
    sim_socket *end = socket_of(fd);
    int64_t sent = 0;
    sim_here()->sends++;
    sim_point("send"); /* what it sends is not sent if it dies here */
    if (!end || end->error || end->finished || !end->connected) {
        errno = !end ? EBADF : end->error == ETIMEDOUT ? ETIMEDOUT : !end->connected && !end->error ? EAGAIN : EPIPE;
        return end && !end->connected && !end->error && !end->finished ? 0 : -1;
    }
    for (; n > 0; parts++, n--) {
        int64_t room = room_for(end) - (end->peer->closed ? sent : 0);
        size_t part = (int64_t)parts->iov_len < room ? parts->iov_len : (size_t)(room > 0 ? room : 0);
        if (part > 0 && !end->peer->closed)
            put(end->peer, parts->iov_base, part);
        if (part > 0) /* an empty one may have no address */
            parts->iov_base = (char *)parts->iov_base + part;
        parts->iov_len -= part;
        sent += (int64_t)part;
        if (parts->iov_len > 0)
            break;
    }
    if (sent > 0)
        send_on(end->peer, (uint64_t)sent);
    return sent;
}

int64_t trek_socket_receive(int fd, void *data, size_t size)
{
    sim_socket *end = socket_of(fd);
    sim_point("receive");
    if (!end) {
        errno = EBADF;
        return -1;
    }
    size_t n = end->arrived < size ? end->arrived : size;
    if (n == 0) {
        errno = end->error;
        return end->error || end->end_came ? -1 : 0;
    }
    bool was_full = end->peer && room_for(end->peer) <= 0;
    for (size_t done = 0; done < n;) {
        size_t part = end->size - end->from < n - done ? end->size - end->from : n - done;
        memcpy((char *)data + done, end->data + end->from, part);
        end->from = (end->from + part) % end->size;
        done += part;
    }
    end->used -= n;
    end->arrived -= n;
    if (was_full && !end->peer->closed)
        tell_pollers(end->peer);
    return (int64_t)n;
}

void trek_socket_finish(int fd)
{
    sim_socket *end = fd >= 0 ? socket_of(fd) : NULL;
    sim_point("finish");
    if (!end || end->finished || end->error || !end->connected)
        return;
    end->finished = true;
    send_on(end->peer, NO_MORE);
}

bool trek_socket_own_address(int fd, char *text, size_t size)
{
    const sim_socket *s = socket_of(fd);
    if (s)
        snprintf(text, size, "10.0.0.%d", s->machine + 1);
    return s != NULL;
}

/* --- poll and bells
 * --------------------------------------------------------------------------------------------------------------------- */

static short state_of(const sim_socket *s)
{
    short state = 0;
    if (s->kind == LISTENER)
        return s->backlog ? POLLIN : 0;
    if (s->kind == BELL)
        return (short)(s->rung ? POLLIN | POLLOUT : POLLOUT);
    if (s->error)
        return POLLIN | POLLOUT | POLLERR | POLLHUP;
    if (s->arrived > 0 || s->end_came)
        state |= POLLIN;
    if (s->end_came && s->finished)
        state |= POLLHUP;
    if (s->connected && !s->finished && room_for(s) > 0)
        state |= POLLOUT;
    return state;
}

static int look(struct pollfd *polled, int n)
{
    int ready = 0;
    const sim_process *process = sim.running->process;
    for (int k = 0; k < n; k++) {
        polled[k].revents = 0;
        if (polled[k].fd < 0)
            continue;
        const sim_socket *s = polled[k].fd < SIM_FDS ? process->sockets[polled[k].fd] : NULL;
        short state = s ? state_of(s) : POLLNVAL;
        polled[k].revents = (short)(state & (polled[k].events | POLLERR | POLLHUP | POLLNVAL));
        ready += polled[k].revents != 0;
    }
    return ready;
}

static void watch(const struct pollfd *polled, int n)
{
    const sim_process *process = sim.running->process;
    for (int k = 0; k < n; k++) {
        sim_socket *s = polled[k].fd >= 0 && polled[k].fd < SIM_FDS ? process->sockets[polled[k].fd] : NULL;
        for (int p = 0; s && p < POLLERS; p++) {
            const sim_thread *other = s->pollers[p].thread;
            if (other && other != sim.running && other->wait == s->pollers[p].wait)
                continue;
            s->pollers[p].thread = sim.running;
            s->pollers[p].wait = sim.running->wait;
            break;
        }
    }
}

void trek_socket_poll(struct pollfd *polled, int n, int ms)
{
    int64_t until = ms < 0 ? SIM_NEVER : sim.now_ns + ms * SIM_MS;
    sim_point("poll");
    while (!look(polled, n) && sim.now_ns < until) {
        watch(polled, n);
        int64_t early = sim_chance(&sim.random, sim.settings.spurious) ? sim.now_ns + sim_below(&sim.random, 2 * SIM_MS) : until;
        until = early < until ? early : until; /* a signal has ended it */
        sim_wait(until, "poll");
    }
}

int trek_bell_new(void)
{
    sim_point("bell");
    return take_fd(sim_here(), new_socket(BELL, sim_here()->machine));
}

bool trek_bell_ring(int bell)
{
    sim_socket *s = socket_of(bell);
    if (s) {
        s->rung = true;
        tell_pollers(s);
    }
    sim_point("ring");
    return s != NULL;
}

bool trek_bell_quiet(int bell)
{
    sim_socket *s = socket_of(bell);
    if (s)
        s->rung = false;
    sim_point("quiet");
    return s != NULL;
}

void trek_bell_free(int bell) { trek_socket_close(bell); }
