/* SPDX-License-Identifier: Apache-2.0 */
/* Text from others, for a terminal of this machine. */
#ifndef TREK_TENSOR_PLAIN_TEXT_H
#define TREK_TENSOR_PLAIN_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Copies text with a "?" for each character that could control a terminal; at most `size` bytes, including the 0 at
 * the end. */
static inline void trek_plain_text(char *to, size_t size, const char *text, size_t bytes)
{
    size_t used = 0;
    for (size_t k = 0; k < bytes && used + 1 < size; k++) {
        unsigned char c = (unsigned char)text[k], next = k + 1 < bytes ? (unsigned char)text[k + 1] : 0;
        bool commands = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0);
        k += commands && c == 0xc2; /* a control character of two bytes in UTF-8 */
        to[used++] = commands ? '?' : (char)c;
    }
    to[used] = '\0';
}

#endif
