/* SPDX-License-Identifier: Apache-2.0 */
/* How a GPU rank copies other ranks' parameters (divided.h), and its own gradients (grains/stage.c): on a stream of its own,
 * while it computes on another one. Streams wait for each other by events; the host does not wait. With NULL, which stands for a
 * CPU rank, all of these do nothing.
 *
 * What a rank keeps is written by its own stream, in the update of a step. Others copy it after that (trek_copier_follow), and it
 * writes again after they have (trek_copier_wait_for_reader). When each calls these, ranks have met. */
#ifndef TREK_DISTRIBUTED_TEAM_COPIER_H
#define TREK_DISTRIBUTED_TEAM_COPIER_H

#include "tensor/backend.h"

typedef struct trek_copier trek_copier;

/* Makes the copier of the calling thread's rank. Sets NULL for a CPU. Fails with MEMORY, or errors of the device. */
trek_status trek_copier_new(trek_device device, trek_copier **result);
void trek_copier_free(trek_copier **copier);

/* The first is called before copies to memory that was just taken, and the second after them. What the rank has begun in between
 * does not wait for the copies. */
trek_status trek_copier_begin(trek_copier *copier);
trek_status trek_copier_end(trek_copier *copier);
/* Copies bytes to the rank's device from another one, which has the copier `keeper`. What lies in host memory has been read when
 * it returns. */
trek_status trek_copier_copy(trek_copier *copier, void *to, const void *from, trek_copier *keeper, size_t bytes);
/* Returns host memory from which bytes can be copied to the rank's GPU without waiting; trek_copier_send does that and releases
 * it, or (to NULL) only releases it. NULL: MEMORY. */
void *trek_copier_room(trek_copier *copier, size_t bytes);
trek_status trek_copier_send(trek_copier *copier, void *to, void *room, size_t bytes);
/* Copies bytes of the rank's GPU to such memory, between trek_copier_begin and trek_copier_end; trek_copier_wait waits for these
 * copies. trek_copier_put_away releases such memory. */
trek_status trek_copier_bring(trek_copier *copier, void *room, const void *from, size_t bytes);
trek_status trek_copier_wait(trek_copier *copier);
void trek_copier_put_away(trek_copier *copier, void *room);
/* Copies bytes of the rank's GPU to host memory, after what the calling thread has put there. */
trek_status trek_copier_fetch(trek_copier *copier, void *to, const void *from, size_t bytes);
/* Makes what the rank does from here on wait for all copies that have ended before. */
trek_status trek_copier_use(trek_copier *copier);
/* The host waits for them, and for what other threads have put on the device. */
trek_status trek_copier_finish(trek_copier *copier);

/* Notes that the rank has updated what it keeps; by its thread. */
trek_status trek_copier_updated(trek_copier *copier);
/* Lets copies from here on follow the update of a rank that they read from; of a CPU rank, those of the calling thread. */
trek_status trek_copier_follow(trek_copier *copier, trek_copier *keeper);
/* Notes which copies the rank has begun; any thread may call it while the rank is idle. */
trek_status trek_copier_rest(trek_copier *copier);
/* Lets what the rank does from here on follow the copies that another one had begun when it rested. */
trek_status trek_copier_wait_for_reader(trek_copier *copier, trek_copier *reader);

#endif
