/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that are stored once, for as long as the program runs: names, module paths and shapes in recordings. A number
 * stands for a text. */
#ifndef TREK_TENSOR_INTERN_H
#define TREK_TENSOR_INTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TREK_INTERN_LENGTH = 500,      /* bytes of a text; longer texts are cut off */
    TREK_INTERN_LIMIT = 1 << 15,   /* texts in total */
    TREK_INTERN_FEW = 3 << 13,     /* the limit for texts that may occur in any number (shapes); the rest is for others */
};

/* Returns the text's number, from 1. Returns 0 for an empty text, if there are `limit` texts already, or without
 * memory. It may be called from any thread; known texts are found without a lock. */
uint32_t trek_intern(const char *text, size_t length, uint32_t limit);
/* Returns the text of a number from trek_intern; "" for 0. It lives as long as the program. */
const char *trek_interned(uint32_t number);

#endif
