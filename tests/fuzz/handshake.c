/* SPDX-License-Identifier: Apache-2.0 */
/* What comes to a connection between processes of a job before the other side has proved itself. Its first byte says whether this
 * side has called or listens; then come pieces: a length and that many bytes. Nobody guesses a code. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "distributed/control/handshake.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int ends[2];
    char in[4096], text[200];
    size_t used = 0, taken;
    trek_hmac_key secret;
    trek_seal seal = { .state = 0 };
    trek_identity own = { .secret = &secret, .role = TREK_ROLE_RENDEZVOUS, .process = 1 };
    if (size == 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return 0;
    trek_hmac_key_of("a token of a job", 16, &secret);
    if (data[0] & 1)
        trek_seal_call(&seal, &own, ends[0]);
    trek_shake how = TREK_SHAKE_MORE;
    for (size_t at = 1; at < size && how == TREK_SHAKE_MORE;) {
        size_t bytes = data[at] < size - at - 1 ? data[at] : size - at - 1;
        if (used + bytes > sizeof in)
            break;
        memcpy(in + used, data + at + 1, bytes);
        used += bytes;
        at += 1 + bytes;
        how = trek_seal_shake(&seal, &own, ends[0], in, used, &taken);
        fuzz_expect(taken <= used, "no more than there is");
        used -= taken;
        memmove(in, in + taken, used);
    }
    fuzz_expect(how != TREK_SHAKE_DONE && !trek_seal_is_open(&seal), "nobody is let in without the secret");
    fuzz_expect(strlen(trek_seal_why(&seal, how, "127.0.0.1:1", text, sizeof text)) > 0, "a reason in words");
    close(ends[0]);
    close(ends[1]);
    return 0;
}
