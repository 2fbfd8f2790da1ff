/* SPDX-License-Identifier: Apache-2.0 */
/* The connections over which Gloo moves data, between every two processes of a control channel. Each process listens, announces
 * its address over the channel, and connects to the processes of lower rank. Both ends authenticate each other
 * (control/handshake.h) before Gloo gets the connection. A stranger that connects cannot disturb the others: there are at most 64
 * at a time, and when that many wait, the oldest is closed after 250 ms. Internal. */
#ifndef TREK_DISTRIBUTED_COMM_GLOO_MESH_H
#define TREK_DISTRIBUTED_COMM_GLOO_MESH_H

#include "distributed/control/control.h"

/* What each process announces to the others. */
typedef struct trek_mesh_card {
    char address[64];      /* a numeric address, ended by 0 */
    int32_t port, status;  /* status: a trek_status; OK if the process can be reached */
} trek_mesh_card;

/* Checks the cards of all processes. The error names the first process that cannot be reached, and why. */
trek_status trek_mesh_check(const trek_mesh_card *cards, int world);
/* Makes all connections: sockets[r] becomes the connection to rank r, and -1 for the own rank. `listening` is the socket of the
 * own card and stays the caller's. On failure no socket is left open. Errors: PEER, TIMEOUT, COMM, MEMORY, and the error with
 * which the channel ends meanwhile. */
trek_status trek_mesh_connect(trek_control *control, int listening, const trek_mesh_card *cards, int64_t deadline_ns,
                              int *sockets);

#endif
