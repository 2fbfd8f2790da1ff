/* SPDX-License-Identifier: Apache-2.0 */
/* The connections over which Gloo moves data: of every process of a control channel to every other one. Each listens, tells the
 * others by the channel where, and connects to those of a lower rank. Both ends show each other who they are
 * (control/handshake.h) before Gloo sees a connection: strangers who connect are as many and stay as long as at a door, and
 * change nothing. Internal. */
#ifndef TREK_DISTRIBUTED_COMM_GLOO_MESH_H
#define TREK_DISTRIBUTED_COMM_GLOO_MESH_H

#include "distributed/control/control.h"

/* What each process tells the others. */
typedef struct trek_mesh_card {
    char address[64];      /* a number */
    int32_t port, status;  /* a trek_status: whether it can be reached at all */
} trek_mesh_card;

/* Whether what the others have told can be used: else an error that names the first who cannot be reached, and why. */
trek_status trek_mesh_check(const trek_mesh_card *cards, int world);
/* sockets[r] becomes a connection to rank r; -1 for the own rank. `listening` is the socket of the own card; it stays the
 * caller's. On failure none is left open. PEER, TIMEOUT, COMM, MEMORY, and what ends the channel meanwhile. */
trek_status trek_mesh_connect(trek_control *control, int listening, const trek_mesh_card *cards, int64_t deadline_ns,
                              int *sockets);

#endif
