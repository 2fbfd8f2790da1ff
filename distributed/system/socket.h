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
/* A newcomer's socket, or -1. */
int trek_socket_accept(int listening);
/* Tries until it is connected or the time of trek_now_ns() is until_ns: the socket, else -1 and why in words. stop
 * (may be NULL) is asked now and then. */
int trek_socket_connect(const char *address, int port, int64_t until_ns, bool (*stop)(void *arg), void *arg, char *why,
                        size_t size);
/* Begins to connect to a numeric address; when poll finds that it can be written to, the second tells whether it is connected.
 * -1: refused at once. */
int trek_socket_begin(const char *address, int port);
bool trek_socket_begun(int fd);
/* -1 is fine. */
void trek_socket_close(int fd);
/* What can be sent at once of these parts: bytes, or -1 with errno. Moves past what was sent. */
int64_t trek_socket_send(int fd, struct iovec *parts, int n);
/* Reads what is there, size bytes at most: how many; 0: nothing yet; -1: the connection has ended, by errno, which is 0 where the
 * other side ended it. */
int64_t trek_socket_receive(int fd, void *data, size_t size);
/* Nothing more will be sent: the other side reads the end behind what was. -1 is fine. */
void trek_socket_finish(int fd);
/* The address of this process that the other end sees. false where there is none. */
bool trek_socket_own_address(int fd, char *text, size_t size);

/* poll(): of sockets and bells. An fd of -1 is passed over. */
void trek_socket_poll(struct pollfd *polled, int n, int ms);

/* A bell can be read from when it was rung, until it is quieted. -1: there is none, by errno. */
int trek_bell_new(void);
/* false, with errno: it could not. */
bool trek_bell_ring(int bell);
bool trek_bell_quiet(int bell);
/* -1 is fine. */
void trek_bell_free(int bell);

#endif
