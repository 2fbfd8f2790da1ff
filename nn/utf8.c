/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8. */
#include "nn/utf8.h"

bool trek_utf8_valid(const char *bytes, size_t count)
{
    const unsigned char *p = (const unsigned char *)bytes, *end = p + count;
    while (p < end) {
        unsigned char lead = *p++;
        if (lead < 0x80)
            continue;
        int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if (lead < 0xC2 || lead > 0xF4 || end - p < more)
            return false;
        /* The limits of the second byte rule out overlong forms, surrogates and everything above U+10FFFF. */
        unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (*p < low || *p > high)
            return false;
        for (int k = 1; k < more; k++)
            if ((p[k] & 0xC0) != 0x80)
                return false;
        p += more;
    }
    return true;
}

size_t trek_utf8_encode(uint32_t code, char *bytes)
{
    if (code < 0x80) {
        bytes[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        bytes[0] = (char)(0xC0 | code >> 6);
        bytes[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        bytes[0] = (char)(0xE0 | code >> 12);
        bytes[1] = (char)(0x80 | (code >> 6 & 0x3F));
        bytes[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    bytes[0] = (char)(0xF0 | code >> 18);
    bytes[1] = (char)(0x80 | (code >> 12 & 0x3F));
    bytes[2] = (char)(0x80 | (code >> 6 & 0x3F));
    bytes[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}
