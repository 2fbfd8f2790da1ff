/* SPDX-License-Identifier: Apache-2.0 */
/* TCP sockets between the processes of a job: closed on exec and in the child of a fork, never a signal. Internal. */
#ifndef TREK_DISTRIBUTED_CONTROL_SOCKET_H
#define TREK_DISTRIBUTED_CONTROL_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "tensor/status.h"

#define TREK_WHERE 320

/* "127.0.0.1:29500" or "[::1]:29500": writes at most size bytes; returns text. */
char *trek_socket_where(const char *address, int port, char *text, size_t size);
/* Listens on that address and no other; port 0: any. Writes the socket and the port. A name that this machine takes
 * for its loopback, though it is not "localhost", stands for all its addresses. COMM, named. */
trek_status trek_socket_listen(const char *address, int port, int *fd, int *bound);
/* A newcomer's socket, or -1. */
int trek_socket_accept(int listening);
/* Tries until it is connected or the time of trek_clock_ns() is until_ns: the socket, else -1 and why in words. stop
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
/* The address of this process that the other end sees. false where there is none. */
bool trek_socket_own_address(int fd, char *text, size_t size);

#endif
