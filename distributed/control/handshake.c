/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/control/handshake.h"

#include <stdio.h>
#include <string.h>

#include "distributed/system/socket.h"
#include "distributed/system/system.h"

#define MAGIC 0x31306b61736b7274u /* "trksak01": it never changes, so that different versions can recognise each other */
#define CLEAR offsetof(trek_handshake_note, proof)

_Static_assert(sizeof(trek_handshake_note) == 96 && CLEAR == 64, "no padding goes over the wire");

enum { NEW, CALLED, ANSWERED, OPEN, FAILED };
enum { STEP_CALL = 1, STEP_ANSWER, STEP_PROOF, STEP_REFUSED };
/* The purpose of a code. A code for one purpose is not valid for another. */
enum { OF_LISTENER = 'L', OF_CALLER = 'C', BY_LISTENER = 'l', BY_CALLER = 'c' };

bool trek_seal_is_called(const trek_seal *seal) { return seal->state == CALLED; }
bool trek_seal_is_open(const trek_seal *seal) { return seal->state == OPEN; }

/* Compares in a time that does not depend on where the bytes differ. */
static bool same_bytes(const unsigned char *a, const unsigned char *b, size_t n)
{
    unsigned char differ = 0;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)(a[i] ^ b[i]);
    return differ == 0;
}

/* Computes a code over everything that both ends have said in the clear. */
static void code_of(const trek_hmac_key *secret, unsigned char purpose, const trek_handshake_note *call,
                    const trek_handshake_note *answer, unsigned char code[32])
{
    trek_sha256_state state;
    trek_hmac_begin(&state, secret);
    trek_sha256_add(&state, &purpose, 1);
    trek_sha256_add(&state, call, CLEAR);
    trek_sha256_add(&state, answer, CLEAR);
    trek_hmac_end(&state, secret, code);
}

static trek_hmac_key key_of(const trek_hmac_key *secret, unsigned char purpose, const trek_handshake_note *call,
                            const trek_handshake_note *answer)
{
    unsigned char code[32];
    trek_hmac_key key;
    code_of(secret, purpose, call, answer, code);
    trek_hmac_key_of(code, sizeof code, &key);
    return key;
}

static void open_seal(trek_seal *seal, const trek_hmac_key *secret, const trek_handshake_note *call,
                      const trek_handshake_note *answer)
{
    bool called = call == &seal->own;
    seal->out = key_of(secret, called ? BY_CALLER : BY_LISTENER, call, answer);
    seal->in = key_of(secret, called ? BY_LISTENER : BY_CALLER, call, answer);
    seal->sent = seal->heard = 0;
    seal->state = OPEN;
}

/* Sends a note. It always fits into a connection on which nothing has been sent yet. If the connection is broken,
 * reading reports it. */
static void send_note(int fd, const trek_handshake_note *note)
{
    struct iovec part = { (void *)(uintptr_t)note, sizeof *note };
    trek_socket_send(fd, &part, 1);
}

static bool begin(trek_seal *seal, const trek_identity *own, int step, int state)
{
    seal->own = (trek_handshake_note){ .magic = MAGIC, .step = step, .version = TREK_HANDSHAKE_VERSION,
                                       .role = (int32_t)own->role,
                                       .process = own->process, .generation = own->generation };
    bool good = trek_process_random(seal->own.nonce, sizeof seal->own.nonce);
    seal->state = good ? state : FAILED;
    return good;
}

bool trek_seal_call(trek_seal *seal, const trek_identity *own, int fd)
{
    bool good = begin(seal, own, STEP_CALL, CALLED);
    if (good)
        send_note(fd, &seal->own);
    return good;
}

static trek_shake refuse(trek_seal *seal, int fd, trek_shake how)
{
    trek_handshake_note note = seal->own;
    note.magic = MAGIC;
    note.step = STEP_REFUSED;
    note.version = TREK_HANDSHAKE_VERSION;
    memset(note.nonce, 0, sizeof note.nonce + sizeof note.proof);
    send_note(fd, &note);
    seal->state = FAILED;
    return how;
}

/* Answers the caller on the listener's side. The listener proves itself first, which reveals nothing because its own
 * nonce is in the code. */
static trek_shake answer(trek_seal *seal, const trek_identity *own, int fd)
{
    if (!begin(seal, own, STEP_ANSWER, ANSWERED))
        return TREK_SHAKE_STRANGER;
    code_of(own->secret, OF_LISTENER, &seal->other, &seal->own, seal->own.proof);
    send_note(fd, &seal->own);
    return TREK_SHAKE_MORE;
}

/* Proves the caller. It sends nothing that depends on the secret to an end that has not shown that it knows the
 * secret. */
static trek_shake prove(trek_seal *seal, const trek_identity *own, int fd)
{
    unsigned char wanted[32];
    code_of(own->secret, OF_LISTENER, &seal->own, &seal->other, wanted);
    if (!same_bytes(wanted, seal->other.proof, sizeof wanted))
        return refuse(seal, fd, TREK_SHAKE_SECRET);
    trek_handshake_note proof = seal->own;
    proof.step = STEP_PROOF;
    code_of(own->secret, OF_CALLER, &seal->own, &seal->other, proof.proof);
    send_note(fd, &proof);
    open_seal(seal, own->secret, &seal->own, &seal->other);
    return TREK_SHAKE_DONE;
}

static trek_shake take_proof(trek_seal *seal, const trek_identity *own, int fd, const trek_handshake_note *note)
{
    unsigned char wanted[32];
    code_of(own->secret, OF_CALLER, &seal->other, &seal->own, wanted);
    if (!same_bytes(wanted, note->proof, sizeof wanted))
        return refuse(seal, fd, TREK_SHAKE_SECRET);
    open_seal(seal, own->secret, &seal->other, &seal->own);
    return TREK_SHAKE_DONE;
}

static trek_shake take_note(trek_seal *seal, const trek_identity *own, int fd, const trek_handshake_note *note)
{
    if (note->step == STEP_REFUSED || note->version != TREK_HANDSHAKE_VERSION) {
        seal->other = *note;
        bool versions = note->version != TREK_HANDSHAKE_VERSION;
        if (versions && note->step != STEP_REFUSED)
            return refuse(seal, fd, TREK_SHAKE_VERSION);
        seal->state = FAILED;
        return versions ? TREK_SHAKE_VERSION : TREK_SHAKE_SECRET;
    }
    if (seal->state == NEW && note->step == STEP_CALL) {
        seal->other = *note;
        return answer(seal, own, fd);
    }
    if (seal->state == CALLED && note->step == STEP_ANSWER) {
        seal->other = *note;
        return prove(seal, own, fd);
    }
    if (seal->state == ANSWERED && note->step == STEP_PROOF)
        return take_proof(seal, own, fd, note);
    seal->state = FAILED;
    return TREK_SHAKE_STRANGER;
}

trek_shake trek_seal_shake(trek_seal *seal, const trek_identity *own, int fd, const char *in, size_t used, size_t *taken)
{
    const uint64_t magic = MAGIC;
    trek_handshake_note note;
    trek_shake how = seal->state == OPEN ? TREK_SHAKE_DONE : seal->state == FAILED ? TREK_SHAKE_STRANGER : TREK_SHAKE_MORE;
    *taken = 0;
    while (how == TREK_SHAKE_MORE && used > *taken) {
        size_t left = used - *taken;
        if (memcmp(in + *taken, &magic, left < sizeof magic ? left : sizeof magic) != 0)
            return TREK_SHAKE_STRANGER;
        if (left < sizeof note)
            return TREK_SHAKE_MORE;
        memcpy(&note, in + *taken, sizeof note);
        *taken += sizeof note;
        how = take_note(seal, own, fd, &note);
    }
    return how;
}

const char *trek_seal_why(const trek_seal *seal, trek_shake how, const char *where, char *text, size_t size)
{
    if (how == TREK_SHAKE_VERSION)
        snprintf(text, size, "it speaks version %d of the control channel, and the program at %s version %d",
                 TREK_HANDSHAKE_VERSION,
                 where, seal->other.version);
    else if (how == TREK_SHAKE_SECRET)
        snprintf(text, size, "the token is not the one of the job at %s", where);
    else
        snprintf(text, size, "the program at %s does not speak like a process of a job", where);
    return text;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static void seal_of(const trek_hmac_key *key, uint64_t number, const struct iovec *parts, int n, unsigned char code[32])
{
    trek_sha256_state state;
    trek_hmac_begin(&state, key);
    trek_sha256_add(&state, &number, sizeof number);
    for (int k = 0; k < n; k++)
        trek_sha256_add(&state, parts[k].iov_base, parts[k].iov_len);
    trek_hmac_end(&state, key, code);
}

void trek_seal_sign(trek_seal *seal, const struct iovec *parts, int n, unsigned char code[TREK_SEAL_BYTES])
{
    unsigned char whole[32];
    seal_of(&seal->out, seal->sent++, parts, n, whole);
    memcpy(code, whole, TREK_SEAL_BYTES);
}

bool trek_seal_check(trek_seal *seal, const void *message, size_t bytes, const void *code)
{
    unsigned char whole[32];
    struct iovec part = { (void *)(uintptr_t)message, bytes };
    seal_of(&seal->in, seal->heard, &part, 1, whole);
    bool same = same_bytes(whole, code, TREK_SEAL_BYTES);
    seal->heard += same;
    return same;
}
