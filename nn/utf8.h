/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8. */
#ifndef TREK_NN_UTF8_H
#define TREK_NN_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns whether the bytes are well-formed: no overlong forms, no surrogates, nothing above U+10FFFF. */
bool trek_utf8_valid(const char *bytes, size_t count);
/* Writes a code point, which the caller has checked, as at most 4 bytes. Returns their number. */
size_t trek_utf8_encode(uint32_t code, char *bytes);

#endif
