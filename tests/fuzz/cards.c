/* SPDX-License-Identifier: Apache-2.0 */
/* The cards by which processes tell each other where data are to come, as Gloo's engine takes them: its first byte says how many,
 * then come their fields. */
#include <string.h>

#include "distributed/comm/gloo/mesh.h"
#include "distributed/system/socket.h"
#include "tests/fuzz/fuzz.h"

enum { MOST = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trek_mesh_card cards[MOST];
    char where[TREK_WHERE];
    if (size == 0)
        return 0;
    int world = 1 + data[0] % MOST;
    memset(cards, 0, sizeof cards);
    memcpy(cards, data + 1, size - 1 < sizeof cards ? size - 1 : sizeof cards);
    bool good = trek_mesh_check(cards, world) == TREK_OK;
    for (int r = 0; r < world && good; r++) {
        const trek_mesh_card *card = &cards[r];
        fuzz_expect(card->status == TREK_OK && card->port > 0 && card->port < 65536, "a port that can be connected to");
        fuzz_expect(memchr(card->address, 0, sizeof card->address) && card->address[0], "an address that ends");
        char address[sizeof card->address];
        memcpy(address, card->address, sizeof address);
        fuzz_expect(strlen(trek_socket_where(address, card->port, where, sizeof where)) > 2, "a place in words");
    }
    fuzz_settle(good);
    return 0;
}
