/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/philox.h"

#include <string.h>

uint32_t test_philox_word(uint64_t seed, uint64_t block, uint32_t draw, uint32_t step, int word)
{
    uint32_t x[4] = { (uint32_t)block, (uint32_t)(block >> 32), draw, step };
    uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    for (int round = 0; round < 10; round++) {
        uint64_t a = 0xD2511F53ull * x[0], b = 0xCD9E8D57ull * x[2];
        uint32_t y[4] = { (uint32_t)(b >> 32) ^ x[1] ^ key[0], (uint32_t)b, (uint32_t)(a >> 32) ^ x[3] ^ key[1], (uint32_t)a };
        memcpy(x, y, sizeof x);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return x[word];
}
