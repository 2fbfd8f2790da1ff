/* SPDX-License-Identifier: Apache-2.0 */
/* TCP sockets between the processes of a job. They are closed on exec and in the child of a fork, and never raise a
 * signal. Only connect and poll wait; other threads can end a poll by ringing a bell. A simulator replaces all of
 * this. */
#ifndef TREK_DISTRIBUTED_SYSTEM_SOCKET_H
#define TREK_DISTRIBUTED_SYSTEM_SOCKET_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "tensor/status.h"

#define TREK_WHERE 320

/* Writes e.g. "127.0.0.1:29500" or "[::1]:29500", at most size bytes. Returns text. */
static inline char *trek_socket_where(const char *address, int port, char *text, size_t size)
{
    snprintf(text, size, strchr(address, ':') ? "[%s]:%d" : "%s:%d", address, port);
    return text;
}

/* Listens on that address only; port 0: any free port. Writes the socket and the port. A name that this machine
 * resolves to its loopback, other than "localhost", stands for all its addresses. Fails with COMM, which names the
 * address. */
trek_status trek_socket_listen(const char *address, int port, int *fd, int *bound);
/* Returns the socket of a new connection, or -1. *from gets a number for the address that it comes from (of IPv6, for its
 * network). *full: the system has no descriptor for it, and it keeps waiting. Both may be NULL. */
int trek_socket_accept(int listening, uint64_t *from, bool *full);
/* Tries again and again until it is connected, trek_now_ns() reaches until_ns, or stop(arg) returns true; stop may be NULL.
 * Returns the socket. Otherwise it returns -1 and writes the reason, in words, to why. */
int trek_socket_connect(const char *address, int port, int64_t until_ns, bool (*stop)(void *arg), void *arg, char *why,
                        size_t size);
/* Begin to connect to a numeric address and, when poll finds the socket writable, tell whether it is connected. begin
 * returns -1 if the connection was refused at once. */
int trek_socket_begin(const char *address, int port);
bool trek_socket_begun(int fd);
/* Does nothing if fd is -1. */
void trek_socket_close(int fd);
/* Returns the socket for another library, which closes it. Options that only trek wants are reset. */
int trek_socket_give(int fd);
/* Sends what can be sent at once of these parts. Returns the number of bytes, or -1 with errno, and advances the
 * parts. */
int64_t trek_socket_send(int fd, struct iovec *parts, int n);
/* Reads at most size bytes without waiting. Returns how many were read, or 0 if there is nothing yet. Returns -1 if the
 * connection has ended: errno is 0 if the other side closed it, and says what broke it otherwise. */
int64_t trek_socket_receive(int fd, void *data, size_t size);
/* Says that nothing more will be sent: the other side reads the end after what was sent before. Does nothing if fd is -1. */
void trek_socket_finish(int fd);
/* Writes the address of this process that the other end sees. Returns false if there is none. */
bool trek_socket_own_address(int fd, char *text, size_t size);

/* Polls sockets and bells as poll() does. An fd of -1 is ignored. */
void trek_socket_poll(struct pollfd *polled, int n, int ms);

/* Makes a bell: a descriptor that poll finds readable after it was rung, until it is quieted. Returns -1 and sets errno if the
 * system has none left. */
int trek_bell_new(void);
/* Rings a bell, and makes it silent again. Both return false and set errno if they fail. */
bool trek_bell_ring(int bell);
bool trek_bell_quiet(int bell);
/* Does nothing if bell is -1. */
void trek_bell_free(int bell);

#endif
