/* SPDX-License-Identifier: Apache-2.0 */
/* TCP sockets between the processes of a job: closed on exec and in the child of a fork, never a signal. Only connect and poll
 * wait; a bell that other threads ring ends a poll. A simulator has its own of all this. Internal. */
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

/* "127.0.0.1:29500" or "[::1]:29500": writes at most size bytes; returns text. */
static inline char *trek_socket_where(const char *address, int port, char *text, size_t size)
{
    snprintf(text, size, strchr(address, ':') ? "[%s]:%d" : "%s:%d", address, port);
    return text;
}

/* Listens on that address and no other; port 0: any. Writes the socket and the port. A name that this machine takes
 * for its loopback, though it is not "localhost", stands for all its addresses. COMM, named. */
trek_status trek_socket_listen(const char *address, int port, int *fd, int *bound);
/* A newcomer's socket, or -1. *from: a number of the address that it comes from (of IPv6, of the network). *full: the system has
 * no descriptor for it, and it waits on. Both may be NULL. */
int trek_socket_accept(int listening, uint64_t *from, bool *full);
/* Tries again and again until it is connected, trek_now_ns() reaches until_ns, or stop(arg) returns true; stop may be NULL.
 * Returns the socket. Otherwise it returns -1 and writes the reason, in words, to why. */
int trek_socket_connect(const char *address, int port, int64_t until_ns, bool (*stop)(void *arg), void *arg, char *why,
                        size_t size);
/* Begins to connect to a numeric address; when poll finds that it can be written to, the second tells whether it is connected.
 * -1: refused at once. */
int trek_socket_begin(const char *address, int port);
bool trek_socket_begun(int fd);
/* Does nothing if fd is -1. */
void trek_socket_close(int fd);
/* It is another library's from here on, which closes it; what was set that only trek wants is set back. Returns it. */
int trek_socket_give(int fd);
/* What can be sent at once of these parts: bytes, or -1 with errno. Moves past what was sent. */
int64_t trek_socket_send(int fd, struct iovec *parts, int n);
/* Reads at most size bytes without waiting. Returns how many were read, or 0 if there is nothing yet. Returns -1 if the
 * connection has ended: errno is 0 if the other side closed it, and says what broke it otherwise. */
int64_t trek_socket_receive(int fd, void *data, size_t size);
/* Says that nothing more will be sent: the other side reads the end after what was sent before. Does nothing if fd is -1. */
void trek_socket_finish(int fd);
/* The address of this process that the other end sees. false where there is none. */
bool trek_socket_own_address(int fd, char *text, size_t size);

/* poll(): of sockets and bells. An fd of -1 is passed over. */
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
