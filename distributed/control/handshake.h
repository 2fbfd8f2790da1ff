/* SPDX-License-Identifier: Apache-2.0 */
/* How the two ends of a connection show each other that they belong to the job, and how each knows that what it hears is what
 * the other one has said. Every connection between processes of a job begins so. The secret itself is never sent: who has
 * connected sends a nonce; who listens answers with one of its own, and with an HMAC-SHA256 over both that only who knows the
 * secret can make; then the first proves itself in the same way. Both codes also cover who each is: its role, process and
 * generation. So a recording of one connection fits no other one, and who listens in a process's place learns nothing.
 *
 * After that each message is followed by a seal: a code over its bytes and its number on the connection, by a key for each
 * direction that comes of the secret and both nonces. Nothing is encrypted. Without a secret the same goes over the wire, by the
 * name of the job. Internal. */
#ifndef TREK_DISTRIBUTED_CONTROL_HANDSHAKE_H
#define TREK_DISTRIBUTED_CONTROL_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "tensor/sha256.h"

/* Of all that is said on such a connection: whoever speaks another one is told so. */
#define TREK_HANDSHAKE_VERSION 5
#define TREK_SEAL_BYTES 16

/* What a connection is for; of who listens, where. */
typedef enum trek_role {
    TREK_ROLE_CHANNEL = 1, /* the control channel */
    TREK_ROLE_DOOR,        /* a door, or where newcomers wait */
    TREK_ROLE_DATA,        /* what a collective moves */
} trek_role;

/* Who one end is. */
typedef struct trek_identity {
    const trek_hmac_key *secret;
    trek_role role;
    int32_t process;
    int64_t generation;
} trek_identity;

/* All that a handshake sends are these; version and process of what was refused are of the one who refuses. */
typedef struct trek_handshake_note {
    uint64_t magic;
    int32_t step, version, role, process;
    int64_t generation;
    unsigned char nonce[32], proof[32];
} trek_handshake_note;

/* One end of a connection; zeroed: of one who listens and has heard nothing yet. */
typedef struct trek_seal {
    int state;
    trek_handshake_note own, other; /* the other's are proved once the seal is open */
    trek_hmac_key out, in;
    uint64_t sent, heard;
} trek_seal;

typedef enum trek_shake {
    TREK_SHAKE_MORE,     /* more is to be read first */
    TREK_SHAKE_DONE,     /* the other one has proved itself: what follows are sealed messages */
    TREK_SHAKE_STRANGER, /* the other one speaks something else, or there are no random numbers */
    TREK_SHAKE_VERSION,  /* it is a process of another version of trek: seal.other.version */
    TREK_SHAKE_SECRET,   /* it does not know the secret, or this process does not */
} trek_shake;

/* Who has connected begins. false: there are no random numbers. */
bool trek_seal_call(trek_seal *seal, const trek_identity *own, int fd);
bool trek_seal_is_called(const trek_seal *seal);
bool trek_seal_is_open(const trek_seal *seal);
/* Goes on with what has been read, and answers on fd without waiting. *taken: so many bytes of it are dealt with. */
trek_shake trek_seal_shake(trek_seal *seal, const trek_identity *own, int fd, const char *in, size_t used, size_t *taken);
/* "the token is not the one of the job at ...": why a handshake has failed. Returns text. */
const char *trek_seal_why(const trek_seal *seal, trek_shake how, const char *where, char *text, size_t size);

/* The seal of the next message, which consists of these parts. And whether that is the one of the next message that comes: if it
 * is, it counts as heard. Of an open one. */
void trek_seal_sign(trek_seal *seal, const struct iovec *parts, int n, unsigned char code[TREK_SEAL_BYTES]);
bool trek_seal_check(trek_seal *seal, const void *message, size_t bytes, const void *code);

#endif
