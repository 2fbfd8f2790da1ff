/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets of the job. They are non-blocking, with TCP_NODELAY. Data that the other end has not acknowledged for
 * five seconds are an error. */
#include "distributed/system/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "distributed/system/system.h"
#include "tensor/status_internal.h"

/* The open sockets, plus one; 0: free. A forked child closes its copies. Otherwise a process that dies would look
 * alive to its peers as long as a child of it runs. */
#define KEPT 4096
static atomic_int kept[KEPT];

static void close_in_child(void)
{
    for (int i = 0; i < KEPT; i++) {
        int fd = atomic_exchange(&kept[i], 0) - 1;
        if (fd >= 0)
            close(fd);
    }
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, close_in_child); }

static void keep(int fd)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    for (int i = 0; i < KEPT; i++) {
        int none = 0;
        if (atomic_compare_exchange_strong(&kept[i], &none, fd + 1))
            return;
    }
}

static bool forget(int fd)
{
    for (int i = 0; i < KEPT; i++) {
        int own = fd + 1;
        if (atomic_compare_exchange_strong(&kept[i], &own, 0))
            return true;
    }
    return false;
}

void trek_socket_close(int fd)
{
    if (fd < 0)
        return;
    if (forget(fd) || !trek_forked) /* in the child it is closed already, and the number may belong to another file */
        close(fd);
}

static void set_options(int fd)
{
    int on = 1, ms = 5000;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_USER_TIMEOUT
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
#endif
}

int trek_socket_give(int fd)
{
    int off = 0;
    if (fd < 0)
        return fd;
    forget(fd);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof off);
#ifdef TCP_USER_TIMEOUT
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof off);
#endif
    return fd;
}

static int resolve(const char *address, int port, bool listening, struct addrinfo **found)
{
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    hints.ai_flags = AI_NUMERICSERV | (listening ? AI_PASSIVE : 0);
    return getaddrinfo(address, service, &hints, found);
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24) == 127;
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

/* Many systems give their own name the address 127.0.1.1, which other machines cannot reach. */
static void open_to_others(const char *address, struct sockaddr *found)
{
    unsigned char number[sizeof(struct in6_addr)];
    if (!is_loopback(found) || strcmp(address, "localhost") == 0 || inet_pton(AF_INET, address, number) == 1 ||
        inet_pton(AF_INET6, address, number) == 1)
        return;
    if (found->sa_family == AF_INET)
        ((struct sockaddr_in *)(void *)found)->sin_addr.s_addr = htonl(INADDR_ANY);
    else
        ((struct sockaddr_in6 *)(void *)found)->sin6_addr = in6addr_any;
}

static int port_of(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)(const void *)address)->sin6_port)
                                          : ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port);
}

static int listen_at(const char *address, struct addrinfo *one)
{
    open_to_others(address, one->ai_addr);
    int fd = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, one->ai_addr, one->ai_addrlen) == 0 && listen(fd, 1024) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

trek_status trek_socket_listen(const char *address, int port, int *fd, int *bound)
{
    char where[TREK_WHERE];
    char text[160];
    struct addrinfo *found = NULL;
    trek_socket_where(address, port, where, sizeof where);
    int bad = resolve(address, port, true, &found);
    if (bad != 0)
        return trek_fail(TREK_ERR_COMM, "listen: cannot listen at %s: %s", where,
                         bad == EAI_SYSTEM ? trek_process_why(errno, text, sizeof text) : gai_strerror(bad));
    errno = 0;
    *fd = -1;
    for (struct addrinfo *one = found; one && *fd < 0; one = one->ai_next)
        *fd = listen_at(address, one);
    int why = errno;
    freeaddrinfo(found);
    if (*fd < 0)
        return trek_fail(TREK_ERR_COMM, "listen: cannot listen at %s: %s%s", where, trek_process_why(why, text, sizeof text),
                         why == EADDRINUSE      ? " (another job, or another program: choose another port)"
                         : why == EADDRNOTAVAIL ? " (this is not an address of the machine that process 0 runs on)"
                                                : "");
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    *bound = getsockname(*fd, (struct sockaddr *)&own, &length) == 0 ? port_of(&own) : port;
    keep(*fd);
    return TREK_OK;
}

/* An IPv6 address counts as its network of 64 bits, because whoever has one address has the whole network. */
static uint64_t number_of(const struct sockaddr_storage *address)
{
    uint64_t number = 0;
    if (address->ss_family == AF_INET) {
        number = ((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr;
    } else if (address->ss_family == AF_INET6) {
        const struct in6_addr *its = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        bool mapped = IN6_IS_ADDR_V4MAPPED(its);
        memcpy(&number, its->s6_addr + (mapped ? 12 : 0), mapped ? 4 : 8);
    }
    return number;
}

int trek_socket_accept(int listening, uint64_t *from, bool *full)
{
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    memset(&peer, 0, sizeof peer);
    int fd = accept4(listening, (struct sockaddr *)&peer, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (from)
        *from = number_of(&peer);
    if (full)
        *full = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
    if (fd >= 0) {
        set_options(fd);
        keep(fd);
    }
    return fd;
}

/* A socket that connects to a port of the range for callers can become connected to itself. */
static bool is_own_end(int fd)
{
    struct sockaddr_storage own, peer;
    socklen_t own_length = sizeof own, peer_length = sizeof peer;
    memset(&own, 0, sizeof own);
    memset(&peer, 0, sizeof peer);
    return getsockname(fd, (struct sockaddr *)&own, &own_length) != 0 ||
           getpeername(fd, (struct sockaddr *)&peer, &peer_length) != 0 ||
           (own_length == peer_length && memcmp(&own, &peer, own_length) == 0);
}

/* Waits until it is connected or refused, at most until that time and at most 5 s. A signal does not end the wait. */
static bool is_decided(int fd, int64_t until_ns)
{
    int64_t now = trek_now_ns(), until = until_ns < now + 5000000000 ? until_ns : now + 5000000000;
    struct pollfd wait = { .fd = fd, .events = POLLOUT };
    int got;
    do {
        int64_t ms = (until - trek_now_ns()) / 1000000;
        got = poll(&wait, 1, ms < 1 ? 1 : (int)ms);
    } while (got < 0 && errno == EINTR && trek_now_ns() < until);
    return got > 0;
}

/* Returns 0 or an errno. */
static int connect_to(const struct addrinfo *one, int64_t until_ns, int *connected)
{
    int fd = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    set_options(fd);
    int error = connect(fd, one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        socklen_t length = sizeof error;
        if (!is_decided(fd, until_ns))
            error = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
            error = errno;
    }
    if (error == 0 && is_own_end(fd))
        error = ECONNREFUSED;
    if (error != 0) {
        close(fd);
        return error;
    }
    *connected = fd;
    return 0;
}

int trek_socket_connect(const char *address, int port, int64_t until_ns, bool (*stop)(void *arg), void *arg, char *why,
                        size_t size)
{
    int64_t pause = 5000000;
    for (;;) {
        struct addrinfo *found = NULL;
        int bad = resolve(address, port, false, &found), error = 0, fd = -1;
        for (struct addrinfo *one = found; bad == 0 && one && fd < 0; one = one->ai_next)
            error = connect_to(one, until_ns, &fd);
        if (bad == 0)
            freeaddrinfo(found);
        if (fd >= 0) {
            keep(fd);
            return fd;
        }
        if (bad == EAI_SYSTEM)
            error = errno;
        if (bad != 0 && bad != EAI_SYSTEM)
            snprintf(why, size, "%s", gai_strerror(bad));
        else
            trek_process_why(error, why, size);
        int64_t left = until_ns - trek_now_ns();
        if (left <= 0 || trek_process_is_limit(error) || (stop && stop(arg)))
            return -1;
        trek_sleep_ns(left < pause ? left : pause);
        pause = pause < 300000000 ? pause * 2 : pause;
    }
}

int trek_socket_begin(const char *address, int port)
{
    struct addrinfo *found = NULL;
    if (resolve(address, port, false, &found) != 0)
        return -1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
        set_options(fd);
        keep(fd);
    }
    bool begun = fd >= 0 && (connect(fd, found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS);
    freeaddrinfo(found);
    if (begun)
        return fd;
    trek_socket_close(fd);
    return -1;
}

bool trek_socket_begun(int fd)
{
    int error = 0;
    socklen_t length = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0 && !is_own_end(fd);
}

int64_t trek_socket_send(int fd, struct iovec *parts, int n)
{
    int64_t sent = 0;
    while (n > 0) {
        while (n > 0 && parts->iov_len == 0) {
            parts++;
            n--;
        }
        if (n == 0)
            break;
        struct msghdr message = { .msg_iov = parts, .msg_iovlen = (size_t)n };
        ssize_t now = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? sent : -1;
        sent += now;
        for (struct iovec *part = parts; now > 0; part++) {
            size_t taken = (size_t)now < part->iov_len ? (size_t)now : part->iov_len;
            if (taken) /* an empty part may have no address */
                part->iov_base = (char *)part->iov_base + taken;
            part->iov_len -= taken;
            now -= (ssize_t)taken;
        }
    }
    return sent;
}

int64_t trek_socket_receive(int fd, void *data, size_t size)
{
    ssize_t got;
    do
        got = recv(fd, data, size, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        return got;
    if (got == 0)
        errno = 0;
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
}

void trek_socket_finish(int fd)
{
    if (fd >= 0)
        shutdown(fd, SHUT_WR);
}

bool trek_socket_own_address(int fd, char *text, size_t size)
{
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    return getsockname(fd, (struct sockaddr *)&own, &length) == 0 &&
           getnameinfo((struct sockaddr *)&own, length, text, (socklen_t)size, NULL, 0, NI_NUMERICHOST) == 0;
}

/* The system refuses more entries than files may be open. Then only those that are used are passed. */
static void poll_taken(struct pollfd *polled, int n, int ms)
{
    struct pollfd taken[256];
    int place[256], m = 0;
    for (int k = 0; k < n; k++) {
        polled[k].revents = 0;
        if (polled[k].fd < 0 || m == 256)
            continue;
        place[m] = k;
        taken[m++] = polled[k];
    }
    bool found = poll(taken, (nfds_t)m, ms) > 0;
    for (int k = 0; k < m && found; k++)
        polled[place[k]].revents = taken[k].revents;
}

void trek_socket_poll(struct pollfd *polled, int n, int ms)
{
    if (poll(polled, (nfds_t)n, ms) < 0 && errno == EINVAL)
        poll_taken(polled, n, ms);
}

int trek_bell_new(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

bool trek_bell_ring(int bell)
{
    uint64_t one = 1;
    return write(bell, &one, sizeof one) >= 0 || errno == EAGAIN;
}

bool trek_bell_quiet(int bell)
{
    uint64_t count;
    return read(bell, &count, sizeof count) >= 0 || errno == EAGAIN;
}

void trek_bell_free(int bell)
{
    if (bell >= 0)
        close(bell);
}
