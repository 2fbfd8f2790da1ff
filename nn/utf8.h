/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8. Internal. */
#ifndef TREK_NN_UTF8_H
#define TREK_NN_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether bytes are well-formed: no overlong forms, no surrogates, nothing above U+10FFFF. */
bool trek_utf8_valid(const char *bytes, size_t count);
/* Writes a code point (checked by the caller) to at most 4 bytes; returns their number. */
size_t trek_utf8_encode(uint32_t code, char *bytes);

#endif
