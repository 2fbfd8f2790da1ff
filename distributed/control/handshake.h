/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake with which every connection between processes of a job begins, and the seals of its messages. The handshake is a
 * mutual challenge and response, so that the secret itself is never sent:
 * - The caller (the process that has connected) sends a nonce.
 * - The listener answers with its own nonce and proves itself by an HMAC-SHA256 over both nonces, keyed with the secret.
 * - The caller checks that proof and only then sends its own, made in the same way.
 * Both codes also cover the role, the process number and the generation of each end. A recorded connection therefore cannot be
 * replayed, and a false listener learns nothing that helps it to answer another process.
 *
 * After the handshake each message is followed by a seal: a code over its bytes and over its number on the connection. Each
 * direction has its own key, derived from the secret and both nonces. Nothing is encrypted. A job without a secret uses its name
 * as the key, and the bytes on the wire have the same form. Internal. */
#ifndef TREK_DISTRIBUTED_CONTROL_HANDSHAKE_H
#define TREK_DISTRIBUTED_CONTROL_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "tensor/sha256.h"

/* The version of everything that is sent on such a connection. A process of another version is refused with a message. */
#define TREK_HANDSHAKE_VERSION 7
#define TREK_SEAL_BYTES 16

/* What a connection is used for. */
typedef enum trek_role {
    TREK_ROLE_CHANNEL = 1, /* the control channel */
    TREK_ROLE_RENDEZVOUS,        /* a rendezvous, or the place where processes wait to join */
    TREK_ROLE_DATA,        /* the data of collectives */
    TREK_ROLE_SUPPLY,      /* bytes that a process fetches from others (supply.h) */
} trek_role;

/* The identity of one end. */
typedef struct trek_identity {
    const trek_hmac_key *secret;
    trek_role role;
    int32_t process;
    int64_t generation;
} trek_identity;

/* The only message of a handshake. A refusal carries the version and the process number of the end that refuses. */
typedef struct trek_handshake_note {
    uint64_t magic;
    int32_t step, version, role, process;
    int64_t generation;
    unsigned char nonce[32], proof[32];
} trek_handshake_note;

/* One end of a connection. All zeros is the state of a listener that has received nothing yet. */
typedef struct trek_seal {
    int state;
    trek_handshake_note own, other; /* `other` is verified once the seal is open */
    trek_hmac_key out, in;
    uint64_t sent, heard;
} trek_seal;

typedef enum trek_shake {
    TREK_SHAKE_MORE,     /* more bytes must be read first */
    TREK_SHAKE_DONE,     /* the other end has proved itself; sealed messages follow */
    TREK_SHAKE_STRANGER, /* the other end speaks another protocol, or no random numbers are available */
    TREK_SHAKE_VERSION,  /* the other end is another version of trek: seal.other.version */
    TREK_SHAKE_SECRET,   /* the two ends have different secrets */
} trek_shake;

/* Begins the handshake as the caller. Returns false if no random numbers are available. */
bool trek_seal_call(trek_seal *seal, const trek_identity *own, int fd);
bool trek_seal_is_called(const trek_seal *seal);
bool trek_seal_is_open(const trek_seal *seal);
/* Continues the handshake with the bytes that have been read, and answers on fd without blocking. *taken is the number of bytes
 * that it has consumed. */
trek_shake trek_seal_shake(trek_seal *seal, const trek_identity *own, int fd, const char *in, size_t used, size_t *taken);
/* Writes why a handshake has failed, e.g. "the token is not the one of the job at ...". Returns text. */
const char *trek_seal_why(const trek_seal *seal, trek_shake how, const char *where, char *text, size_t size);

/* Writes the seal of the next message to be sent, which consists of these parts. The seal must be open. */
void trek_seal_sign(trek_seal *seal, const struct iovec *parts, int n, unsigned char code[TREK_SEAL_BYTES]);
/* Returns whether `code` is the seal of the next message expected; if so, the message counts as received. The seal must be open.
 */
bool trek_seal_check(trek_seal *seal, const void *message, size_t bytes, const void *code);

#endif
