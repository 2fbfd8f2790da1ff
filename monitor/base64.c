/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/base64.h"

#include <stdint.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void trek_base64_encode(trek_text *out, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    for (size_t k = 0; k < count; k += 3) {
        size_t n = count - k < 3 ? count - k : 3;
        uint32_t bits = (uint32_t)at[k] << 16 | (uint32_t)(n > 1 ? at[k + 1] : 0) << 8 | (n > 2 ? at[k + 2] : 0);
        char four[4];
        for (int d = 0; d < 4; d++)
            four[d] = (size_t)d <= n ? digits[bits >> (18 - 6 * d) & 63] : '=';
        trek_text_bytes(out, four, 4);
    }
}

static int digit_of(char c)
{
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

bool trek_base64_decode(trek_text *out, const char *base64)
{
    uint32_t bits = 0;
    int n = 0;
    const char *c = base64;
    for (; digit_of(*c) >= 0; c++) {
        bits = bits << 6 | (uint32_t)digit_of(*c);
        n += 6;
        if (n >= 8) {
            n -= 8;
            trek_text_bytes(out, (const char[]){ (char)(bits >> n & 255) }, 1);
        }
    }
    int padding = (int)strspn(c, "=");
    return c[padding] == '\0' && padding <= 2 && (c - base64 + padding) % 4 == 0;
}
