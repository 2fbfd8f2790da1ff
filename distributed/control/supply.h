/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a process's memory that others fetch while it computes. Several processes that have the same bytes supply them, and
 * one that fetches asks each of them for other pieces, so that all send at the same time. If one of them dies, or stands still,
 * the others are asked for its pieces.
 *
 * A supplier listens at a socket of its own, which a thread serves. Connections begin with the handshake of the job
 * (control/handshake.h), and requests are sealed; what is sent in answer is not, as the data of collectives are not. */
#ifndef TREK_DISTRIBUTED_CONTROL_SUPPLY_H
#define TREK_DISTRIBUTED_CONTROL_SUPPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "distributed/control/handshake.h"
#include "tensor/status.h"

/* What a connection between them carries in one direction: so many bytes, from one on. */
typedef struct trek_supply_request {
    int64_t begin, bytes;
    unsigned char code[TREK_SEAL_BYTES];
} trek_supply_request;

/* How many requests of a connection may be under way. */
#define TREK_SUPPLY_AHEAD 2

/* --- supplying --- */

typedef struct trek_supply trek_supply;

/* Supplies n parts of memory, as if they lay behind each other, to processes of the job that has this token. They are read
 * whenever somebody asks, until the supply is freed; the list is copied. `number` is that of this process in the job. Returns
 * NULL with COMM, MEMORY or STATE (no thread could be started). */
trek_supply *trek_supply_new(const char *address, const char *token, int number, const struct iovec *parts, int n);
void trek_supply_free(trek_supply **supply);
int trek_supply_port(const trek_supply *supply);
/* Waits until the process of that number, if it has come at all, has ended its connection, because it has everything or has
 * died. Does not wait any longer when it has asked for nothing for quiet_ns (0: no limit), or if it has not come yet and
 * gone(arg) returns true. */
void trek_supply_await(trek_supply *supply, int number, int64_t quiet_ns, bool (*gone)(void *arg), void *arg);

/* --- fetching --- */

/* Where a process supplies. */
typedef struct trek_supplier {
    char address[64];        /* a numeric address */
    int port;
} trek_supplier;

typedef struct trek_supply_range {
    int64_t begin, end;
} trek_supply_range;

typedef struct trek_supply_fetching {
    const char *token;       /* of the job */
    int number;              /* of this process */
    const trek_supplier *suppliers;
    int n_suppliers;
    const trek_supply_range *ranges; /* to be fetched, each to its place in `memory` */
    int n_ranges;
    char *memory;
    int64_t quiet_ns;        /* it gives up if nobody has sent anything for so long; 0: it does not */
} trek_supply_fetching;

/* Fetches. Fails with PEER (no supplier is left), TIMEOUT or MEMORY. */
trek_status trek_supply_fetch(const trek_supply_fetching *fetching);

#endif
